#pragma once

// How a quantized weight uses its number format: counted from the codes and scales as they are
// stored.

#include <cstdint>
#include <map>

#include "checkpoint/reader.h"
#include "plan/source_weights.h"

namespace quantmill {

struct CodeCounts {
  std::uint64_t tensors = 0;
  std::uint64_t elements = 0;
  std::uint64_t zeros = 0;
  // Codes of the largest magnitude: what was clipped is among them, and what just reaches it.
  std::uint64_t largest = 0;
  // Magnitude of a code -> how often: every one of 4 and 6 bits; of 8 bits the power of two below,
  // 0 for zero.
  std::map<double, std::uint64_t> magnitudes;
  // floor(log2 scale) -> how many scales.
  std::map<int, std::uint64_t> scale_exponents;

  void add(const CodeCounts& other);
};

// Counts a weight that is not plain; its codes are read piece by piece. kIo; kInput for a scale
// that is no positive number.
CodeCounts count_codes(const Checkpoint& checkpoint, const SourceWeight& weight);

}  // namespace quantmill
