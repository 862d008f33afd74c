#pragma once

// The quantization_config of layouts other than Quark's, as their makers write it.

#include <string>
#include <vector>

#include "plan/json_text.h"
#include "plan/module_patterns.h"

namespace quantmill {

// Layout::kCompressedTensors: key by key what llm-compressor 0.14 with compressed-tensors 0.19
// writes for FP8_DYNAMIC (fp8-channel), FP8_BLOCK, MXFP4, W8A8 (int8) and W4A16 (int4). The first
// scheme's group is of all linears, the others' of the modules that their patterns match.
JsonValue compressed_tensors_section(const std::vector<SchemeModules>& schemes,
                                     const std::vector<std::string>& ignore);

// Layout::kFp8: what DeepSeek-V3's config.json has, with modules_to_not_convert as transformers
// writes it. Patterns ("re:…") of `exclude` are left out: its readers match names only.
JsonValue fp8_section(const std::vector<std::string>& exclude);

}  // namespace quantmill
