#include "plan/fold_groups.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>

#include <fmt/format.h>

#include "base/error.h"

namespace quantmill {

namespace {

void check_producers(const std::vector<Activation>& activations,
                     const std::vector<ModelTensor>& tensors) {
  std::unordered_map<std::size_t, std::size_t> first_activation;  // of a producer
  for (std::size_t i = 0; i < activations.size(); ++i) {
    if (!activations[i].producer) {
      continue;
    }
    const std::size_t tensor = activations[i].producer->tensor;
    const auto [found, is_new] = first_activation.emplace(tensor, i);
    if (!is_new) {
      throw Error(ErrorCode::kInput,
                  fmt::format("activations {} and {} have the same producer {}; one activation "
                              "must list all readers",
                              activations[found->second].name,
                              activations[i].name,
                              tensors[tensor].name));
    }
  }
}

// For every activation the first one of its component.
std::vector<std::size_t> roots_of(const std::vector<Activation>& activations) {
  std::vector<std::size_t> parent(activations.size());
  std::iota(parent.begin(), parent.end(), std::size_t{0});
  const auto root_of = [&parent](std::size_t i) {
    while (parent[i] != i) {
      parent[i] = parent[parent[i]];
      i = parent[i];
    }
    return i;
  };
  std::unordered_map<std::size_t, std::size_t> first_activation;  // of a reader
  for (std::size_t i = 0; i < activations.size(); ++i) {
    for (const std::size_t reader : activations[i].readers) {
      const std::size_t a = root_of(first_activation.emplace(reader, i).first->second);
      const std::size_t b = root_of(i);
      parent[std::max(a, b)] = std::min(a, b);
    }
  }
  std::vector<std::size_t> roots;
  for (std::size_t i = 0; i < activations.size(); ++i) {
    roots.push_back(root_of(i));
  }
  return roots;
}

}  // namespace

std::vector<FoldGroup> join_activations(const std::vector<Activation>& activations,
                                        const std::vector<ModelTensor>& tensors) {
  check_producers(activations, tensors);
  const std::vector<std::size_t> roots = roots_of(activations);
  std::vector<FoldGroup> groups;
  std::unordered_map<std::size_t, std::size_t> group_of_root;
  for (std::size_t i = 0; i < activations.size(); ++i) {
    const Activation& activation = activations[i];
    const Activation& first = activations[roots[i]];
    if (first.columns != activation.columns) {
      throw Error(ErrorCode::kInput,
                  fmt::format("activations {} and {} share readers and have different columns",
                              first.name,
                              activation.name));
    }
    const auto [found, is_new] = group_of_root.emplace(roots[i], groups.size());
    if (is_new) {
      groups.push_back({activation.name, activation.columns.num_channels(), {}, ""});
    }
    FoldGroup& group = groups[found->second];
    group.activations.push_back(i);
    if (group.no_fold_reason.empty()) {
      group.no_fold_reason = activation.no_fold_reason;
    }
  }
  return groups;
}

}  // namespace quantmill
