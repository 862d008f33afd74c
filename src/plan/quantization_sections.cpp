#include "plan/quantization_sections.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"

namespace quantmill {

namespace {

constexpr std::string_view kCompressedTensorsSection = R"({
  "config_groups": {},
  "format": "", "global_compression_ratio": null, "ignore": [], "kv_cache_scheme": null,
  "quant_method": "compressed-tensors", "quantization_status": "compressed", "sparsity_config": {},
  "transform_config": {}, "version": "0.19.0"
})";
constexpr std::string_view kGroup = R"({
  "format": "", "input_activations": null, "output_activations": null, "targets": ["Linear"], "weights": null
})";
constexpr std::string_view kMixedFormats = "mixed-precision";
constexpr std::string_view kArguments = R"({
  "actorder": null, "block_structure": null, "dynamic": false, "group_size": null, "num_bits": 8,
  "observer": "memoryless_minmax", "observer_kwargs": {}, "scale_dtype": null, "strategy": "channel",
  "symmetric": true, "type": "float", "zp_dtype": null
})";
constexpr std::string_view kFp8Section = R"({
  "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128],
  "modules_to_not_convert": []
})";

constexpr std::string_view kGptOssSection =
    R"({"modules_to_not_convert": [], "quant_method": "mxfp4"})";

JsonValue literal(std::string_view text) {
  return parse_json(text, "built-in section", ErrorCode::kInternal);
}

JsonValue text(std::string_view value) {
  return JsonValue::string(std::string(value));
}

// How one side of a linear is quantized, as compressed-tensors' QuantizationArgs.
JsonValue arguments(std::string_view type, std::uint64_t bits, std::string_view strategy) {
  JsonValue result = literal(kArguments);
  result.set("type", text(type));
  result.set("num_bits", JsonValue::number(bits));
  result.set("strategy", text(strategy));
  return result;
}

// Of activations, which servers quantize as they come.
JsonValue at_run_time(JsonValue arguments) {
  arguments.set("dynamic", JsonValue::boolean(true));
  arguments.set("observer", JsonValue::null());
  return arguments;
}

JsonValue in_groups(JsonValue arguments, std::uint64_t columns) {
  arguments.set("group_size", JsonValue::number(columns));
  return arguments;
}

struct Group {
  std::string_view format;
  JsonValue weights;
  JsonValue activations;
};

JsonValue mx_arguments(std::uint64_t bits) {
  JsonValue result = in_groups(arguments("float", bits, "group"), columns_together(Scheme::kMxfp4));
  result.set("scale_dtype", text("torch.uint8"));
  return result;
}

JsonValue nvfp4_arguments() {
  JsonValue result =
      in_groups(arguments("float", 4, "tensor_group"), columns_together(Scheme::kNvfp4));
  result.set("scale_dtype", text("torch.float8_e4m3fn"));
  return result;
}

// Of activations whose scale is stored. `dynamic`: what is not, of two scales.
JsonValue calibrated(JsonValue arguments, JsonValue dynamic) {
  arguments.set("dynamic", std::move(dynamic));
  arguments.set("observer", text("static_minmax"));
  return arguments;
}

JsonValue integer_arguments(Scheme scheme) {
  if (scheme == Scheme::kW8a16) {
    return arguments("int", 8, "channel");
  }
  const std::uint64_t bits = scheme == Scheme::kW8a16G128 ? 8 : 4;
  JsonValue result = in_groups(arguments("int", bits, "group"), columns_together(scheme));
  if (is_asymmetric(scheme)) {
    result.set("symmetric", JsonValue::boolean(false));
    result.set("zp_dtype", text("torch.int8"));
  }
  return result;
}

