#include "plan/fold_groups.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <unordered_set>

#include <fmt/format.h>

#include "base/error.h"

namespace quantmill {

namespace {

// Whether two ranges of one matrix have a row in common.
bool overlap(const RowRange& a, const RowRange& b) {
  const auto last = [](const RowRange& range) { return range.row(range.num_rows() - 1); };
  if (last(a) < b.start || last(b) < a.start) {
    return false;
  }
  std::unordered_set<std::uint64_t> rows;
  for (std::uint64_t i = 0; i < a.num_rows(); ++i) {
    rows.insert(a.row(i));
  }
  for (std::uint64_t i = 0; i < b.num_rows(); ++i) {
    if (rows.contains(b.row(i))) {
      return true;
    }
  }
  return false;
}

void check_producers(const std::vector<Activation>& activations,
                     const std::vector<ModelTensor>& tensors) {
  std::unordered_map<std::size_t, std::vector<std::size_t>> by_producer;
  for (std::size_t i = 0; i < activations.size(); ++i) {
    if (!activations[i].producer) {
      continue;
    }
    const Producer& producer = *activations[i].producer;
    std::vector<std::size_t>& others = by_producer[producer.tensor];
    for (const std::size_t other : others) {
      if (overlap(activations[other].producer->rows, producer.rows)) {
        throw Error(ErrorCode::kInput,
                    fmt::format("activations {} and {} have the same producer {}; one activation "
                                "must list all readers",
                                activations[other].name,
                                activations[i].name,
                                tensors[producer.tensor].name));
      }
    }
    others.push_back(i);
  }
}

// The first activation of each range of columns of each reader.
class ReadColumns {
 public:
  explicit ReadColumns(const std::vector<Activation>& activations) : activations_(activations) {}

  // The activation that read these columns before, or this one. kInput: one read a part of them.
  std::size_t first(std::size_t reader, std::size_t activation) {
    const ColumnMap& columns = activations_[activation].columns;
    for (const std::size_t other : by_reader_[reader]) {
      const ColumnMap& others = activations_[other].columns;
      if (columns.start < others.end() && others.start < columns.end()) {
        if (others != columns) {
          throw Error(ErrorCode::kInput,
                      fmt::format("activations {} and {} share readers and have different columns",
                                  activations_[other].name,
                                  activations_[activation].name));
        }
        return other;
      }
    }
    by_reader_[reader].push_back(activation);
    return activation;
  }

 private:
  const std::vector<Activation>& activations_;
  std::unordered_map<std::size_t, std::vector<std::size_t>> by_reader_;
};

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
  ReadColumns read(activations);
  for (std::size_t i = 0; i < activations.size(); ++i) {
    for (const std::size_t reader : activations[i].readers) {
      const std::size_t a = root_of(read.first(reader, i));
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
    const auto [found, is_new] = group_of_root.emplace(roots[i], groups.size());
    if (is_new) {
      groups.push_back(
          {activation.name, activation.columns.num_channels(), {}, "", activation.part});
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
