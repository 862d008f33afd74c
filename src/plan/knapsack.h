#pragma once

// One form for each of many groups, so that the sum of their losses is small and their bytes fit: a
// multiple-choice knapsack. Not for what forms are, or where losses come from.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace quantmill {

struct SizedForm {
  std::uint64_t bytes = 0;
  double loss = 0;  // 0 or more, finite
};

// For each group the index of one of its forms (at least one each): together at most `bytes`;
// nothing if the smallest of all are more. By Lagrange's multipliers over the lower convex hull of
// each group's points (bytes, loss): hull steps are taken from the smallest forms on, those that
// save the most loss for a byte first (on a tie the earlier group's), and a group that has no room
// for its next step stays where it is, while others go on. Up to the first step without room this
// is the optimum for the bytes that it takes; so the loss exceeds the least that is possible by
// less than that one step saves. The same on all machines.
std::optional<std::vector<std::size_t>> choose_forms(std::span<const std::vector<SizedForm>> groups,
                                                     std::uint64_t bytes);

}  // namespace quantmill
