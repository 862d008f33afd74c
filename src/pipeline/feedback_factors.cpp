#include "pipeline/feedback_factors.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "base/error.h"
#include "base/hash.h"

namespace quantmill {
namespace {

constexpr std::size_t kMostKept = 2;  // beside those that are in use

// Adds the moments of one activation, of inputs that are divided by `factors` where these are.
void add_moments(const LowerTriangle& gram,
                 const ColumnMap& columns,
                 const std::vector<float>& factors,
                 double weight,
                 std::size_t num_columns,
                 std::vector<double>& sum) {
  const auto divisor = [&](std::size_t column) {
    return factors.empty() ? 1.0 : double{factors[column]};
  };
  for (std::size_t row = columns.start; row < columns.end(); ++row) {
    const std::size_t line = row * (row + 1) / 2;
    for (std::size_t col = columns.start; col <= row; ++col) {
      sum[row * num_columns + col] +=
          weight * double{gram[line + col]} / (divisor(row) * divisor(col));
    }
  }
}

GramFile open_grams(const std::filesystem::path& file) {
  if (!std::filesystem::is_regular_file(file)) {
    throw Error(
        ErrorCode::kUsage,
        fmt::format("--rounding gptq: Gram matrices are in HDF5 files only, and {} is none; "
                    "record statistics with scripts/collect --gram",
                    file.string()));
  }
  return GramFile(file);
}

}  // namespace

FeedbackFactors::FeedbackFactors(const Plan& plan,
                                 const Statistics& statistics,
                                 const std::filesystem::path& file)
    : plan_(plan),
      statistics_(statistics),
      activations_of_(plan.architecture.tensors.size()),
      file_(open_grams(file)) {
  for (std::size_t index = 0; index < plan.architecture.activations.size(); ++index) {
    for (const std::size_t reader : plan.architecture.activations[index].readers) {
      activations_of_[reader].push_back(index);
    }
  }
  for (std::size_t tensor = 0; tensor < activations_of_.size(); ++tensor) {
    is_known_.push_back(knows_inputs(tensor));
  }
  if (std::ranges::none_of(plan.tensors, [&](const TensorWork& work) { return takes(work); })) {
    throw Error(ErrorCode::kInput,
                fmt::format("--rounding gptq: {} has no Gram matrix of what the quantized weights "
                            "read; record statistics with scripts/collect --gram",
                            file.string()));
  }
}

bool FeedbackFactors::takes(const TensorWork& work) const {
  // Codes with a scale of the whole tensor are rounded anew after all where what is fused differs.
  const bool is_carried = work.copies_codes && !has_tensor_scale(work.scheme);
  return work.is_quantized() && !is_carried && takes_feedback(work.scheme) &&
         is_known_[work.tensor];
}

// Whether every column is of an activation whose moments are known.
bool FeedbackFactors::knows_inputs(std::size_t tensor) const {
  if (activations_of_[tensor].empty()) {
    return false;
  }
  std::vector<bool> known(plan_.architecture.tensors[tensor].in_features(), false);
  for (const std::size_t index : activations_of_[tensor]) {
    const Activation& activation = plan_.architecture.activations[index];
    const auto record = statistics_.find(activation.statistics);
    if (record == statistics_.end() || record->second.gram_tokens == 0) {
      return false;
    }
    std::fill(known.begin() + static_cast<std::ptrdiff_t>(activation.columns.start),
              known.begin() + static_cast<std::ptrdiff_t>(activation.columns.end()),
              true);
  }
  return std::ranges::all_of(known, [](bool is_known) { return is_known; });
}

std::vector<std::size_t> FeedbackFactors::key(const TensorWork& work) const {
  return takes(work) ? activations_of_[work.tensor] : std::vector<std::size_t>();
}

std::shared_ptr<const ErrorFeedback> FeedbackFactors::of(const TensorWork& work,
                                                         const std::vector<ActivationFold>& folds) {
  const std::vector<std::size_t>& wanted = activations_of_[work.tensor];
  const std::lock_guard lock(mutex_);
  const auto found =
      std::ranges::find_if(kept_, [&](const auto& entry) { return entry.first == wanted; });
  if (found != kept_.end()) {
    return found->second;
  }
  if (kept_.size() >= kMostKept) {
    kept_.pop_back();
  }
  kept_.emplace_front(wanted, make(work, folds));
  return kept_.front().second;
}

std::shared_ptr<const ErrorFeedback> FeedbackFactors::make(
    const TensorWork& work, const std::vector<ActivationFold>& folds) const {
  const std::size_t columns = plan_.architecture.tensors[work.tensor].in_features();
  const std::vector<float> factors = factors_of(plan_, folds, work.tensor).columns;
  std::vector<double> moments(columns * columns, 0.0);
  std::uint64_t tokens = 0;
  for (const std::size_t index : activations_of_[work.tensor]) {
    const Activation& activation = plan_.architecture.activations[index];
    const std::uint64_t seen = statistics_.at(activation.statistics).gram_tokens;
    add_moments(file_.read(activation.statistics, activation.reader_columns),
                activation.columns,
                factors,
                static_cast<double>(seen),
                columns,
                moments);
    tokens = std::max(tokens, seen);
  }
  std::optional<ErrorFeedback> feedback = make_error_feedback(moments, columns, tokens);
  return feedback ? std::make_shared<const ErrorFeedback>(std::move(*feedback)) : nullptr;
}

std::string FeedbackFactors::hash() const {
  std::set<std::size_t> wanted;
  for (const TensorWork& work : plan_.tensors) {
    if (takes(work)) {
      wanted.insert(activations_of_[work.tensor].begin(), activations_of_[work.tensor].end());
    }
  }
  std::string samples;
  for (const std::size_t index : wanted) {
    const Activation& activation = plan_.architecture.activations[index];
    const LowerTriangle sample = file_.sample(activation.statistics, activation.reader_columns);
    samples.append(reinterpret_cast<const char*>(sample.data()), sample.size() * sizeof(float));
  }
  return hash_text(samples);
}

std::uint64_t FeedbackFactors::needed_bytes(int num_threads) const {
  std::uint64_t widest = 0;
  for (const TensorWork& work : plan_.tensors) {
    if (takes(work)) {
      widest = std::max<std::uint64_t>(widest, work.cols);
    }
  }
  const auto used = static_cast<std::uint64_t>(num_threads) + kMostKept;
  return widest * widest * (2 * sizeof(double) + sizeof(float) / 2 + used * sizeof(float));
}

std::string FeedbackFactors::describe() const {
  const auto quantized = std::ranges::count_if(plan_.tensors, &TensorWork::is_quantized);
  const auto taking =
      std::ranges::count_if(plan_.tensors, [&](const TensorWork& work) { return takes(work); });
  return fmt::format("gptq: {} of {} quantized tensors{}",
                     taking,
                     quantized,
                     taking < quantized
                         ? "; the others, without a Gram matrix of their input or in a scheme that "
                           "gains nothing, are rounded to the nearest"
                         : "");
}

}  // namespace quantmill
