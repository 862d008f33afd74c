#pragma once

// The quantization_config of Layout::kQuark, key by key what amd-quark 0.13 exports. Private to the
// plan module.

#include <string>
#include <vector>

#include "plan/json_text.h"
#include "plan/module_patterns.h"
#include "plan/recipe.h"

namespace quantmill {

// Of its schemes "mxfp4", "mxfp6_e2m3", "mxfp6_e3m2", "fp8", "ptpc_fp8", "int4_wo_*" and
// "uint4_wo_*", of FP8 blocks, and of kv_cache_scheme "fp8".
// The first scheme is everywhere, the others' layers are named.
JsonValue quark_section(const Recipe& recipe,
                        const std::vector<SchemeModules>& schemes,
                        const std::vector<std::string>& exclude);

// What the script that --compat seed reproduces writes: its order of keys, and "even" although its
// rule is floor.
JsonValue seed_section();

}  // namespace quantmill