Group group_of(Scheme scheme, bool has_input_scales) {
  const JsonValue by_token = at_run_time(arguments("float", 8, "token"));
  switch (scheme) {
    case Scheme::kMxfp4:
      return {"mxfp4-pack-quantized", mx_arguments(4), at_run_time(mx_arguments(4))};
    case Scheme::kMxfp8:
      return {"mxfp8-quantized", mx_arguments(8), at_run_time(mx_arguments(8))};
    case Scheme::kNvfp4:
      return {"nvfp4-pack-quantized",
              nvfp4_arguments(),
              has_input_scales ? calibrated(nvfp4_arguments(), text("local")) : JsonValue::null()};
    case Scheme::kFp8Tensor:
      return {"float-quantized",
              arguments("float", 8, "tensor"),
              has_input_scales
                  ? calibrated(arguments("float", 8, "tensor"), JsonValue::boolean(false))
                  : by_token};
    case Scheme::kFp8Channel:
      return {"float-quantized", arguments("float", 8, "channel"), by_token};
    case Scheme::kFp8Block: {
      JsonValue weights = arguments("float", 8, "block");
      weights.set("block_structure", literal("[128, 128]"));
      return {"float-quantized",
              std::move(weights),
              at_run_time(in_groups(arguments("float", 8, "group"), rows_together(scheme)))};
    }
    case Scheme::kInt8:
      return {"int-quantized",
              arguments("int", 8, "channel"),
              at_run_time(arguments("int", 8, "token"))};
    case Scheme::kW8a16:
    case Scheme::kW8a16G128:
    case Scheme::kInt4G128:
    case Scheme::kInt4G32:
    case Scheme::kInt4AsymG128:
    case Scheme::kInt4AsymG32:
      return {"pack-quantized", integer_arguments(scheme), JsonValue::null()};
    case Scheme::kMxfp6E2m3:
    case Scheme::kMxfp6E3m2:
    case Scheme::kBf16:
    case Scheme::kF16:
    case Scheme::kF32:
      break;
  }
  throw Error(ErrorCode::kInternal, "internal fault: a scheme that compressed-tensors lacks");
}

}  // namespace

JsonValue compressed_tensors_section(const Recipe& recipe,
                                     const std::vector<SchemeModules>& schemes,
                                     const std::vector<std::string>& ignore) {
  JsonValue groups = JsonValue::object();
  std::string_view format;
  for (std::size_t i = 0; i < schemes.size(); ++i) {
    Group group = group_of(schemes[i].scheme, recipe.input_scales == InputScales::kStatic);
    format = i == 0 || format == group.format ? group.format : kMixedFormats;
    JsonValue item = literal(kGroup);
    item.set("format", text(group.format));
    item.set("input_activations", std::move(group.activations));
    item.set("weights", std::move(group.weights));
    if (i > 0) {
      std::vector<std::string> targets;
      std::ranges::transform(
          schemes[i].patterns, std::back_inserter(targets), as_regular_expression);
      item.set("targets", JsonValue::array(targets));
    }
    groups.set(fmt::format("group_{}", i), std::move(item));
  }
  JsonValue section = literal(kCompressedTensorsSection);
  section.set("config_groups", std::move(groups));
  section.set("format", text(format));
  section.set("ignore", JsonValue::array(ignore));
  if (recipe.kv_cache == KvCache::kFp8) {
    section.set("kv_cache_scheme", arguments("float", 8, "tensor"));
  }
  return section;
}

JsonValue fp8_section(const std::vector<std::string>& exclude) {
  JsonValue section = literal(kFp8Section);
  std::vector<std::string> names;
  for (const std::string& name : exclude) {
    if (!name.starts_with("re:")) {
      names.push_back(name);
    }
  }
  section.set("modules_to_not_convert", JsonValue::array(names));
  return section;
}

JsonValue gpt_oss_section(const std::vector<std::string>& exclude) {
  constexpr std::string_view kExperts = ".experts";
  std::vector<std::string> modules = {
      "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"};
  for (const std::string& name : exclude) {
    const std::size_t experts = name.find(kExperts);
    const std::string module = name.substr(0, experts + kExperts.size());
    if (experts != std::string::npos && !name.starts_with("re:") &&
        std::ranges::find(modules, module) == modules.end()) {
      modules.push_back(module);
    }
  }
  JsonValue section = literal(kGptOssSection);
  section.set("modules_to_not_convert", JsonValue::array(modules));
  return section;
}

}  // namespace quantmill
