#include "plan/quark_section.h"

#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/version.h"

namespace quantmill {
namespace {

// Both sections key by key: what amd-quark 0.13 exports for its scheme "mxfp4", and what the script
// that --compat seed reproduces writes (in another order below global_quant_config). The nulls and
// empty values are filled in.
constexpr std::string_view kQuarkSection = R"({
  "algo_config": null,
  "exclude": [],
  "export": {"kv_cache_group": [], "min_kv_scale": 0.0, "pack_method": "reorder",
             "weight_format": "real_quantized", "weight_merge_groups": null},
  "global_quant_config": {"bias": null, "input_tensors": null, "output_tensors": null, "target_device": null,
                          "weight": null},
  "kv_cache_post_rope": false,
  "kv_cache_quant_config": {},
  "layer_quant_config": {},
  "layer_type_quant_config": {},
  "quant_method": "quark",
  "quant_mode": "eager_mode",
  "softmax_quant_spec": null,
  "version": ""
})";
constexpr std::string_view kTensorSpec = R"({
  "block_size": null, "ch_axis": -1, "dtype": "fp4", "enable_buffer_reuse": false, "group_size": 32,
  "is_dynamic": false, "is_scale_quant": false, "max_input_numel": 4194304, "mx_element_dtype": null,
  "observer_cls": "PerBlockMXObserver", "qscheme": "per_group", "round_method": "half_even",
  "scale_calculation_mode": "even", "scale_format": "e8m0", "scale_type": "float", "symmetric": null
})";
constexpr std::string_view kSeedVersion = "0.12+radiance-awq-mxfp4";

JsonValue literal(std::string_view text) {
  return parse_json(text, "built-in section", ErrorCode::kInternal);
}

JsonValue tensor_spec(bool is_dynamic, std::string_view scale_mode, bool with_zero_point) {
  JsonValue spec = literal(kTensorSpec);
  spec.set("is_dynamic", JsonValue::boolean(is_dynamic));
  spec.set("scale_calculation_mode", JsonValue::string(std::string(scale_mode)));
  if (with_zero_point) {
    spec.set("zero_point_type", JsonValue::string("int32"));
  }
  return spec;
}

// Quark has no word for scales that were searched, and readers take the bytes as they are.
std::string_view scale_mode(ScaleRule rule) {
  return scale_rule_name(rule == ScaleRule::kMse ? ScaleRule::kEven : rule);
}

// Activations are quantized while serving, by the servers' own rule, which is "even".
// Of the schemes mxfp4 and mxfp6, whose names in Quark are those of their elements.
JsonValue mx_spec(Scheme scheme, bool is_dynamic, std::string_view scale_mode) {
  JsonValue spec = tensor_spec(is_dynamic, scale_mode, true);
  const std::string_view element = scheme == Scheme::kMxfp6E2m3   ? "fp6_e2m3"
                                   : scheme == Scheme::kMxfp6E3m2 ? "fp6_e3m2"
                                                                  : "fp4";
  spec.set("dtype", JsonValue::string(std::string(element)));
  return spec;
}

// Of formats that are not MX.
JsonValue plain_spec(std::string_view dtype,
                     std::string_view qscheme,
                     std::string_view observer,
                     JsonValue axis,
                     bool is_dynamic) {
  JsonValue spec = tensor_spec(is_dynamic, "", true);
  spec.set("ch_axis", std::move(axis));
  spec.set("dtype", JsonValue::string(std::string(dtype)));
  spec.set("group_size", JsonValue::null());
  spec.set("observer_cls", JsonValue::string(std::string(observer)));
  spec.set("qscheme", JsonValue::string(std::string(qscheme)));
  spec.set("scale_calculation_mode", JsonValue::null());
  spec.set("scale_format", JsonValue::null());
  spec.set("symmetric", JsonValue::boolean(true));
  return spec;
}

// Of Quark's scheme "ptpc_fp8": a scale per row of weights, per token of activations.
JsonValue fp8_channel_spec(bool is_activation) {
  return plain_spec("fp8_e4m3",
                    "per_channel",
                    "PerChannelMinMaxObserver",
                    JsonValue::number(std::uint64_t{is_activation ? 1U : 0U}),
                    is_activation);
}

// Of "fp8": one scale, that of activations too.
JsonValue fp8_tensor_spec() {
  return plain_spec("fp8_e4m3", "per_tensor", "PerTensorMinMaxObserver", JsonValue::null(), false);
}

// 128 x 128 of weights, 128 columns of a token of activations.
JsonValue fp8_block_spec(bool is_activation) {
  JsonValue spec = plain_spec("fp8_e4m3",
                              is_activation ? "per_group" : "per_block",
                              is_activation ? "PerGroupMinMaxObserver" : "PerBlock2DMinMaxObserver",
                              literal("-1"),
                              is_activation);
  if (is_activation) {
    spec.set("group_size", JsonValue::number(rows_together(Scheme::kFp8Block)));
  } else {
    spec.set("block_size", literal("[128, 128]"));
  }
  spec.set("scale_type", JsonValue::string("float32"));
  return spec;
}

