#include "plan/knapsack.h"

#include <algorithm>
#include <numeric>

namespace quantmill {
namespace {

// From one form of a group to the next larger one of its hull.
struct Step {
  std::size_t group = 0;
  std::size_t form = 0;  // the larger one
  std::uint64_t bytes = 0;
  double rate = 0;  // loss saved for each of them
};

double rate_between(const SizedForm& small, const SizedForm& large) {
  return (small.loss - large.loss) / static_cast<double>(large.bytes - small.bytes);
}

// Indices of the forms on the lower convex hull (its edges too), from the smallest to the one of
// the least loss.
std::vector<std::size_t> hull_of(const std::vector<SizedForm>& forms) {
  std::vector<std::size_t> order(forms.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
    return forms[a].bytes != forms[b].bytes ? forms[a].bytes < forms[b].bytes
                                            : forms[a].loss < forms[b].loss;
  });
  std::vector<std::size_t> hull;
  for (const std::size_t index : order) {
    if (!hull.empty() && !(forms[index].loss < forms[hull.back()].loss)) {
      continue;
    }
    while (hull.size() > 1 && rate_between(forms[hull.back()], forms[index]) >
                                  rate_between(forms[hull[hull.size() - 2]], forms[hull.back()])) {
      hull.pop_back();
    }
    hull.push_back(index);
  }
  return hull;
}

}  // namespace

std::optional<std::vector<std::size_t>> choose_forms(std::span<const std::vector<SizedForm>> groups,
                                                     std::uint64_t bytes) {
  std::vector<std::size_t> chosen;
  std::vector<Step> steps;
  for (std::size_t group = 0; group < groups.size(); ++group) {
    const std::vector<SizedForm>& forms = groups[group];
    const std::vector<std::size_t> hull = hull_of(forms);
    chosen.push_back(hull.front());
    if (forms[hull.front()].bytes > bytes) {
      return std::nullopt;
    }
    bytes -= forms[hull.front()].bytes;
    for (std::size_t i = 1; i < hull.size(); ++i) {
      const SizedForm& small = forms[hull[i - 1]];
      const SizedForm& large = forms[hull[i]];
      steps.push_back({group, hull[i], large.bytes - small.bytes, rate_between(small, large)});
    }
  }
  // Rates fall along a hull, so that a group's steps stay in order.
  std::ranges::stable_sort(steps, std::ranges::greater(), &Step::rate);
  std::vector<bool> stays(groups.size(), false);
  for (const Step& step : steps) {
    if (stays[step.group]) {
      continue;
    }
    if (step.bytes > bytes) {
      stays[step.group] = true;
      continue;
    }
    bytes -= step.bytes;
    chosen[step.group] = step.form;
  }
  return chosen;
}

}  // namespace quantmill
