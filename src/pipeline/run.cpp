#include "pipeline/run.h"

#include <malloc.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include <fmt/format.h>

#include "base/byte_size.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/file.h"
#include "checkpoint/links.h"
#include "pipeline/assemble.h"
#include "pipeline/carried_scales.h"
#include "pipeline/compat.h"
#include "pipeline/fingerprint.h"
#include "pipeline/input_ranges.h"
#include "pipeline/job_messages.h"
#include "pipeline/journal.h"
#include "pipeline/load_statistics.h"
#include "pipeline/measure.h"
#include "pipeline/produce.h"
#include "pipeline/run_record.h"
#include "pipeline/settled_scales.h"
#include "pipeline/summary.h"
#include "pipeline/target_choice.h"
#include "pipeline/tied_embeddings.h"
#include "pipeline/work_folder.h"
#include "pipeline/write.h"
#include "plan/plan.h"
#include "plan/tensor_scales.h"

namespace quantmill {
namespace {

// The GPU that NCCL may use; an emulated one is none.
std::optional<DeviceIdentity> device_of(const Context& context) {
  if (context.gpu == nullptr || context.gpu->driver().is_emulated()) {
    return std::nullopt;
  }
  return DeviceIdentity{context.gpu->driver().ordinal(), context.gpu->driver().identity()};
}

Statistics statistics_for(const Team& team,
                          const Context& context,
                          const Log& log,
                          const Checkpoint& checkpoint,
                          const JobOptions& options) {
  if (!uses_statistics(options)) {
    return {};
  }
  PartitionOf partition;
  team.world.collectively([&] {
    partition =
        partition_rule(choose_architecture(options.recipe.architecture, checkpoint.config_text()));
  });
  return load_statistics(team.world, device_of(context), log, *options.statistics, partition);
}

// The leader's work folder, and how the job starts, on every rank.
WorkState open_work_folder(const Team& team,
                           const WorkRequest& request,
                           std::unique_ptr<WorkFolder>& work) {
  std::vector<std::byte> state(1);
  team.world.collectively([&] {
    if (team.is_leader()) {
      work = std::make_unique<WorkFolder>(request);
      state[0] = static_cast<std::byte>(work->state());
    }
  });
  return static_cast<WorkState>(team.world.broadcast(std::move(state), 0)[0]);
}

// What earlier runs finished, read by the leader for all, and this run's file.
JobJournal open_journal(const Team& team, const JobOptions& options, const Plan& plan) {
  if (!options.journal) {
    return {};
  }
  const std::filesystem::path folder = WorkFolder::journal_folder(options.out);
  std::vector<std::byte> payloads;
  std::vector<std::byte> run(sizeof(std::uint64_t));
  team.world.collectively([&] {
    if (team.is_leader()) {
      payloads = read_journals(folder);
      const std::uint64_t next = next_journal_run(folder);
      std::memcpy(run.data(), &next, sizeof next);
    }
  });
  payloads = team.world.broadcast(std::move(payloads), 0);
  run = team.world.broadcast(std::move(run), 0);
  JournalContents earlier;
  std::unique_ptr<JournalWriter> writer;
  team.world.collectively([&] {
    earlier = JournalContents(payloads, plan.search_tasks.size(), plan.write_tasks.size());
    writer = std::make_unique<JournalWriter>(folder,
                                             load_little_endian<std::uint64_t>(run),
                                             team.world.rank(),
                                             options.checkpoint_interval);
  });
  return JobJournal(std::move(earlier), std::move(writer));
}

// What the phases of a job work on.
struct JobSubject {
  const Team& team;
  const Context& context;
  const Log& log;
  Checkpoint& checkpoint;
  const Plan& plan;
  const Statistics& statistics;
  const JobOptions& options;
  const WorkRequest& request;
  FeedbackFactors* feedback;  // null: codes are rounded to the nearest
  std::uint64_t buffer_bytes;
  double choose_seconds;
  bool resumed;
};

PageDrops page_drops_of(const JobSubject& job) {
  const std::uint64_t num_nodes = job.team.node_ranks.size();
  const PageDrops drops = page_drops(job.options.page_cache,
                                     job.plan.source_bytes / num_nodes,
                                     job.plan.output_bytes / num_nodes,
                                     physical_memory_bytes());
  if (drops.when_done) {
    job.log.info("page cache: what is read and written does not stay in it (--page-cache)");
  }
  return drops;
}

// Search, measure, write, assemble, commit; the report. `work` is the leader's, null on other
// ranks.
std::string run_phases(const JobSubject& job,
                       JobJournal& journal,
                       WorkFolder* work,
                       PhaseClock& clock) {
  const Team& team = job.team;
  const Plan& plan = job.plan;
  const PageDrops drops = page_drops_of(job);
  if (drops.source_at_once) {
    job.checkpoint.drop_what_is_read();
  }
  const InputMaxima inputs = input_maxima(plan, job.statistics);
  const JobScales chosen = settle_scales(
      team, job.context, job.checkpoint, plan, job.statistics, inputs, job.options, journal);
  const ScaleTable& scales = chosen.scales;
  log_scales(job.log, plan, scales);
  const double search_seconds = clock.finish("search");
  if (!plan.search_tasks.empty()) {
    job.log.info(fmt::format("search: {} candidates for {} fold groups in {:.1f} s",
                             tried_exponents(plan.recipe).size(),
                             std::ranges::count_if(plan.groups, &GroupPlan::searched),
                             search_seconds));
  }
  check_interrupted(team);

  std::vector<ActivationFold> folds;
  TensorRanges ranges;
  team.world.collectively([&] {
    folds = make_fold_table(job.context, job.checkpoint, plan, scales);
    ranges.inputs = largest_inputs(plan, folds, inputs);
  });
  warn_of_changed_function(team, job.context, job.log, job.checkpoint, plan, scales, folds);
  ranges.carried = carried_scales(team, job.checkpoint, plan);
  ranges.weights = measure_weights(
      team, job.context, job.checkpoint, plan, folds, ranges.carried, job.buffer_bytes, journal);
  const double measure_seconds = clock.finish("measure");
  if (std::ranges::any_of(plan.tensors, is_measured)) {
    job.log.info(fmt::format("measure: the largest weights in {:.1f} s", measure_seconds));
  }
  check_interrupted(team);

  if (drops.when_done) {
    job.checkpoint.drop_what_is_read();
  }
  const std::filesystem::path folder = WorkFolder::output_folder(job.options.out);
  const WrittenShards shards = write_shards(team,
                                            job.context,
                                            job.checkpoint,
                                            plan,
                                            folds,
                                            ranges,
                                            chosen.importance,
                                            job.feedback,
                                            folder,
                                            job.buffer_bytes,
                                            drops,
                                            journal);
  if (drops.when_done) {
    job.checkpoint.drop_what_is_read();  // what was left of it, between the pieces
  }
  const double write_seconds = clock.finish("write");
  job.log.info(fmt::format("write: {} in {:.1f} s, {} of source",
                           format_size(plan.output_bytes),
                           write_seconds,
                           format_rate(plan.source_bytes, write_seconds)));
  check_interrupted(team);

  const RunRecord record =
      make_run_record(team,
                      job.context,
                      clock,
                      job.choose_seconds + search_seconds + measure_seconds + write_seconds,
                      job.resumed,
                      job.options.command);
  team.world.collectively([&] {
    if (team.is_leader()) {
      check_unchanged(job.checkpoint);
      assemble(job.log, job.checkpoint, plan, job.request.inputs, scales, shards, folder);
      write_text_file(folder / kRunRecordName, print_run_record(record));
      work->commit();
    }
  });
  return plan.recipe.compat == Compat::kSeed && plan.recipe.layout == Layout::kQuark
             ? seed_report(job.options.out, scales, plan, shards.tensors)
             : describe_result(job.options.source,
                               job.options.out,
                               plan,
                               scales,
                               shards.tensors,
                               clock.total_seconds()) +
                   describe_run(record);
}

}  // namespace

std::string run_job(const Team& team,
                    const Context& context,
                    const Log& log,
                    const JobOptions& options) {
  PhaseClock clock;
  std::optional<Checkpoint> checkpoint;
  team.world.collectively([&] { checkpoint = open_source(options.source, options.follow_links); });
  const Statistics statistics = statistics_for(team, context, log, *checkpoint, options);
  std::optional<Plan> plan;
  std::unique_ptr<FeedbackFactors> feedback;
  std::uint64_t buffer_bytes = 0;
  WorkRequest request{options.out, options.source, {}, {}, options.start, options.overwrite};
  JobOptions job = options;
  const auto prepare = [&] {
    feedback = make_feedback(job, *plan, statistics);
    buffer_bytes =
        check_resources(job, *checkpoint, *plan, statistics, feedback.get(), team.num_threads);
  };
  std::optional<TargetProblem> target;
  std::uint64_t target_bytes = 0;  // target_budget
  team.world.collectively([&] {
    if (awaits_choice(job.recipe)) {
      // Refuses what no choice could change, and reads all Gram matrices that any may use.
      target = make_target_problem(*checkpoint, job.recipe);
      plan = smallest_choice(*checkpoint, statistics, job, *target).plan;
      target_bytes = target_budget(*target, plan->output_bytes);
    } else {
      plan = make_job_plan(*checkpoint, statistics, job);
    }
    prepare();
    const auto& scales = options.compat_scales ? options.compat_scales : options.scales;
    request.inputs =
        make_fingerprint(*checkpoint, options.recipe, statistics, feedback.get(), scales);
    request.timed_inputs = with_times(request.inputs, *checkpoint);
  });
  check_agreement(team.world, request.timed_inputs);
  std::unique_ptr<WorkFolder> work;
  const WorkState state = open_work_folder(team, request, work);
  if (state == WorkState::kFinished) {
    return fmt::format("{} is there already, made by this very job; nothing to do\n",
                       options.out.string());
  }
  double choose_seconds = 0;
  if (target) {
    clock.finish("plan");
    TargetChoice choice =
        settle_schemes(team, context, log, *checkpoint, statistics, job, *target, target_bytes);
    job.recipe = std::move(choice.recipe);
    target.reset();
    choose_seconds = clock.finish("choose");
    team.world.collectively([&] {
      feedback.reset();  // it refers to the plan
      plan = std::move(choice.plan);
      prepare();
    });
  }
  team.world.collectively([&] {
    if (team.is_leader()) {
      check_tied(*checkpoint, *plan);
    }
  });
  malloc_trim(0);  // what planning took for a while is scattered among what it leaves
  clock.finish("plan");
  try {
    log_plan(team, context, log, *plan);
    if (feedback) {
      log.info(feedback->describe());
    }
    JobJournal journal = open_journal(team, options, *plan);
    const bool resumed = state == WorkState::kResumed;
    if (resumed) {
      const std::size_t measured = journal.num_tasks(JournalPhase::kMeasure);
      log.info(
          fmt::format("resumed: {} of {} search tasks and {} of {} write tasks were finished{}",
                      journal.num_tasks(JournalPhase::kSearch),
                      plan->search_tasks.size(),
                      journal.num_tasks(JournalPhase::kWrite),
                      plan->write_tasks.size(),
                      measured > 0 ? fmt::format(", {} measured", measured) : ""));
    }
    return run_phases({team,
                       context,
                       log,
                       *checkpoint,
                       *plan,
                       statistics,
                       job,
                       request,
                       feedback.get(),
                       buffer_bytes,
                       choose_seconds,
                       resumed},
                      journal,
                      work.get(),
                      clock);
  } catch (const Error& error) {
    const bool is_kept =
        options.journal && error.code() != ErrorCode::kInput && error.code() != ErrorCode::kUsage;
    if (work && is_kept) {
      work->keep();
    }
    if (is_kept && error.is_agreed() && error.code() == ErrorCode::kIo) {
      throw Error(error.code(),
                  error.message() +
                      "; finished work is kept: once this is put right, the same "
                      "command with --resume goes on")
          .agreed();
    }
    throw;
  }
}

}  // namespace quantmill
