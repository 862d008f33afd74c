// What a job does, decided and refused before it works.

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/byte_size.h"
#include "base/error.h"
#include "pipeline/produce.h"
#include "pipeline/run.h"
#include "plan/tensor_parallel.h"
#include "plan/tensor_scales.h"

namespace quantmill {
namespace {

// What a rank holds beside its workers' buffers: MPI, headers, statistics, code.
constexpr std::uint64_t kBaseBytes = std::uint64_t{64} << 20;

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

std::uint64_t worker_buffer_bytes(std::uint64_t memory_bytes,
                                  int num_threads,
                                  std::uint64_t smallest_bytes,
                                  std::uint64_t largest_bytes) {
  const auto threads = static_cast<std::uint64_t>(num_threads);
  const std::uint64_t needed = kBaseBytes + threads * smallest_bytes;
  if (memory_bytes < needed) {
    throw Error(ErrorCode::kUsage,
                fmt::format("--memory {} is too little for {} threads on this model; {} is needed, "
                            "or fewer threads",
                            format_size(memory_bytes),
                            num_threads,
                            format_size(needed)));
  }
  // Half for rows as read and written, half for what is made of them.
  const std::uint64_t smallest = smallest_bytes / 2;
  return std::clamp(
      (memory_bytes - kBaseBytes) / threads / 2, smallest, std::max(smallest, largest_bytes));
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

// What is left of --memory for buffers.
std::uint64_t memory_beside(const FeedbackFactors* feedback,
                            std::uint64_t memory_bytes,
                            int num_threads) {
  const std::uint64_t needed = feedback == nullptr ? 0 : feedback->needed_bytes(num_threads);
  if (memory_bytes < needed) {
    throw Error(ErrorCode::kUsage,
                fmt::format("--memory {} is too little for --rounding gptq with {} threads on this "
                            "model: its factors take {}, and the job {} more",
                            format_size(memory_bytes),
                            num_threads,
                            format_size(needed),
                            format_size(kBaseBytes)));
  }
  return memory_bytes - needed;
}

}  // namespace

std::uint64_t check_resources(const JobOptions& options,
                              const Checkpoint& checkpoint,
                              const Plan& plan,
                              const FeedbackFactors* feedback,
                              int num_threads) {
  if (options.check_tensor_parallel != 0) {
    check_tensor_parallel(plan, options.check_tensor_parallel);
  }
  check_output_place(
      options.out, options.source, options.overwrite || options.start == StartMode::kResume);
  const std::uint64_t buffer_bytes =
      worker_buffer_bytes(memory_beside(feedback, options.memory_bytes, std::max(1, num_threads)),
                          std::max(1, num_threads),
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
