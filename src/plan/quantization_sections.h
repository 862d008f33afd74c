#pragma once

// The quantization_config of layouts other than Quark's, as their makers write it.

#include <string>
#include <vector>

#include "plan/json_text.h"
#include "plan/module_patterns.h"
#include "plan/recipe.h"

namespace quantmill {

// Layout::kCompressedTensors: key by key what llm-compressor 0.14 with compressed-tensors 0.19
// writes for FP8_DYNAMIC (fp8-channel), FP8 (fp8-tensor with input scales), FP8_BLOCK, MXFP4,
// MXFP8, NVFP4 (with input scales) and NVFP4A16, W8A8 (int8), W8A16, W4A16 (int4) and W4A16_ASYM.
// The first scheme's group is of all linears, the others' of the modules that their patterns match.
JsonValue compressed_tensors_section(const Recipe& recipe,
                                     const std::vector<SchemeModules>& schemes,
                                     const std::vector<std::string>& ignore);

// Layout::kFp8: what DeepSeek-V3's config.json has, with modules_to_not_convert as transformers
// writes it. Patterns ("re:…") of `exclude` are left out: its readers match names only.
JsonValue fp8_section(const std::vector<std::string>& exclude);

// Layout::kGptOss: the released gpt-oss's, and of `exclude` the modules of experts that are not
// quantized ("model.layers.3.mlp.experts").
JsonValue gpt_oss_section(const std::vector<std::string>& exclude);

}  // namespace quantmill
