#include "pipeline/error_table.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "pipeline/carried_scales.h"
#include "pipeline/journal.h"
#include "pipeline/measure.h"
#include "pipeline/produce.h"
#include "plan/recipe_json.h"

namespace quantmill {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kNumSums = 2;  // of each piece: squared error and norm

// Some rows of a tensor in one candidate's scheme.
struct Piece {
  std::size_t candidate = 0;
  std::size_t task = 0;  // of its plan's write tasks
  std::uint64_t cost = 0;
};

// Those of tensors that are chosen for. The same rows in all schemes come one after the other, and
// are as costly, so that they are still in memory when they are read again.
std::vector<Piece> pieces_of(const std::vector<CandidatePlan>& candidates) {
  std::vector<Piece> pieces;
  for (std::size_t candidate = 0; candidate < candidates.size(); ++candidate) {
    const Plan& plan = candidates[candidate].plan;
    for (std::size_t task = 0; task < plan.write_tasks.size(); ++task) {
      const WriteTask& write = plan.write_tasks[task];
      const TensorWork& work = plan.tensors[write.tensor];
      if (work.is_quantized() && plan.choices[work.tensor].by_target) {
        pieces.push_back({candidate, task, (write.end - write.begin) * work.cols});
      }
    }
  }
  const auto place = [&](const Piece& piece) {
    const Plan& plan = candidates[piece.candidate].plan;
    const WriteTask& write = plan.write_tasks[piece.task];
    return std::tuple(plan.tensors[write.tensor].tensor, write.tensor, write.begin);
  };
  std::ranges::stable_sort(pieces,
                           [&](const Piece& a, const Piece& b) { return place(a) < place(b); });
  return pieces;
}

// What producers of one candidate work with: nothing is scaled.
struct Unscaled {
  std::vector<ActivationFold> folds;
  TensorRanges ranges;
};

std::vector<Unscaled> prepare(const Team& team,
                              const Context& context,
                              const Checkpoint& checkpoint,
                              const std::vector<CandidatePlan>& candidates,
                              std::uint64_t buffer_bytes) {
  std::vector<Unscaled> prepared;
  for (const CandidatePlan& candidate : candidates) {
    const Plan& plan = candidate.plan;
    Unscaled unscaled;
    unscaled.folds.resize(plan.architecture.activations.size());
    unscaled.ranges.inputs.assign(plan.tensors.size(), 0.0F);
    unscaled.ranges.carried = carried_scales(team, checkpoint, plan);
    JobJournal none;
    unscaled.ranges.weights = measure_weights(team,
                                              context,
                                              checkpoint,
                                              plan,
                                              unscaled.folds,
                                              unscaled.ranges.carried,
                                              buffer_bytes,
                                              none);
    prepared.push_back(std::move(unscaled));
  }
  return prepared;
}

// Of each piece, on every rank.
std::vector<double> measure_pieces(const Team& team,
                                   const Context& context,
                                   const Checkpoint& checkpoint,
                                   const std::vector<CandidatePlan>& candidates,
                                   const std::vector<Piece>& pieces,
                                   const ColumnImportance& importance,
                                   std::uint64_t buffer_bytes) {
  const std::vector<Unscaled> prepared =
      prepare(team, context, checkpoint, candidates, buffer_bytes);
  std::vector<std::vector<RowProducer>> workers(static_cast<std::size_t>(team.num_threads));
  for (std::vector<RowProducer>& worker : workers) {
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      worker.emplace_back(context,
                          checkpoint,
                          candidates[i].plan,
                          prepared[i].folds,
                          prepared[i].ranges,
                          importance,
                          nullptr,
                          buffer_bytes);
    }
  }
  const Emit nowhere = [](std::size_t, std::uint64_t, std::span<const std::byte>) {};
  std::vector<double> sums(kNumSums * pieces.size(), 0.0);
  run_tasks(
      team,
      {"errors of schemes",
       own_tasks(team, costs_of(pieces), [](std::size_t) { return false; }),
       [&](std::size_t piece) {
         const Plan& plan = candidates[pieces[piece].candidate].plan;
         return plan.write_tasks[pieces[piece].task].cost;
       },
       Work::kEncode},
      [&](std::size_t index, int worker) {
        const Piece& piece = pieces[index];
        const Plan& plan = candidates[piece.candidate].plan;
        const WriteTask& task = plan.write_tasks[piece.task];
        WorkErrors errors;
        workers[static_cast<std::size_t>(worker)][piece.candidate].produce(task, nowhere, errors);
        const bool is_weighted = !importance.of(plan.tensors[task.tensor].tensor).empty();
        const ErrorSums& found = is_weighted ? errors.weighted : errors.plain;
        sums[kNumSums * index] = found.squared_error;
        sums[kNumSums * index + 1] = found.squared_norm;
      },
      [] {});
  team.world.sum_disjoint(sums);
  return sums;
}

// A number of a file that can be an error.
double error_of(const Json& json) {
  const auto value = json.get<double>();
  if (!(std::isfinite(value) && value >= 0)) {
    throw Error(ErrorCode::kInput, "an error is not finite or below 0");
  }
  return value;
}

}  // namespace

double ErrorTable::Tensor::relative(std::optional<Scheme> scheme) const {
  if (!scheme || energy <= 0) {
    return 0;
  }
  // An energy of next to nothing: more than any other, and still a number to add.
  return std::min<double>(errors.at(*scheme) / energy, std::numeric_limits<float>::max());
}

