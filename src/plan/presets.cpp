#include "plan/presets.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"

namespace quantmill {

const std::vector<Preset>& presets() {
  static const std::vector<Preset> all = {
      {"mxfp4-default",
       "4 bits, weights and activations; what --scheme mxfp4 does",
       R"({"scheme": "mxfp4"})"},
      {"mxfp4-fast",
       "the same format with one scale vector per fold group: a short search, a little less "
       "accurate",
       R"({"scheme": "mxfp4", "scaling": "awq-grid", "scale_rule": "even", "objective": "w4a16"})"},
      {"mxfp4-best",
       "what measured best for mxfp4: rounded by gptq, which needs Gram matrices in the statistics",
       R"({"scheme": "mxfp4", "layout": "quark", "scaling": "block-grid", "scale_rule": "mse", "objective": "w4a4", "rounding": "gptq"})"},
      {"nvfp4",
       "4 bits with finer blocks, for Blackwell",
       R"({"scheme": "nvfp4", "scale_rule": "mse"})"},
      {"fp8-block",
       "8 bits as DeepSeek stores them; hardly any loss",
       R"({"scheme": "fp8-block"})"},
      {"fp8-channel",
       "8 bits, a scale for each row, activations token by token",
       R"({"scheme": "fp8-channel"})"},
      {"int8", "8 bits for devices without FP8", R"({"scheme": "int8"})"},
      {"int4-g128",
       "4 bits, weights only, for devices without FP4",
       R"({"scheme": "int4-g128", "scale_rule": "mse"})"},
      {"int4-asym-g128",
       "the same with zero points: a little larger, more accurate",
       R"({"scheme": "int4-asym-g128", "scale_rule": "mse"})"},
  };
  return all;
}

const Preset& find_preset(const std::string& name) {
  const auto found = std::ranges::find(presets(), name, &Preset::name);
  if (found == presets().end()) {
    std::string names;
    for (const Preset& preset : presets()) {
      names += fmt::format("{}{}", names.empty() ? "" : ", ", preset.name);
    }
    throw Error(
        ErrorCode::kUsage,
        fmt::format(
            "--recipe {}: neither a file nor a built-in recipe; built in are {}", name, names));
  }
  return *found;
}

}  // namespace quantmill
