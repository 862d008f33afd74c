#pragma once

// Elements of safetensors files that are numbers of the machine's own types. Not for floats that
// kernels/convert.h decodes, nor for codes of quantized weights.

#include <cstddef>
#include <span>

#include "checkpoint/safetensors.h"

namespace quantmill {

// values: as many as `bytes` hold; 64-bit integers beyond 2^53 are rounded. kInput, naming the
// tensor, for a type that is no such number.
void load_numbers(const TensorEntry& tensor,
                  std::span<const std::byte> bytes,
                  std::span<double> values);

}  // namespace quantmill