Fingerprint error_table_inputs(const Checkpoint& checkpoint,
                               const Recipe& recipe,
                               const Statistics& statistics,
                               const std::optional<std::filesystem::path>& given_scales) {
  Recipe deciding;
  deciding.layout = recipe.layout;
  deciding.scale_rule = recipe.scale_rule;
  deciding.min_tokens = recipe.min_tokens;
  deciding.architecture = recipe.architecture;
  return make_fingerprint(checkpoint, deciding, statistics, nullptr, given_scales);
}

ErrorTable measure_error_table(const Team& team,
                               const Context& context,
                               const Checkpoint& checkpoint,
                               const std::vector<CandidatePlan>& candidates,
                               const ColumnImportance& importance,
                               std::uint64_t buffer_bytes) {
  const std::vector<Piece> pieces = pieces_of(candidates);
  const std::vector<double> sums =
      measure_pieces(team, context, checkpoint, candidates, pieces, importance, buffer_bytes);
  ErrorTable table;
  std::vector<std::map<std::string, double>> energies(candidates.size());
  for (std::size_t index = 0; index < pieces.size(); ++index) {
    const CandidatePlan& candidate = candidates[pieces[index].candidate];
    const WriteTask& task = candidate.plan.write_tasks[pieces[index].task];
    const std::size_t tensor = candidate.plan.tensors[task.tensor].tensor;
    const std::string& name = candidate.plan.architecture.tensors[tensor].name;
    table.tensors[name].errors[candidate.scheme] += sums[kNumSums * index];
    energies[pieces[index].candidate][name] += sums[kNumSums * index + 1];
  }
  for (auto& [name, tensor] : table.tensors) {
    for (const std::map<std::string, double>& energy : energies) {
      const auto found = energy.find(name);
      if (found != energy.end() && tensor.energy == 0) {  // a candidate that carries codes has none
        tensor.energy = found->second;
      }
    }
  }
  return table;
}

std::string print_error_table(const ErrorTable& table) {
  Json json;
  json["error_table_schema"] = 1;
  json["inputs"] = table.inputs;
  json["tensors"] = Json::object();
  for (const auto& [name, tensor] : table.tensors) {
    Json& item = json["tensors"][name];
    item["energy"] = tensor.energy;
    for (const auto& [scheme, error] : tensor.errors) {
      item["errors"][std::string(scheme_name(scheme))] = error;
    }
  }
  return json.dump(1) + "\n";
}

ErrorTable parse_error_table(const std::string& text, const std::string& what) {
  try {
    const Json json = Json::parse(text);
    if (json.at("error_table_schema") != 1) {
      throw Error(ErrorCode::kInput, "it is of another version of quantmill");
    }
    ErrorTable table;
    table.inputs = json.at("inputs").get<Fingerprint>();
    for (const auto& [name, item] : json.at("tensors").items()) {
      ErrorTable::Tensor& tensor = table.tensors[name];
      tensor.energy = error_of(item.at("energy"));
      for (const auto& [scheme, error] : item.at("errors").items()) {
        tensor.errors[scheme_from_name(scheme)] = error_of(error);
      }
    }
    return table;
  } catch (const Error& error) {
    throw Error(ErrorCode::kInput, fmt::format("{} is no error table: {}", what, error.message()));
  } catch (const Json::exception& failure) {
    throw Error(ErrorCode::kInput, fmt::format("{} is no error table: {}", what, failure.what()));
  }
}

void check_error_table(const ErrorTable& table,
                       const TargetProblem& problem,
                       const Fingerprint& inputs,
                       const std::string& what) {
  const std::string remedy =
      "give another name, under which it is measured anew, or remove the file";
  const std::string difference = describe_difference(table.inputs, inputs);
  if (!difference.empty()) {
    throw Error(
        ErrorCode::kUsage,
        fmt::format("{} was measured for something else: {}; {}", what, difference, remedy));
  }
  for (const TargetGroup& group : problem.groups) {
    for (const std::size_t index : group.tensors) {
      const std::string& name = problem.architecture.tensors[index].name;
      const auto tensor = table.tensors.find(name);
      for (const std::optional<Scheme> scheme : group.schemes) {
        if (scheme && (tensor == table.tensors.end() || !tensor->second.errors.contains(*scheme))) {
          throw Error(
              ErrorCode::kUsage,
              fmt::format("{} does not have the error of {} in {}: it was measured for other "
                          "candidates or patterns; {}",
                          what,
                          name,
                          scheme_name(*scheme),
                          remedy));
        }
      }
    }
  }
}

std::vector<std::vector<double>> losses_of(const TargetProblem& problem, const ErrorTable& table) {
  const ResolvedArchitecture& architecture = problem.architecture;
  std::vector<std::vector<double>> losses;
  for (const TargetGroup& group : problem.groups) {
    losses.emplace_back();
    for (const std::optional<Scheme> scheme : group.schemes) {
      double loss = 0;
      for (const std::size_t index : group.tensors) {
        const auto tensor = table.tensors.find(architecture.tensors[index].name);
        loss += tensor == table.tensors.end() ? 0 : tensor->second.relative(scheme);
      }
      losses.back().push_back(loss);
    }
  }
  return losses;
}

}  // namespace quantmill
