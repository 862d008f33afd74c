// What a job does, decided and refused before it works.

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/byte_size.h"
#include "base/error.h"
#include "pipeline/produce.h"
#include "pipeline/run.h"
#include "pipeline/search_chunks.h"
#include "plan/tensor_parallel.h"
#include "plan/tensor_scales.h"

namespace quantmill {
namespace {

// What any rank holds beside its workers' buffers: MPI, libraries, code.
constexpr std::uint64_t kBaseBytes = std::uint64_t{64} << 20;
// What a tensor takes at most while a job runs, in headers, plan, journal and manifest: measured by
// tests/bench/scaling.py; names are longer in some models than in others.
constexpr std::uint64_t kTensorBytes = 2600;
// What a task takes: in the plan, in sums over ranks, in the journal.
constexpr std::uint64_t kTaskBytes = 200;
// What a channel of a fold group takes: s in a table, in folds, in sums of the search and in a
// file.
constexpr std::uint64_t kChannelBytes = 24;

}  // namespace

bool searches_scales(const JobOptions& options) {
  return options.recipe.scaling != Scaling::kNone &&
         options.recipe.fold_scales != FoldScales::kOff && !options.compat_scales &&
         !options.scales;
}

bool uses_statistics(const JobOptions& options) {
  const Recipe& recipe = options.recipe;
  const bool weighs = recipe.scale_rule == ScaleRule::kMse;
  const bool wants_maxima =
      recipe.kv_cache != KvCache::kNone ||
      (takes_input_scales(recipe) && recipe.input_scales != InputScales::kNone);
  const bool feeds_back = recipe.rounding == Rounding::kGptq;
  const bool chooses = awaits_choice(recipe);
  return options.statistics &&
         (searches_scales(options) || weighs || wants_maxima || feeds_back || chooses);
}

Plan make_job_plan(const Checkpoint& checkpoint,
                   const Statistics& statistics,
                   const JobOptions& options) {
  return make_job_plan(
      checkpoint, statistics, options, model_architecture(checkpoint, options.recipe));
}

Plan make_job_plan(const Checkpoint& checkpoint,
                   const Statistics& statistics,
                   const JobOptions& options,
                   ResolvedArchitecture architecture) {
  Plan plan = searches_scales(options) || !statistics.empty()
                  ? make_plan(checkpoint, statistics, options.recipe, std::move(architecture))
                  : make_plan_without_search(checkpoint, options.recipe, std::move(architecture));
  if ((plan.recipe.input_scales == InputScales::kStatic || !plan.kv_scales.empty()) &&
      statistics.empty()) {
    throw Error(ErrorCode::kUsage,
                "--input-scales static and --kv-cache need activation statistics: give --stats "
                "FILE.h5 or --stats PREFIX (of PREFIX.tp0.pt …)");
  }
  return plan;
}

std::uint64_t model_bytes(const Checkpoint& checkpoint, const Plan& plan) {
  std::uint64_t bytes = kTensorBytes * std::max(checkpoint.tensors().size(), plan.tensors.size());
  bytes += kTaskBytes * (plan.write_tasks.size() + plan.search_tasks.size());
  for (const FoldGroup& group : plan.architecture.fold_groups) {
    bytes += kChannelBytes * group.num_channels;
  }
  if (plan.recipe.scaling == Scaling::kBlockGrid) {
    bytes += largest_wave_bytes(plan);
  }
  return bytes;
}

std::uint64_t statistics_bytes(const Statistics& statistics) {
  std::uint64_t values = 0;
  for (const auto& [name, input] : statistics) {
    values += input.absmean.size() + input.sqmean.size() + input.absmax.size();
  }
  return values * sizeof(double);
}

std::uint64_t worker_buffer_bytes(std::uint64_t memory_bytes,
                                  std::uint64_t held_bytes,
                                  int num_threads,
                                  std::uint64_t smallest_bytes,
                                  std::uint64_t largest_bytes) {
  const auto threads = static_cast<std::uint64_t>(num_threads);
  const std::uint64_t needed = kBaseBytes + held_bytes + threads * smallest_bytes;
  if (memory_bytes < needed) {
    throw Error(ErrorCode::kUsage,
                fmt::format("--memory {} is too little for {} threads on this model; {} is needed, "
                            "or fewer threads; {} of it are the model's tensors, statistics and "
                            "scales, whatever the threads",
                            format_size(memory_bytes),
                            num_threads,
                            format_size(needed),
                            format_size(held_bytes)));
  }
  // Half for rows as read and written, half for what is made of them.
  const std::uint64_t smallest = smallest_bytes / 2;
  return std::clamp((memory_bytes - kBaseBytes - held_bytes) / threads / 2,
                    smallest,
                    std::max(smallest, largest_bytes));
}

std::unique_ptr<FeedbackFactors> make_feedback(const JobOptions& options,
                                               const Plan& plan,
                                               const Statistics& statistics) {
  if (plan.recipe.rounding != Rounding::kGptq) {
    return nullptr;
  }
  if (!options.statistics) {
    throw Error(ErrorCode::kUsage,
                "--rounding gptq needs activation statistics with Gram matrices: give --stats "
                "FILE.h5, recorded with scripts/collect --gram");
  }
  return std::make_unique<FeedbackFactors>(plan, statistics, *options.statistics);
}

namespace {

// The factors of gptq are refused by their name.
void check_factors(std::uint64_t memory_bytes, std::uint64_t factor_bytes, int num_threads) {
  if (memory_bytes < factor_bytes) {
    throw Error(ErrorCode::kUsage,
                fmt::format("--memory {} is too little for --rounding gptq with {} threads on this "
                            "model: its factors take {}, and the job {} more",
                            format_size(memory_bytes),
                            num_threads,
                            format_size(factor_bytes),
                            format_size(kBaseBytes)));
  }
}

}  // namespace

std::uint64_t check_resources(const JobOptions& options,
                              const Checkpoint& checkpoint,
                              const Plan& plan,
                              const Statistics& statistics,
                              const FeedbackFactors* feedback,
                              int num_threads) {
  if (options.check_tensor_parallel != 0) {
    check_tensor_parallel(plan, options.check_tensor_parallel);
  }
  check_output_place(
      options.out, options.source, options.overwrite || options.start == StartMode::kResume);
  const int threads = std::max(1, num_threads);
  const std::uint64_t factor_bytes = feedback == nullptr ? 0 : feedback->needed_bytes(threads);
  check_factors(options.memory_bytes, factor_bytes, threads);
  const std::uint64_t buffer_bytes = worker_buffer_bytes(
      options.memory_bytes,
      factor_bytes + model_bytes(checkpoint, plan) + statistics_bytes(statistics),
      threads,
      RowProducer::smallest_buffer_bytes(plan),
      RowProducer::largest_buffer_bytes(plan));
  std::uint64_t needed = plan.output_bytes;
  for (const std::filesystem::path& name : checkpoint.other_files()) {
    needed += std::filesystem::file_size(checkpoint.folder() / name);
  }
  const std::filesystem::path parent = std::filesystem::absolute(options.out).parent_path();
  const std::uint64_t available = std::filesystem::space(parent).available;
  // An unfinished job that is resumed has its space already.
  if (available < needed && options.start != StartMode::kResume) {
    throw Error(
        ErrorCode::kIo,
        fmt::format(
            "the output needs {}, but {} has only {} left; make space or choose another place",
            format_size(needed),
            parent.string(),
            format_size(available)));
  }
  return buffer_bytes;
}

}  // namespace quantmill
