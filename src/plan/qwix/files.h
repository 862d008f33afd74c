#pragma once

// What a checkpoint in layout qwix has beside its shards: qwix_rules.json, qwix_abstract.json and
// load_qwix.py. Private to layout qwix.

#include <vector>

#include "plan/plan.h"

namespace quantmill {

// Of a plan whose parameters and shards are known.
//   qwix_rules.json     list of rules as qwix.QuantizationRule takes them: one for all layers that
//                       are quantized alike, as qwix.restore_quantization_rules gives them, and
//                       else the layers that are. Opaque parameters have none.
//   qwix_abstract.json  what each tensor is; described in README.md.
std::vector<TextFile> qwix_files(const Plan& plan);

}  // namespace quantmill
