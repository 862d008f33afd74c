#include "plan/tensor_parallel.h"

#include <algorithm>
#include <set>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"

namespace quantmill {

namespace {

constexpr std::uint64_t kMostRanks = 64;
constexpr std::size_t kProblemsTold = 3;

std::vector<bool> cut_by_columns(const Plan& plan) {
  std::vector<bool> is_cut(plan.architecture.tensors.size(), false);
  for (const Activation& activation : plan.architecture.activations) {
    for (const std::size_t reader : activation.readers) {
      is_cut[reader] = is_cut[reader] || activation.split_over_ranks;
    }
  }
  return is_cut;
}

}  // namespace

std::vector<std::string> tensor_parallel_problems(const Plan& plan, std::uint64_t ranks) {
  std::vector<std::string> problems;
  if (ranks <= 1) {
    return problems;
  }
  const std::vector<bool> by_columns = cut_by_columns(plan);
  std::set<std::tuple<bool, std::uint64_t, Scheme>> told;
  for (const TensorWork& work : plan.tensors) {
    const ModelTensor& tensor = plan.architecture.tensors[work.tensor];
    // Copied parts repeat what the model's own layers have.
    if (!work.is_quantized() || tensor.replicated || !tensor.copied_by.empty()) {
      continue;
    }
    const bool columns = by_columns[work.tensor];
    const std::uint64_t size = columns ? work.cols : work.rows;
    const std::uint64_t block =
        columns ? std::max(columns_together(work.scheme), rows_together(work.scheme))
                : rows_together(work.scheme);
    if ((size % ranks != 0 || size / ranks % block != 0) &&
        told.emplace(columns, size, work.scheme).second) {
      problems.push_back(fmt::format("{}: {} {} in {} parts are not whole blocks of {} ({})",
                                     work.name,
                                     size,
                                     columns ? "columns" : "rows",
                                     ranks,
                                     block,
                                     scheme_name(work.scheme)));
    }
  }
  return problems;
}

std::vector<std::uint64_t> tensor_parallel_degrees(const Plan& plan) {
  std::vector<std::uint64_t> degrees;
  for (std::uint64_t ranks = 1; ranks <= kMostRanks; ranks *= 2) {
    if (tensor_parallel_problems(plan, ranks).empty()) {
      degrees.push_back(ranks);
    }
  }
  return degrees;
}

void check_tensor_parallel(const Plan& plan, std::uint64_t ranks) {
  std::vector<std::string> problems = tensor_parallel_problems(plan, ranks);
  if (problems.empty()) {
    return;
  }
  const std::size_t others = problems.size() - std::min(problems.size(), kProblemsTold);
  problems.resize(problems.size() - others);
  throw Error(ErrorCode::kInput,
              fmt::format("--check-tp {}: {}{}; possible are {}. Servers can use those, or leave "
                          "these weights as they are with --keep or give them another scheme with "
                          "--scheme-for",
                          ranks,
                          fmt::join(problems, "; "),
                          others == 0 ? "" : fmt::format("; and {} more kinds", others),
                          fmt::join(tensor_parallel_degrees(plan), ", ")));
}

}  // namespace quantmill
