#pragma once

// How the axes of a stored tensor become those of a parameter: "(heads dim) in -> heads in dim".
// One group for each dimension, the slowest first; a parenthesis is a dimension that counts several
// axes, the last of them fastest. 1 is a dimension of one element. An axis on the right that is not
// on the left is one along which tensors are stacked.

#include <string>
#include <string_view>
#include <vector>

namespace quantmill {

using AxisGroup = std::vector<std::string>;  // names; empty: one element

struct AxisPattern {
  std::vector<AxisGroup> from;
  std::vector<AxisGroup> to;

  // Axes of `to` that `from` lacks, in order.
  [[nodiscard]] std::vector<std::string> stacked() const;
};

// Errors, kInput, with the text: no arrow, a parenthesis without its partner, an axis twice on one
// side, one of the left that the right lacks.
AxisPattern parse_axis_pattern(std::string_view text);

// Whether `axis` is one of the groups'.
bool has_axis(const std::vector<AxisGroup>& groups, const std::string& axis);

}  // namespace quantmill
