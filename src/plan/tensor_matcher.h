#pragma once

// Which stored tensor is which of an architecture file's: the first half of resolving an
// architecture. The second, activations, is resolve.cpp. Private to the plan module.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "plan/architecture.h"
#include "plan/architecture_file.h"
#include "plan/copied_parts.h"
#include "plan/parameters.h"
#include "plan/placeholders.h"
#include "plan/source_weights.h"

namespace quantmill {

// Everything by kInput: what resolve_architecture says of tensors.
class TensorMatcher {
 public:
  // The arguments must outlive it.
  TensorMatcher(const ArchitectureFile& file,
                const Parameters& parameters,
                const std::vector<SourceWeight>& stored);

  // Finds variants and matches every entry; then the results below are there.
  void match();

  [[nodiscard]] std::vector<ModelTensor>& tensors() { return tensors_; }

  [[nodiscard]] std::vector<EntryMatches>& entries() { return entries_; }

  // Names, in the checkpoint's order.
  [[nodiscard]] const std::vector<std::string>& copied() const { return copied_; }

  [[nodiscard]] const std::vector<std::string>& unknown() const { return unknown_; }

  [[nodiscard]] std::vector<std::string> present_variants() const;

  // Layers of parts that some tensor is in, each once, in the checkpoint's order.
  [[nodiscard]] const std::vector<PlaceInPart>& part_layers() const { return part_layers_; }

  // Index of the tensor with this name of the architecture, or nothing if it is not there. Tensors
  // in layers of parts are called as the model's own, after what leads to theirs: "mtp.layers.0.x".
  [[nodiscard]] std::optional<std::size_t> find(const std::string& name) const;

  // The value of an expression where placeholders have these values.
  [[nodiscard]] std::uint64_t number(const std::string& expression, const Binding& binding) const;
  // Of no text: true.
  [[nodiscard]] bool holds(const std::string& condition, const Binding& binding) const;

  // Calls `body` with every combination of the indices that `fixed` does not bind; the last one
  // runs fastest.
  template <typename Body>
  void for_each_binding(const std::vector<std::string>& indices, const Binding& fixed, Body&& body);

 private:
  // A stored tensor that an entry describes.
  struct Match {
    const TensorSpec* spec = nullptr;
    Binding binding;
    std::string lead;  // what comes before the entry's names ("mtp."): only in layers of parts
    std::string part;  // not empty: of such a layer

    // A name of the entry, filled in.
    [[nodiscard]] std::string name_of(const std::string& pattern) const {
      return lead + substitute(pattern, binding);
    }
  };

  [[nodiscard]] Value value_of(const std::string& name, const Binding& binding) const;
  [[nodiscard]] std::optional<std::size_t> find_stored(const TensorSpec& spec,
                                                       const Binding& binding) const;
  [[nodiscard]] std::string layers_hint(const Binding& binding) const;
  void count_name();
  void find_variants();
  // Whether any tensor of these variants is one that the checkpoint must have, by its condition.
  bool is_called_for(const std::vector<std::string>& variants);
  void match_entry(const TensorSpec& spec, EntryMatches& counts);
  void describe_all();
  [[nodiscard]] ModelTensor describe(const Match& match, std::size_t stored) const;
  void check_shape(const Match& match, const TensorEntry& entry) const;
  // Of an entry that states it.
  [[nodiscard]] std::vector<std::uint64_t> wanted_shape(const Match& match,
                                                        const TensorEntry& entry) const;
  // Whether check_shape would find nothing wrong.
  [[nodiscard]] bool has_shape(const Match& match, const TensorEntry& entry) const;
  void describe_unmatched(const CopiedParts& copied, std::size_t stored);
  // The entry of the model's own layers that describes a tensor of a part's layer.
  [[nodiscard]] Match match_in_part(const PlaceInPart& place, const TensorEntry& entry);
  void add(const Match& match, std::size_t stored, ModelTensor whole);
  void add_slices(const Match& match, std::size_t stored, const ModelTensor& whole);
  [[nodiscard]] RowRange range_of(const RangeSpec& spec, const Binding& binding) const;
  // Without placeholders.
  [[nodiscard]] std::vector<std::string> filled(const std::vector<std::string>& patterns);
  [[nodiscard]] CopiedParts copied_parts();

  const ArchitectureFile& file_;
  const Parameters& parameters_;
  const std::vector<SourceWeight>& stored_;

  // Of an index.
  struct Range {
    std::uint64_t start = 0;
    std::uint64_t count = 0;
  };

  std::map<std::string, Range> indices_;
  std::map<std::string, bool> variants_;
  std::unordered_map<std::string_view, std::size_t> by_stored_name_;
  std::vector<Match> matches_;  // one per stored tensor
  std::vector<ModelTensor> tensors_;
  std::unordered_map<std::string, std::size_t> by_name_;  // name in the architecture
  std::vector<EntryMatches> entries_;
  std::vector<std::string> copied_;
  std::vector<std::string> unknown_;
  std::vector<PlaceInPart> part_layers_;
  // What follows "{layer}" in entries' names -> the first such entry, all but the layer bound.
  std::optional<std::unordered_map<std::string, Match>> by_rest_;
  std::uint64_t num_names_ = 0;
  mutable int condition_depth_ = 0;
  // Values of expressions of parameters alone: tensors by the ten thousand have the same shape.
  mutable std::unordered_map<std::string, std::uint64_t> constants_;
  mutable std::uint64_t num_variable_ = 0;  // placeholders and variants that were looked up
};

// Whether each of the rows is one of `num_rows` and none is taken twice.
bool is_range_of(const RowRange& rows, std::uint64_t num_rows);

// RowRange of a spec; expressions by `number`.
template <typename Number>
RowRange evaluate_range(const RangeSpec& spec, Number&& number) {
  RowRange range;
  range.size = number(spec.size);
  range.start = spec.start.empty() ? 0 : number(spec.start);
  range.groups = spec.groups.empty() ? 1 : number(spec.groups);
  range.stride = spec.stride.empty() ? range.size : number(spec.stride);
  return range;
}

template <typename Body>
void TensorMatcher::for_each_binding(const std::vector<std::string>& indices,
                                     const Binding& fixed,
                                     Body&& body) {
  Binding binding = fixed;
  std::vector<Range> ranges;
  for (const std::string& index : indices) {
    bool bound = false;
    for (const auto& entry : fixed) {
      bound = bound || entry.first == index;
    }
    if (!bound) {
      ranges.push_back(indices_.at(index));
      binding.emplace_back(index, ranges.back().start);
      if (ranges.back().count == 0) {
        return;
      }
    }
  }
  while (true) {
    count_name();
    body(std::as_const(binding));
    std::size_t i = ranges.size();
    while (i > 0) {
      const Range& range = ranges[i - 1];
      std::uint64_t& value = binding[fixed.size() + i - 1].second;
      if (++value != range.start + range.count) {
        break;
      }
      value = range.start;
      --i;
    }
    if (i == 0) {
      return;
    }
  }
}

}  // namespace quantmill
