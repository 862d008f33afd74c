#include "plan/tensor_matcher.h"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/pattern.h"

namespace quantmill {

namespace {

// How many names, optional ones included, may be looked up for each tensor that is there, and at
// least. Beyond that the layer counts of config.json have nothing to do with the checkpoint, and
// looking would take for ever.
constexpr std::uint64_t kMaxNamesPerTensor = 100;
constexpr int kMaxConditionDepth = 32;  // conditions that name each other
constexpr std::uint64_t kMinNamesLimit = 100'000;

[[noreturn]] void fail(const std::string& message) {
  throw Error(ErrorCode::kInput, message);
}

std::string describe_shape(const std::vector<std::uint64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

bool is_layer(const std::string& index) {
  return index.ends_with("layer");
}

}  // namespace

bool is_range_of(const RowRange& rows, std::uint64_t num_rows) {
  if (rows.size == 0 || rows.groups == 0 || (rows.groups > 1 && rows.stride < rows.size)) {
    return false;
  }
  const std::optional<std::uint64_t> jump = checked_multiply(rows.groups - 1, rows.stride);
  const std::optional<std::uint64_t> last = jump ? checked_add(*jump, rows.start) : jump;
  return last && *last <= num_rows && rows.size <= num_rows - *last;
}

TensorMatcher::TensorMatcher(const ArchitectureFile& file,
                             const Parameters& parameters,
                             const std::vector<SourceWeight>& stored)
    : file_(file), parameters_(parameters), stored_(stored) {
  for (std::size_t i = 0; i < stored.size(); ++i) {
    by_stored_name_.emplace(stored[i].entry.name, i);
  }
  for (const auto& [index, spec] : file.indices) {
    Range& range = indices_[index];
    range.count = number(spec.count, {});
    range.start = spec.start.empty() ? 0 : number(spec.start, {});
    if (!checked_add(range.start, range.count)) {
      fail(fmt::format("index {}: does not fit 64 bits", index));
    }
  }
  matches_.resize(stored.size());
}

void TensorMatcher::match() {
  find_variants();
  for (const TensorSpec& spec : file_.tensors) {
    match_entry(spec, entries_.emplace_back(EntryMatches{spec.name, 0, 0}));
  }
  describe_all();
}

std::vector<std::string> TensorMatcher::present_variants() const {
  std::vector<std::string> names;
  for (const auto& [name, is_present] : variants_) {
    if (is_present) {
      names.push_back(name);
    }
  }
  return names;
}

std::optional<std::size_t> TensorMatcher::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? std::nullopt : std::optional(found->second);
}

Value TensorMatcher::value_of(const std::string& name, const Binding& binding) const {
  for (const auto& [placeholder, value] : binding) {
    if (placeholder == name) {
      ++num_variable_;
      return Value::of(value);
    }
  }
  if (const auto variant = variants_.find(name); variant != variants_.end()) {
    ++num_variable_;
    return Value::of_truth(variant->second);
  }
  if (const auto condition = file_.conditions.find(name); condition != file_.conditions.end()) {
    if (++condition_depth_ > kMaxConditionDepth) {
      fail(fmt::format("the condition {} needs itself", name));
    }
    Value value = Value::of_truth(holds(condition->second, binding));
    --condition_depth_;
    return value;
  }
  return parameter_value(parameters_, name);
}

std::uint64_t TensorMatcher::number(const std::string& expression, const Binding& binding) const {
  if (const auto known = constants_.find(expression); known != constants_.end()) {
    return known->second;
  }
  const std::uint64_t variable_before = num_variable_;
  const std::uint64_t value =
      evaluate_number(expression, [&](const std::string& name) { return value_of(name, binding); });
  if (num_variable_ == variable_before) {
    constants_.emplace(expression, value);
  }
  return value;
}

bool TensorMatcher::holds(const std::string& condition, const Binding& binding) const {
  return condition.empty() || number(condition, binding) != 0;
}

void TensorMatcher::count_name() {
  if (++num_names_ > std::max(kMinNamesLimit, kMaxNamesPerTensor * stored_.size())) {
    fail(
        fmt::format("{} tensors are there, and {} names follow from config.json and the "
                    "architecture so far; layer counts must be wrong",
                    stored_.size(),
                    num_names_));
  }
}

std::optional<std::size_t> TensorMatcher::find_stored(const TensorSpec& spec,
                                                      const Binding& binding) const {
  const auto look_up = [&](const std::string& pattern) -> std::optional<std::size_t> {
    const std::string name = substitute(pattern, binding);
    if (const auto found = by_stored_name_.find(name); found != by_stored_name_.end()) {
      return found->second;
    }
    for (const std::string& prefix : file_.prefixes) {
      if (const auto found = by_stored_name_.find(prefix + name); found != by_stored_name_.end()) {
        return found->second;
      }
    }
    return std::nullopt;
  };
  if (const auto found = look_up(spec.name)) {
    return found;
  }
  for (const std::string& alias : spec.aliases) {
    if (const auto found = look_up(alias)) {
      return found;
    }
  }
  return std::nullopt;
}

// A variant is there if any of its tensors is; then match_entry wants all of them.
void TensorMatcher::find_variants() {
  for (const TensorSpec& spec : file_.tensors) {
    if (spec.variant.empty() || variants_[spec.variant]) {
      continue;
    }
    bool is_present = false;
    for_each_binding(placeholders(spec.name), {}, [&](const Binding& binding) {
      is_present = is_present || find_stored(spec, binding).has_value();
    });
    variants_[spec.variant] = is_present;
  }
  for (const std::vector<std::string>& choice : file_.one_of) {
    std::vector<std::string> present;
    for (const std::string& variant : choice) {
      if (!variants_.contains(variant)) {
        fail(fmt::format("\"one_of\": no tensor has the variant {}", variant));
      }
      if (variants_.at(variant)) {
        present.push_back(variant);
      }
    }
    if (present.size() > 1 || (present.empty() && is_called_for(choice))) {
      fail(fmt::format(
          "the checkpoint must have tensors of one of the variants {}, and has {}",
          fmt::join(choice, ", "),
          present.empty() ? "none of them" : fmt::format("{}", fmt::join(present, " and "))));
    }
  }
}

bool TensorMatcher::is_called_for(const std::vector<std::string>& variants) {
  bool is_called = false;
  for (const TensorSpec& spec : file_.tensors) {
    if (std::ranges::find(variants, spec.variant) == variants.end()) {
      continue;
    }
    for_each_binding(placeholders(spec.name), {}, [&](const Binding& binding) {
      is_called = is_called || holds(spec.condition, binding);
    });
  }
  return is_called;
}

void TensorMatcher::match_entry(const TensorSpec& spec, EntryMatches& counts) {
  if (!spec.variant.empty() && !variants_.at(spec.variant)) {
    return;
  }
  for_each_binding(placeholders(spec.name), {}, [&](const Binding& binding) {
    if (!holds(spec.condition, binding)) {
      ++counts.num_absent;
      return;
    }
    const std::optional<std::size_t> stored = find_stored(spec, binding);
    if (!stored) {
      if (!spec.optional) {
        fail(fmt::format("tensor {} is missing from the checkpoint{}",
                         substitute(spec.name, binding),
                         layers_hint(binding)));
      }
      ++counts.num_absent;
      return;
    }
    Match& match = matches_[*stored];
    if (match.spec != nullptr) {
      fail(fmt::format("two entries of \"tensors\" stand for {}", stored_[*stored].entry.name));
    }
    match = {&spec, binding, "", ""};
    check_shape(match, stored_[*stored].entry);
    ++counts.num_found;
  });
}

std::string TensorMatcher::layers_hint(const Binding& binding) const {
  for (const auto& [index, value] : binding) {
    if (is_layer(index)) {
      return fmt::format(" (config.json states {} layers)", indices_.at(index).count);
    }
  }
  return "";
}

void TensorMatcher::check_shape(const Match& match, const TensorEntry& entry) const {
  const TensorSpec& spec = *match.spec;
  const std::size_t wanted_dimensions = spec.slices.empty() ? 2 : 3;
  if (spec.role == TensorRole::kLinear && entry.shape.size() != wanted_dimensions) {
    fail(fmt::format("tensor {} has shape {}, wanted {}",
                     entry.name,
                     describe_shape(entry.shape),
                     spec.slices.empty() ? "a matrix [out, in]" : "matrices [slices, rows, cols]"));
  }
  if (spec.role == TensorRole::kLinear && entry.num_elements() == 0) {
    fail(fmt::format(
        "tensor {} has shape {}, no elements", entry.name, describe_shape(entry.shape)));
  }
  if (spec.shape) {
    const std::vector<std::uint64_t> wanted = wanted_shape(match, entry);
    if (wanted != entry.shape) {
      fail(fmt::format("tensor {} has shape {}, wanted {} = [{}] by config.json",
                       entry.name,
                       describe_shape(entry.shape),
                       describe_shape(wanted),
                       fmt::join(*spec.shape, ", ")));
    }
  }
  if (!spec.slices.empty() &&
      (entry.shape.empty() || entry.shape[0] != indices_.at(spec.slices).count)) {
    fail(fmt::format("tensor {} has shape {}, wanted {} slices",
                     entry.name,
                     describe_shape(entry.shape),
                     indices_.at(spec.slices).count));
  }
}

std::vector<std::uint64_t> TensorMatcher::wanted_shape(const Match& match,
                                                       const TensorEntry& entry) const {
  std::vector<std::uint64_t> wanted;
  for (const std::string& expression : *match.spec->shape) {
    wanted.push_back(with_context(fmt::format("shape of tensor {}", entry.name),
                                  [&] { return number(expression, match.binding); }));
  }
  return wanted;
}

void TensorMatcher::describe_all() {
  const CopiedParts copied = copied_parts();
  tensors_.reserve(stored_.size());
  for (std::size_t stored = 0; stored < stored_.size(); ++stored) {
    if (matches_[stored].spec == nullptr) {
      describe_unmatched(copied, stored);
    } else {
      const Match match =
          std::move(matches_[stored]);  // whose memory is then free for what follows
      add(match, stored, describe(match, stored));
    }
  }
}

void TensorMatcher::add(const Match& match, std::size_t stored, ModelTensor whole) {
  if (match.spec != nullptr && !match.spec->slices.empty()) {
    add_slices(match, stored, whole);
    return;
  }
  if (match.spec != nullptr) {
    by_name_.emplace(match.name_of(match.spec->name), tensors_.size());
  }
  tensors_.push_back(std::move(whole));
}

ModelTensor TensorMatcher::describe(const Match& match, std::size_t stored) const {
  const TensorEntry& entry = stored_[stored].entry;
  ModelTensor tensor;
  tensor.name = entry.name;
  tensor.stored = stored;
  tensor.shape = entry.shape;
  if (match.spec == nullptr) {
    return tensor;
  }
  const TensorSpec& spec = *match.spec;
  tensor.role = spec.role;
  tensor.transposed = spec.transposed;
  tensor.quantizable = spec.quantizable;
  tensor.replicated = spec.replicated;
  tensor.part = match.part.empty() ? spec.part : SharedText(match.part);
  tensor.fused_group = spec.fused_group.empty() ? "" : match.name_of(spec.fused_group);
  tensor.exclude_all = spec.exclude_all;
  tensor.exclude_layers = spec.exclude_layers;
  for (const auto& [index, value] : match.binding) {
    if (is_layer(index)) {
      tensor.layer = value;
    }
  }
  return tensor;
}

void TensorMatcher::add_slices(const Match& match, std::size_t stored, const ModelTensor& whole) {
  const std::string name = match.name_of(match.spec->name);
  // What stands before the architecture's name in the checkpoint stands before written ones too.
  const std::string& stored_name = stored_[stored].entry.name;
  const std::string prefix =
      stored_name.ends_with(name) ? stored_name.substr(0, stored_name.size() - name.size()) : "";
  for (std::uint64_t slice = 0; slice < whole.shape[0]; ++slice) {
    count_name();
    ModelTensor tensor = whole;
    tensor.name += fmt::format("[{}]", slice);
    tensor.slice = slice;
    tensor.shape.erase(tensor.shape.begin());
    Match own = match;
    own.binding.emplace_back(match.spec->slices, slice);
    if (!own.spec->fused_group.empty()) {
      tensor.fused_group = own.name_of(own.spec->fused_group);
    }
    for (const WrittenSpec& written : match.spec->written_as) {
      const RowRange rows = range_of(written.rows, own.binding);
      if (!is_range_of(rows, tensor.out_features())) {
        fail(fmt::format("tensor {}: the rows of \"written_as\" {} are not among its {}",
                         tensor.name,
                         written.name,
                         tensor.out_features()));
      }
      tensor.written_as.push_back({prefix + own.name_of(written.name), rows});
    }
    by_name_.emplace(fmt::format("{}[{}]", name, slice), tensors_.size());
    tensors_.push_back(std::move(tensor));
  }
}

RowRange TensorMatcher::range_of(const RangeSpec& spec, const Binding& binding) const {
  return evaluate_range(spec,
                        [&](const std::string& expression) { return number(expression, binding); });
}

}  // namespace quantmill
