#pragma once

// Rounding with error feedback: columns are rounded one after the other, and what is lost in each
// is made good in those that follow (GPTQ: Frantar et al., arXiv:2210.17323, algorithm 1; OPTQ).

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/context.h"
#include "kernels/codec.h"
#include "kernels/matrix.h"

namespace quantmill {

// How the loss of a column moves the others: for columns a before b in the order of rounding, the
// factor in b -= factor * (a - rounded a).
struct ErrorFeedback {
  std::vector<std::uint32_t> order;  // columns as they are rounded, each once
  // [columns, columns], row-major, of the order's places: that of a and b is at [b][a]; what is on
  // the diagonal and right of it is not read.
  std::vector<float> factors;

  [[nodiscard]] std::size_t size_bytes() const {
    return order.size() * sizeof order[0] + factors.size() * sizeof factors[0];
  }
};

// The values that a scale makes of codes.
// Rows are worked on so many at a time: fewer in a call take as long.
constexpr std::size_t kGptqRowsTogether = 16;

struct RoundingGrid {
  bool is_integer = false;
  ElementFormat element = ElementFormat::kE2m1;  // or:
  int smallest = 0;                              // codes
  int largest = 0;
};

// Rounds `values` [rows, columns] to multiples of their scales.
//   scales: [rows, groups], not negative, finite; groups divides columns, each is for the next
//   columns / groups columns. Where a scale is 0, values become 0.
//   zero_points: of integers, [rows * groups], or empty: 0.
//   rounded: may not overlap `values`.
// Rows are independent of each other. In float, each operation rounded once; the column at place t
// of the order starts as x = value; for each place c < t, ascending: x = x - loss[c] *
// factor[t][c];
//   elements: rounded = decode(encode(x / scale)) * scale
//   integers: code = clamp(nearest even integer of x / scale, + zero point, smallest .. largest),
//             rounded = (code - zero point) * scale
// and loss[t] = x - rounded. The same on every backend, to the bit.
void gptq_round(const Context& context,
                const RoundingGrid& grid,
                const ErrorFeedback& feedback,
                ConstFloatMatrix values,
                ConstFloatMatrix scales,
                std::span<const std::int8_t> zero_points,
                FloatMatrix rounded);

}  // namespace quantmill
