#pragma once

// config.json of the output: the source's, key by key and in order, plus AMD Quark's
// quantization_config.

#include <string>
#include <vector>

#include "plan/architecture.h"
#include "plan/module_patterns.h"
#include "plan/recipe.h"

namespace quantmill {

// The exclude list for tensors[i] with quantized[i] false: for every linear that stays unquantized
// its checkpoint module name (Quark and transformers match those) and its servers' pattern (vLLM
// and SGLang match exact names and "re:"): the one without layer numbers if no tensor with that
// pattern is quantized, else the one with the numbers of the kept layers, the checkpoint's and the
// servers'; then the architecture's extra entries, and of each part that is copied its pattern as
// the two kinds of readers spell it. Layout fp8 knows names only, so that such parts are listed
// matrix by matrix there, as they are where others of the part are quantized. Sorted, without
// repeats. Errors, kInput: only
// some layers are kept and the numbers can't tell them apart (no pattern with layer numbers, the
// servers' offset unknown, or so small that the two numberings meet).
std::vector<std::string> exclude_list(const ResolvedArchitecture& architecture,
                                      const std::vector<bool>& quantized,
                                      Layout layout);

// config.json with quantization_config appended (or replaced where it stands). With Layout::kPlain
// there is none, one of the source is removed, and "dtype"/"torch_dtype" follow the scheme. Spelled
// as Python's json.dumps(indent=2) does, with a newline at the end; numbers keep the source's
// spelling. The keys, values and order of the section are those that amd-quark 0.13 writes for its
// mxfp4 scheme; scale_calculation_mode of the weights is the scale rule used (readers ignore it for
// stored scales). With Compat::kSeed the section is the one of the script, whose exclude is empty,
// and there is no newline at the end. `schemes` as modules_by_scheme gives them: the first is every
// module's but those that the others' patterns match. Errors, kInput: config.json is not a JSON
// object, holds NaN or Infinity, a key twice, or a byte order mark.
std::string output_config(const std::string& source_config,
                          const Recipe& recipe,
                          const std::vector<SchemeModules>& schemes,
                          const std::vector<std::string>& exclude);

}  // namespace quantmill
