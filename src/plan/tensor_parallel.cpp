#include "plan/tensor_parallel.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

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

std::string parent_of(const std::string& module) {
  return module.substr(0, module.find_last_of('.') + 1);
}

// Readers of an activation that are fused, by what servers call the whole: in the order in which
// they stack them.
std::map<std::string, std::vector<std::size_t>> fused_readers(const ResolvedArchitecture& model,
                                                              const Activation& activation) {
  std::map<std::string, std::vector<std::size_t>> fused;
  for (const std::size_t reader : activation.readers) {
    const ModelTensor& tensor = model.tensors[reader];
    if (!tensor.fused_group.empty() && !tensor.slice) {
      fused[parent_of(tensor.module()) + " " + tensor.fused_group].push_back(reader);
    }
  }
  return fused;
}

}  // namespace

std::vector<std::string> fusion_problems(const Plan& plan) {
  std::vector<const TensorWork*> work_of(plan.architecture.tensors.size(), nullptr);
  for (const TensorWork& work : plan.tensors) {
    if (work.is_quantized()) {
      work_of[work.tensor] = &work;
    }
  }
  std::vector<std::string> problems;
  std::set<std::pair<std::uint64_t, Scheme>> told;
  for (const Activation& activation : plan.architecture.activations) {
    for (const auto& [_, readers] : fused_readers(plan.architecture, activation)) {
      for (std::size_t i = 0; i + 1 < readers.size(); ++i) {
        const TensorWork* const work = work_of[readers[i]];
        if (work != nullptr && work->rows % rows_together(work->scheme) != 0 &&
            told.emplace(work->rows, work->scheme).second) {
          problems.push_back(
              fmt::format("{}: {} rows, under which servers put another weight ({}), are not whole "
                          "blocks of {} ({})",
                          work->name,
                          work->rows,
                          plan.architecture.tensors[readers[i]].fused_group,
                          rows_together(work->scheme),
                          scheme_name(work->scheme)));
        }
      }
    }
  }
  return problems;
}

void note_fusion_problems(Plan& plan) {
  for (const std::string& problem : fusion_problems(plan)) {
    plan.notices.push_back(problem +
                           "; servers refuse that or take wrong scales for some rows. Leave the "
                           "weights as they are with --keep or give them another scheme with "
                           "--scheme-for");
  }
}

std::vector<std::string> tensor_parallel_problems(const Plan& plan, std::uint64_t ranks) {
  std::vector<std::string> problems = fusion_problems(plan);
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
  const std::vector<std::uint64_t> degrees = tensor_parallel_degrees(plan);
  throw Error(
      ErrorCode::kInput,
      fmt::format("--check-tp {}: {}{}; possible {}. Servers can use those, or leave "
                  "these weights as they are with --keep or give them another scheme with "
                  "--scheme-for",
                  ranks,
                  fmt::join(problems, "; "),
                  others == 0 ? "" : fmt::format("; and {} more kinds", others),
                  degrees.empty() ? "is none" : fmt::format("are {}", fmt::join(degrees, ", "))));
}

}  // namespace quantmill
