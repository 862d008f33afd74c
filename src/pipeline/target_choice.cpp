#include "pipeline/target_choice.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/byte_size.h"
#include "base/error.h"
#include "base/file.h"
#include "pipeline/produce.h"
#include "pipeline/work_folder.h"
#include "plan/recipe_json.h"
#include "stats/scales.h"

namespace quantmill {
namespace {

constexpr std::uint64_t kMaxTableBytes = std::uint64_t{1} << 30;
constexpr const char* kRecipeName = "recipe.json";  // in the work folder

// The text that rank 0 reads, on every rank.
std::string broadcast_text(const Team& team, const std::function<std::string()>& read) {
  std::vector<std::byte> bytes;
  team.world.collectively([&] {
    if (team.is_leader()) {
      const std::string text = read();
      const auto view = std::as_bytes(std::span(text));
      bytes.assign(view.begin(), view.end());
    }
  });
  bytes = team.world.broadcast(std::move(bytes), 0);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string read_if_there(const std::filesystem::path& file) {
  return std::filesystem::is_regular_file(file) ? read_text_file(file, kMaxTableBytes) : "";
}

std::string text_of_table(const JobOptions& options) {
  return options.error_table ? read_if_there(*options.error_table) : "";
}

Fingerprint inputs_of(const Checkpoint& checkpoint,
                      const Statistics& statistics,
                      const JobOptions& options) {
  return error_table_inputs(checkpoint, options.recipe, statistics, options.scales);
}

// Nothing for no text.
std::optional<ErrorTable> checked_table(const std::string& text,
                                        const Checkpoint& checkpoint,
                                        const Statistics& statistics,
                                        const JobOptions& options,
                                        const TargetProblem& problem) {
  if (text.empty()) {
    return std::nullopt;
  }
  const std::string what = fmt::format("--error-table {}", options.error_table->string());
  ErrorTable table = parse_error_table(text, what);
  check_error_table(table, problem, inputs_of(checkpoint, statistics, options), what);
  return table;
}

// Every worker has a producer for each candidate.
std::uint64_t buffer_bytes_of(const Team& team,
                              const Checkpoint& checkpoint,
                              const Statistics& statistics,
                              const JobOptions& options,
                              const std::vector<CandidatePlan>& candidates) {
  std::uint64_t smallest = 0;
  std::uint64_t largest = 0;
  std::uint64_t held = statistics_bytes(statistics);
  for (const CandidatePlan& candidate : candidates) {
    held += model_bytes(checkpoint, candidate.plan);
    smallest = std::max(smallest, RowProducer::smallest_buffer_bytes(candidate.plan));
    largest = std::max(largest, RowProducer::largest_buffer_bytes(candidate.plan));
  }
  const std::uint64_t count = candidates.size();
  return worker_buffer_bytes(
             options.memory_bytes, held, team.num_threads, count * smallest, count * largest) /
         count;
}

ColumnImportance importance_of(const Statistics& statistics,
                               const JobOptions& options,
                               const TargetProblem& problem) {
  if (options.scales) {
    return {problem.architecture, read_importance(*options.scales)};
  }
  ResolvedArchitecture matched = problem.architecture;
  match_statistics(statistics, matched);
  return {problem.architecture, make_importance(matched, statistics, options.recipe.min_tokens)};
}

TargetChoice choice_of(const Checkpoint& checkpoint,
                       const Statistics& statistics,
                       JobOptions options,
                       const TargetProblem& problem,
                       ChosenSchemes chosen) {
  options.recipe.chosen = std::move(chosen);
  Plan plan = make_job_plan(checkpoint, statistics, options, problem.architecture);
  return {std::move(options.recipe), std::move(plan)};
}

}  // namespace

TargetChoice smallest_choice(const Checkpoint& checkpoint,
                             const Statistics& statistics,
                             const JobOptions& options,
                             const TargetProblem& problem) {
  return choice_of(checkpoint, statistics, options, problem, problem.smallest_choice());
}

std::uint64_t target_budget(const TargetProblem& problem, std::uint64_t smallest_output_bytes) {
  const SizeTarget& target = problem.recipe.target;
  if (target.bits) {
    return bytes_for_bits(problem, *target.bits);
  }
  const std::uint64_t least = problem.least_bytes();
  const std::uint64_t smallest = smallest_output_bytes;
  const std::uint64_t largest = smallest - least + problem.most_bytes();
  if (*target.bytes < smallest || *target.bytes > largest) {
    throw Error(
        ErrorCode::kUsage,
        fmt::format("--target-size {} ({}): with these candidates the output takes from {} bytes "
                    "({}) to about {} ({}); choose one between, or other --schemes",
                    *target.bytes,
                    format_size(*target.bytes),
                    smallest,
                    format_size(smallest),
                    largest,
                    format_size(largest)));
  }
  return *target.bytes - (smallest - least);
}

std::optional<ErrorTable> stored_error_table(const Checkpoint& checkpoint,
                                             const Statistics& statistics,
                                             const JobOptions& options,
                                             const TargetProblem& problem) {
  return checked_table(text_of_table(options), checkpoint, statistics, options, problem);
}

ErrorTable make_error_table(const Team& team,
                            const Context& context,
                            const Checkpoint& checkpoint,
                            const Statistics& statistics,
                            const JobOptions& options,
                            const TargetProblem& problem) {
  std::optional<ColumnImportance> importance;
  std::vector<CandidatePlan> candidates;
  std::uint64_t buffer_bytes = 0;
  team.world.collectively([&] {
    importance.emplace(importance_of(statistics, options, problem));
    candidates = candidate_plans(checkpoint, problem);
    buffer_bytes = buffer_bytes_of(team, checkpoint, statistics, options, candidates);
  });
  ErrorTable table =
      measure_error_table(team, context, checkpoint, candidates, *importance, buffer_bytes);
  team.world.collectively([&] {
    table.inputs = inputs_of(checkpoint, statistics, options);
    if (team.is_leader() && options.error_table) {
      write_text_file(*options.error_table, print_error_table(table));
    }
  });
  return table;
}

TargetChoice choose_for_target(const Checkpoint& checkpoint,
                               const Statistics& statistics,
                               const JobOptions& options,
                               const TargetProblem& problem,
                               const ErrorTable& table,
                               std::uint64_t budget) {
  const std::vector<std::vector<double>> losses = losses_of(problem, table);
  ChosenSchemes schemes = choose_within(problem, losses, budget).value();
  while (true) {
    TargetChoice choice = choice_of(checkpoint, statistics, options, problem, schemes);
    const std::uint64_t most = options.recipe.target.bytes.value_or(UINT64_MAX);
    if (choice.plan.output_bytes <= most) {
      return choice;
    }
    // Headers have other lengths with other schemes: what is too much is taken from the linears.
    const std::uint64_t excess = choice.plan.output_bytes - most;
    const std::uint64_t taken = problem.bytes_of(schemes);
    const auto smaller = choose_within(problem, losses, taken - std::min(taken, excess));
    if (!smaller) {
      return smallest_choice(checkpoint, statistics, options, problem);
    }
    schemes = *smaller;
  }
}

std::vector<std::optional<double>> chosen_errors(const Plan& plan, const ErrorTable& table) {
  std::vector<std::optional<double>> errors(plan.choices.size());
  for (std::size_t tensor = 0; tensor < plan.choices.size(); ++tensor) {
    const auto found = table.tensors.find(plan.architecture.tensors[tensor].name);
    if (plan.choices[tensor].by_target && found != table.tensors.end()) {
      errors[tensor] = std::sqrt(found->second.relative(plan.choices[tensor].scheme));
    }
  }
  return errors;
}

TargetChoice settle_schemes(const Team& team,
                            const Context& context,
                            const Log& log,
                            const Checkpoint& checkpoint,
                            const Statistics& statistics,
                            const JobOptions& options,
                            const TargetProblem& problem,
                            std::uint64_t budget) {
  const std::filesystem::path note = WorkFolder::journal_folder(options.out) / kRecipeName;
  const std::string noted = broadcast_text(team, [&] { return read_if_there(note); });
  TargetChoice choice;
  if (!noted.empty()) {
    team.world.collectively([&] {
      Recipe recipe = options.recipe;
      apply_recipe_json(noted, recipe);
      choice = choice_of(checkpoint, statistics, options, problem, recipe.chosen);
    });
    return choice;
  }
  const std::string text = broadcast_text(team, [&] { return text_of_table(options); });
  std::optional<ErrorTable> table;
  team.world.collectively(
      [&] { table = checked_table(text, checkpoint, statistics, options, problem); });
  const bool is_stored = table.has_value();
  if (!is_stored) {
    table = make_error_table(team, context, checkpoint, statistics, options, problem);
  }
  team.world.collectively([&] {
    choice = choose_for_target(checkpoint, statistics, options, problem, *table, budget);
    if (team.is_leader()) {
      write_text_file(note, to_json(choice.recipe));
    }
  });
  log.info(fmt::format("errors of {} tensors in {} schemes {}",
                       table->tensors.size(),
                       problem.candidates.size(),
                       is_stored ? "read from " + options.error_table->string() : "measured"));
  return choice;
}

}  // namespace quantmill
