#include "jobs/recipe_options.h"

namespace quantmill {

std::shared_ptr<RecipeOptions> add_recipe_options(CLI::App& command) {
  auto options = std::make_shared<RecipeOptions>();
  const std::string group = "What to make";
  command
      .add_option(
          "--recipe",
          options->recipe_file,
          "JSON file of these settings, or a name of `quantmill recipe list`; options given "
          "here come over it")
      ->type_name("FILE")
      ->group(group);
  command
      .add_option(
          "--scheme",
          options->scheme,
          "number format: mxfp4 (default), mxfp6-e2m3, mxfp6-e3m2, mxfp8, nvfp4, fp8-tensor, "
          "fp8-channel, fp8-block, int8, w8a16, w8a16-g128, int4-g128, int4-g32, int4-asym-g128, "
          "int4-asym-g32; bf16, f16 and f32 fold and do not quantize; source carries over what the "
          "source has, in layout qwix (default there)")
      ->type_name("NAME")
      ->group(group);
  command
      .add_option("--scheme-for",
                  options->schemes,
                  "another scheme, or keep, for the tensors or modules that match, e.g. "
                  "'*.self_attn.*=fp8-channel' (repeatable: the first that matches counts, after "
                  "--keep)")
      ->type_name("PATTERN=SCHEME")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->group(group);
  CLI::Option* bits =
      command
          .add_option(
              "--target-bits",
              options->target_bits,
              "choose the scheme of every linear for this mean of bits per weight, e.g. 4.75: "
              "codes "
              "and scales of all linears that are not kept by --keep; by the errors that --stats "
              "weigh. Tensors of --scheme-for stay what that says, and count")
          ->type_name("BITS")
          ->group(group);
  command
      .add_option("--target-size",
                  options->target_size,
                  "the same for a size of the output's weight files, e.g. 70G")
      ->type_name("SIZE")
      ->excludes(bits)
      ->group(group);
  command
      .add_option("--schemes",
                  options->target_schemes,
                  "what may be chosen for a target, with commas between; keep leaves unquantized "
                  "(default: --scheme, keep, and what else the layout has: in quark mxfp6-e2m3 and "
                  "fp8-channel, in compressed-tensors fp8-channel)")
      ->type_name("LIST")
      ->group(group);
  command
      .add_option(
          "--layout",
          options->layout,
          "how it is stored: quark, compressed-tensors, fp8 (DeepSeek's blocks), gpt-oss (mxfp4 "
          "experts that stay one tensor, all else unquantized), qwix (JAX) or plain (default: what "
          "most readers of the scheme take)")
      ->type_name("NAME")
      ->group(group);
  command
      .add_option("--scaling",
                  options->scaling,
                  "activation-aware scales, of --stats: block-grid (default of mxfp4), awq-grid "
                  "(of others), "
                  "balance; or none")
      ->type_name("NAME")
      ->group(group);
  command
      .add_option("--alphas",
                  options->alphas,
                  "exponents of mean |x| that awq-grid tries (default 0,0.1,…,1)")
      ->type_name("LIST")
      ->group(group);
  command
      .add_option("--betas",
                  options->betas,
                  "exponents of 1 / |w| that awq-grid tries with each of --alphas (default 0)")
      ->type_name("LIST")
      ->group(group);
  command
      .add_option(
          "--objective",
          options->objective,
          "what the search makes small: the error of rounding weights, w4a16, or of weights and "
          "activations, w4a4 (default of mxfp4 in layout quark)")
      ->type_name("NAME")
      ->group(group);
  command
      .add_option("--rounding",
                  options->rounding,
                  "how values become codes: nearest (default), or gptq, which makes good in later "
                  "columns what earlier ones lose; needs --stats with Gram matrices "
                  "(scripts/collect --gram)")
      ->type_name("NAME")
      ->group(group);
  command
      .add_option("--scale-rule",
                  options->scale_rule,
                  "scale of a block: by its maximum, even (default), floor, rceil or ceil; or mse "
                  "(default of mxfp4 with scaling), searched for the least error, which statistics "
                  "weigh where there are some")
      ->type_name("NAME")
      ->group(group);
  command
      .add_option("--fold-scales",
                  options->fold_scales,
                  "exact (default), pow2 (powers of two: folding rounds nothing at all) or off")
      ->type_name("NAME")
      ->group(group);
  command
      .add_option("--input-scales",
                  options->input_scales,
                  "scales of activations with fp8-tensor and nvfp4: static, from the maxima in "
                  "--stats; none: servers quantize activations as they come, with nvfp4 only "
                  "weights (vLLM takes nvfp4 activations with a stored scale alone); auto "
                  "(default): static where all maxima are there")
      ->type_name("NAME")
      ->group(group);
  command
      .add_option(
          "--kv-cache",
          options->kv_cache,
          "fp8: tell servers to keep keys and values as e4m3, with scales from the maxima in "
          "--stats (inputs self_attn.k_cache and self_attn.v_cache of every layer); none "
          "(default)")
      ->type_name("NAME")
      ->group(group);
  command
      .add_option(
          "--min-tokens",
          options->min_tokens,
          "leave unscaled what fewer tokens reached while statistics were recorded, such as "
          "experts that are rarely used (default 32)")
      ->type_name("N")
      ->group(group);
  command
      .add_option("--keep",
                  options->keep,
                  "leave what matches unquantized, e.g. '*.down_proj' (repeatable)")
      ->type_name("PATTERN")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->group(group);
  command
      .add_option("--include",
                  options->include,
                  "quantize a part of the model that otherwise stays as it is, e.g. mtp "
                  "(repeatable)")
      ->type_name("PART")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->group(group);
  command
      .add_option("--arch",
                  options->architecture,
                  "architecture: a built-in name or a JSON file (default: by config.json)")
      ->type_name("FILE")
      ->group(group);
  command
      .add_option(
          "--jax-model",
          options->jax_model,
          "layout qwix: how the JAX model names and shapes its parameters, a built-in name or "
          "a JSON file (default: nnx)")
      ->type_name("FILE")
      ->group(group);
  command
      .add_option("--scale-type",
                  options->scale_type,
                  "layout qwix: source (default: BF16 where that is exact) or f32")
      ->type_name("NAME")
      ->group(group);
  command
      .add_flag("--allow-unknown",
                options->allow_unknown,
                "copy tensors that the architecture does not mention")
      ->group(group);
  command
      .add_flag("--untie",
                options->untie,
                "keep embeddings apart that config.json calls tied and that differ, and say so in "
                "the output's config.json")
      ->group(group);
  command
      .add_option("--max-shard-size",
                  options->max_shard_size,
                  "cut the output into files of at most this size, e.g. 4G "
                  "(default: the source's files)")
      ->type_name("SIZE")
      ->group(group);
  command
      .add_option("--compat",
                  options->compat,
                  "seed: do what the script quantize_dflash_mxfp4.py does, faults included")
      ->type_name("NAME")
      ->group(group);
  return options;
}

}  // namespace quantmill
