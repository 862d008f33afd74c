#include "plan/column_importance.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"

namespace quantmill {
namespace {

constexpr double kSmallestShare = 1e-6;  // of the mean of E[x^2]

// E[x^2], or what stands for it.
std::vector<double> squares_of(const InputStatistics& input) {
  std::vector<double> squares = input.sqmean;
  if (squares.empty()) {
    for (const double mean : input.absmean) {
      squares.push_back(mean * mean);
    }
  }
  const double mean = std::accumulate(squares.begin(), squares.end(), 0.0) /
                      static_cast<double>(std::max<std::size_t>(1, squares.size()));
  for (double& square : squares) {
    square = std::max(square, kSmallestShare * mean);
  }
  return squares;
}

}  // namespace

bool counts_tokens(const Statistics& statistics) {
  return std::ranges::all_of(statistics,
                             [](const auto& record) { return record.second.has_count; });
}

ImportanceTable make_importance(const ResolvedArchitecture& architecture,
                                const Statistics& statistics,
                                std::uint64_t min_tokens) {
  const bool all_counted = counts_tokens(statistics);
  ImportanceTable table;
  for (const Activation& activation : architecture.activations) {
    const auto record = statistics.find(activation.statistics);
    if (activation.statistics.empty() || record == statistics.end()) {
      continue;
    }
    const InputStatistics& input = record->second;
    if (input.has_count && (input.count == 0 || input.count < min_tokens)) {
      continue;
    }
    if (input.absmean.size() != activation.reader_columns) {
      throw Error(ErrorCode::kInput,
                  fmt::format("the statistics of '{}' have {} channels, but the weights that read "
                              "it have {} columns; they are of another model",
                              activation.statistics,
                              input.absmean.size(),
                              activation.reader_columns));
    }
    const std::vector<double> squares = squares_of(input);
    const double tokens = all_counted ? static_cast<double>(input.count) : 1;
    std::vector<float> importance;
    for (std::size_t c = activation.columns.start; c < activation.columns.end(); ++c) {
      importance.push_back(static_cast<float>(std::sqrt(tokens * squares[c])));
    }
    if (std::ranges::all_of(importance, [](float value) { return value > 0; })) {
      table[activation.name] = std::move(importance);
    }
  }
  return table;
}

ColumnImportance::ColumnImportance(const ResolvedArchitecture& architecture, ImportanceTable table)
    : architecture_(&architecture),
      table_(std::move(table)),
      activations_of_(architecture.tensors.size()) {
  std::size_t known = 0;
  for (std::size_t index = 0; index < architecture.activations.size(); ++index) {
    const Activation& activation = architecture.activations[index];
    const auto found = table_.find(activation.name);
    if (found == table_.end()) {
      continue;
    }
    ++known;
    if (found->second.size() != activation.columns.num_columns()) {
      throw Error(ErrorCode::kInput,
                  fmt::format("the importance of '{}' has {} columns, but its readers have {} "
                              "there; it is of another model",
                              activation.name,
                              found->second.size(),
                              activation.columns.num_columns()));
    }
    for (const std::size_t reader : activation.readers) {
      activations_of_[reader].push_back(index);
    }
  }
  if (known != table_.size()) {
    throw Error(ErrorCode::kInput,
                fmt::format("the importance of columns is known for {} activations, of which the "
                            "model has only {}; it is of another model",
                            table_.size(),
                            known));
  }
}

std::vector<float> ColumnImportance::of(std::size_t tensor) const {
  if (activations_of_[tensor].empty()) {
    return {};
  }
  std::vector<double> squares(architecture_->tensors[tensor].in_features(), 0.0);
  for (const std::size_t index : activations_of_[tensor]) {
    const Activation& activation = architecture_->activations[index];
    const std::vector<float>& values = table_.at(activation.name);
    for (std::size_t i = 0; i < values.size(); ++i) {
      squares[activation.columns.start + i] += double{values[i]} * double{values[i]};
    }
  }
  std::vector<float> importance;
  importance.reserve(squares.size());
  for (const double square : squares) {
    importance.push_back(square == 0 ? 1.0F : static_cast<float>(std::sqrt(square)));
  }
  return importance;
}

}  // namespace quantmill