// Of "int4_wo_128", "uint4_wo_128" and those of 32.
JsonValue int4_spec(Scheme scheme) {
  JsonValue spec = plain_spec(is_asymmetric(scheme) ? "uint4" : "int4",
                              "per_group",
                              "PerGroupMinMaxObserver",
                              literal("-1"),
                              false);
  spec.set("group_size", JsonValue::number(columns_together(scheme)));
  spec.set("symmetric", JsonValue::boolean(!is_asymmetric(scheme)));
  return spec;
}

struct QuarkSpecs {
  JsonValue weight;
  JsonValue activations;
};

QuarkSpecs quark_specs(Scheme scheme, const Recipe& recipe) {
  switch (scheme) {
    case Scheme::kFp8Tensor:
      return {
          fp8_tensor_spec(),
          recipe.input_scales == InputScales::kStatic ? fp8_tensor_spec() : fp8_channel_spec(true)};
    case Scheme::kFp8Channel:
      return {fp8_channel_spec(false), fp8_channel_spec(true)};
    case Scheme::kFp8Block:
      return {fp8_block_spec(false), fp8_block_spec(true)};
    case Scheme::kInt4G128:
    case Scheme::kInt4G32:
    case Scheme::kInt4AsymG128:
    case Scheme::kInt4AsymG32:
      return {int4_spec(scheme), JsonValue::null()};
    case Scheme::kMxfp4:
    case Scheme::kMxfp6E2m3:
    case Scheme::kMxfp6E3m2:
      return {mx_spec(scheme, false, scale_mode(recipe.scale_rule)), mx_spec(scheme, true, "even")};
    case Scheme::kMxfp8:
    case Scheme::kNvfp4:
    case Scheme::kInt8:
    case Scheme::kW8a16:
    case Scheme::kW8a16G128:
    case Scheme::kSource:
    case Scheme::kBf16:
    case Scheme::kF16:
    case Scheme::kF32:
      break;
  }
  throw Error(ErrorCode::kInternal, "internal fault: a scheme that Quark lacks");
}

// How linears of a scheme are quantized, in place of the section's global_quant_config or beside
// it.
JsonValue layer_config(const JsonValue& empty, Scheme scheme, const Recipe& recipe) {
  JsonValue layer = empty;
  QuarkSpecs specs = quark_specs(scheme, recipe);
  layer.set("input_tensors", std::move(specs.activations));
  layer.set("weight", std::move(specs.weight));
  return layer;
}

// Of kv_cache_scheme "fp8": what k_proj and v_proj put out has a scale, the rest as everywhere. Of
// layers' entries the first that matches counts, so these are the last.
void set_kv_cache(const JsonValue& global, JsonValue& layers, JsonValue& section) {
  JsonValue of_output = fp8_tensor_spec();
  of_output.set("scale_type", JsonValue::null());
  JsonValue of_linear = global;
  of_linear.set("output_tensors", std::move(of_output));
  JsonValue linears = JsonValue::object();
  for (const char* name : {"*k_proj", "*v_proj"}) {
    linears.set(name, of_linear);
    layers.set(name, of_linear);
  }
  JsonValue exported = *section.find("export");
  exported.set("kv_cache_group", JsonValue::array(linears.keys));
  section.set("export", std::move(exported));
  section.set("kv_cache_quant_config", std::move(linears));
}

}  // namespace

JsonValue quark_section(const Recipe& recipe,
                        const std::vector<SchemeModules>& schemes,
                        const std::vector<std::string>& exclude) {
  JsonValue section = literal(kQuarkSection);
  const JsonValue empty = *section.find("global_quant_config");
  const JsonValue global = layer_config(empty, schemes.front().scheme, recipe);
  JsonValue layers = JsonValue::object();
  for (const SchemeModules& modules : schemes) {
    for (const std::string& pattern : modules.patterns) {
      layers.set(as_glob(pattern), layer_config(empty, modules.scheme, recipe));
    }
  }
  if (recipe.kv_cache == KvCache::kFp8) {
    set_kv_cache(global, layers, section);
  }
  section.set("global_quant_config", global);
  section.set("layer_quant_config", std::move(layers));
  section.set("exclude", JsonValue::array(exclude));
  section.set("version", JsonValue::string(fmt::format("0.13+quantmill-{}", program_version())));
  return section;
}

JsonValue seed_section() {
  JsonValue section = literal(kQuarkSection);
  JsonValue global = JsonValue::object();
  for (const char* key : {"bias", "output_tensors", "target_device"}) {
    global.set(key, JsonValue::null());
  }
  global.set("input_tensors", tensor_spec(true, "even", false));
  global.set("weight", tensor_spec(false, "even", false));
  section.set("global_quant_config", std::move(global));
  section.set("version", JsonValue::string(std::string(kSeedVersion)));
  return section;
}

}  // namespace quantmill
