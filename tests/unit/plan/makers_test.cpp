// Sections of config.json and stored tensors against what the makers' own programs wrote of a model
// with the same linears: llm-compressor 0.14 with compressed-tensors 0.19, amd-quark 0.13.

#include <map>
#include <ostream>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "plan/quark_config.h"
#include "plan/scheme.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_checkpoint.h"

namespace quantmill {
namespace {

using nlohmann::json;

struct Written {
  const char* file;
  Scheme scheme;
  Layout layout;
  InputScales input_scales = InputScales::kNone;
};

std::ostream& operator<<(std::ostream& out, const Written& written) {
  return out << written.file;
}

class Makers : public testing::TestWithParam<Written> {
 protected:
  static json read(const char* kind) {
    return json::parse(test::read_text(
        test::golden("configs/" + std::string(GetParam().file) + "." + kind + ".json")));
  }
};

TEST_P(Makers, WriteTheSameSection) {
  Recipe recipe;
  recipe.scheme = GetParam().scheme;
  recipe.layout = GetParam().layout;
  recipe.input_scales = GetParam().input_scales;
  json ours = json::parse(output_config("{}", recipe, {{recipe.scheme, {}}}, {"lm_head"}));
  ours = ours["quantization_config"];
  json theirs = read("config")["quantization_config"];
  for (json* section : {&ours, &theirs}) {
    if (recipe.layout == Layout::kQuark) {
      section->erase("version");
    }
  }
  EXPECT_EQ(ours, theirs);
}

TEST_P(Makers, StoreTheSameTensors) {
  const std::string module = "model.layers.0.mlp.gate_proj.";
  const json all = read("tensors");
  std::map<std::string, json> theirs;
  for (const auto& [name, tensor] : all.items()) {
    if (name.starts_with(module)) {
      theirs[name] = tensor;
    }
  }
  std::map<std::string, json> ours;
  for (const StoredPart& part : stored_parts(GetParam().scheme,
                                             GetParam().layout,
                                             module + "weight",
                                             512,
                                             256,
                                             GetParam().input_scales == InputScales::kStatic)) {
    ours[part.name] = {{"dtype", dtype_name(part.dtype)}, {"shape", part.shape}};
  }
  // Makers store scales of FP8 and INT8 in the model's type.
  for (auto& [name, tensor] : theirs) {
    if (name.ends_with("scale") && ours.contains(name) && ours[name]["dtype"] == "F32") {
      tensor["dtype"] = "F32";
    }
  }
  EXPECT_EQ(ours, theirs);
}

INSTANTIATE_TEST_SUITE_P(
    All,
    Makers,
    testing::Values(
        Written{"compressed-tensors.FP8",
                Scheme::kFp8Tensor,
                Layout::kCompressedTensors,
                InputScales::kStatic},
        Written{"compressed-tensors.FP8_DYNAMIC", Scheme::kFp8Channel, Layout::kCompressedTensors},
        Written{"compressed-tensors.FP8_BLOCK", Scheme::kFp8Block, Layout::kCompressedTensors},
        Written{"compressed-tensors.MXFP4", Scheme::kMxfp4, Layout::kCompressedTensors},
        Written{"compressed-tensors.MXFP8", Scheme::kMxfp8, Layout::kCompressedTensors},
        Written{"compressed-tensors.NVFP4",
                Scheme::kNvfp4,
                Layout::kCompressedTensors,
                InputScales::kStatic},
        Written{"compressed-tensors.NVFP4A16", Scheme::kNvfp4, Layout::kCompressedTensors},
        Written{"compressed-tensors.W4A16", Scheme::kInt4G128, Layout::kCompressedTensors},
        Written{"compressed-tensors.W8A8", Scheme::kInt8, Layout::kCompressedTensors},
        Written{"quark.fp8", Scheme::kFp8Tensor, Layout::kQuark, InputScales::kStatic},
        Written{"quark.ptpc_fp8", Scheme::kFp8Channel, Layout::kQuark},
        Written{"quark.mxfp6_e2m3", Scheme::kMxfp6E2m3, Layout::kQuark},
        Written{"quark.mxfp6_e3m2", Scheme::kMxfp6E3m2, Layout::kQuark},
        Written{"quark.int4_wo_128", Scheme::kInt4G128, Layout::kQuark},
        Written{"quark.uint4_wo_128", Scheme::kInt4AsymG128, Layout::kQuark}));

}  // namespace
}  // namespace quantmill
