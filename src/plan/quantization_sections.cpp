#include "plan/quantization_sections.h"

#include <algorithm>
#include <iterator>
#include <string_view>

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

JsonValue mxfp4_arguments() {
  JsonValue result = in_groups(arguments("float", 4, "group"), columns_together(Scheme::kMxfp4));
  result.set("scale_dtype", text("torch.uint8"));
  return result;
}

Group group_of(Scheme scheme) {
  switch (scheme) {
    case Scheme::kMxfp4:
      return {"mxfp4-pack-quantized", mxfp4_arguments(), at_run_time(mxfp4_arguments())};
    case Scheme::kFp8Channel:
      return {"float-quantized",
              arguments("float", 8, "channel"),
              at_run_time(arguments("float", 8, "token"))};
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
    case Scheme::kInt4G128:
    case Scheme::kInt4G32:
      return {"pack-quantized",
              in_groups(arguments("int", 4, "group"), columns_together(scheme)),
              JsonValue::null()};
    case Scheme::kMxfp6E2m3:
    case Scheme::kMxfp6E3m2:
    case Scheme::kBf16:
    case Scheme::kF32:
      break;
  }
  throw Error(ErrorCode::kInternal, "internal fault: a scheme that compressed-tensors lacks");
}

}  // namespace

JsonValue compressed_tensors_section(const std::vector<SchemeModules>& schemes,
                                     const std::vector<std::string>& ignore) {
  JsonValue groups = JsonValue::object();
  std::string_view format;
  for (std::size_t i = 0; i < schemes.size(); ++i) {
    Group group = group_of(schemes[i].scheme);
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

}  // namespace quantmill
