#pragma once

// FP8 and INT8 weights of a source: codes of one byte, and what their scales are for.

#include <vector>

#include "plan/quantization_settings.h"
#include "plan/source_weights.h"

namespace quantmill {

// Fills the weight's encoding and what one scale is for. `stored` is the checkpoint's tensors,
// `settings` what its config.json says of the module. kInput: scales of a shape or type that no
// known format has.
void describe_byte_codes(const std::vector<SourceTensor>& stored,
                         const CodeSettings& settings,
                         SourceWeight& weight);

}  // namespace quantmill
