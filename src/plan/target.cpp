#include "plan/target.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/byte_size.h"
#include "base/error.h"
#include "plan/selection.h"

namespace quantmill {
namespace {

using Json = nlohmann::ordered_json;

std::uint64_t weight_bytes(const TensorWork& work) {
  std::uint64_t bytes = 0;
  for (const OutputPlace& place : work.parts) {
    bytes += place.kind == PartKind::kInputScale ? 0 : place.size_bytes;
  }
  return bytes;
}

// By tensor of the architecture.
std::vector<std::uint64_t> bytes_by_tensor(const Plan& plan) {
  std::vector<std::uint64_t> bytes(plan.architecture.tensors.size(), 0);
  for (const TensorWork& work : plan.tensors) {
    if (work.action != Action::kKvScale) {
      bytes[work.tensor] += weight_bytes(work);
    }
  }
  return bytes;
}

bool suits(const ModelTensor& tensor, Scheme scheme) {
  return tensor.in_features() % columns_together(scheme) == 0;
}

// As the job's, but for what is chosen, and without scaling, which changes no size.
Recipe candidate_recipe(const Recipe& recipe, Scheme scheme) {
  Recipe candidate = recipe;
  candidate.target = {};
  candidate.scheme = scheme;
  candidate.scaling = Scaling::kNone;
  candidate.objective = Objective::kW4A16;
  candidate.rounding = Rounding::kNearest;
  candidate.input_scales = InputScales::kNone;
  candidate.kv_cache = KvCache::kNone;
  return candidate;
}

// Groups of tensors that no pattern speaks of, with the candidates that suit them.
std::vector<TargetGroup> groups_of(const ResolvedArchitecture& architecture, const Recipe& recipe) {
  const std::vector<SchemeChoice> choices = choose_schemes(architecture, recipe);
  std::vector<TargetGroup> groups;
  for (const std::vector<std::size_t>& tensors : scheme_groups(architecture)) {
    TargetGroup group;
    // A pattern may speak of some layers of a set that spans all.
    std::ranges::copy_if(tensors, std::back_inserter(group.tensors), [&](std::size_t tensor) {
      return choices[tensor].is_quantized() && choices[tensor].pattern.empty();
    });
    if (group.tensors.empty()) {
      continue;
    }
    for (const std::optional<Scheme> scheme : target_schemes(recipe)) {
      if (!scheme || std::ranges::all_of(group.tensors, [&](std::size_t tensor) {
            return suits(architecture.tensors[tensor], *scheme);
          })) {
        group.schemes.push_back(scheme);
      }
    }
    const ModelTensor& first = architecture.tensors[group.tensors.front()];
    if (group.schemes.empty()) {
      throw Error(ErrorCode::kUsage,
                  fmt::format("tensor {}: its {} columns suit none of the target's candidates; "
                              "leave it as it is with --keep '{}', or add \"keep\" to them",
                              first.name,
                              first.in_features(),
                              first.module()));
    }
    for (const std::size_t tensor : group.tensors) {
      group.num_weights += architecture.tensors[tensor].num_elements();
    }
    groups.push_back(std::move(group));
  }
  if (groups.empty()) {
    throw Error(ErrorCode::kUsage,
                "patterns of --keep and --scheme-for say what every tensor becomes, so that "
                "nothing is left to choose for the target; leave it or some of them out");
  }
  return groups;
}

bool may_have(const TargetGroup& group, std::optional<Scheme> scheme) {
  return std::ranges::find(group.schemes, scheme) != group.schemes.end();
}

void choose_for(const ResolvedArchitecture& architecture,
                const TargetGroup& group,
                std::optional<Scheme> scheme,
                ChosenSchemes& chosen) {
  for (const std::size_t tensor : group.tensors) {
    chosen[architecture.tensors[tensor].name] = scheme;
  }
}

Plan plan_of_candidate(const Checkpoint& checkpoint, const TargetProblem& problem, Scheme scheme) {
  Recipe candidate = candidate_recipe(problem.recipe, scheme);
  for (const TargetGroup& group : problem.groups) {
    choose_for(problem.architecture,
               group,
               may_have(group, scheme) ? std::optional(scheme) : std::nullopt,
               candidate.chosen);
  }
  return make_plan_without_search(checkpoint, candidate, problem.architecture);
}

// The bytes of every tensor that may stay unquantized, if it does: of two plans, each of which has
// one group quantized, since a plan must have something.
void add_kept_bytes(const Checkpoint& checkpoint,
                    const Recipe& recipe,
                    const ResolvedArchitecture& architecture,
                    std::vector<TargetGroup>& groups,
                    std::vector<std::vector<std::uint64_t>>& bytes) {
  std::vector<std::size_t> quantized;  // groups that are so in one of the plans
  for (std::size_t group = 0; group < groups.size() && quantized.size() < 2; ++group) {
    if (std::ranges::any_of(groups[group].schemes,
                            [](auto scheme) { return scheme.has_value(); })) {
      quantized.push_back(group);
    }
  }
  for (std::size_t i = 0; i < quantized.size(); ++i) {
    const TargetGroup& apart = groups[quantized[i]];
    const Scheme scheme = **std::ranges::find_if(
        apart.schemes, [](std::optional<Scheme> candidate) { return candidate.has_value(); });
    Recipe kept = candidate_recipe(recipe, scheme);
    for (const TargetGroup& group : groups) {
      choose_for(architecture,
                 group,
                 &group == &apart ? std::optional(scheme) : std::nullopt,
                 kept.chosen);
    }
    const std::vector<std::uint64_t> found =
        bytes_by_tensor(make_plan_without_search(checkpoint, kept, architecture));
    for (std::size_t group = 0; group < groups.size(); ++group) {
      if (group == quantized[i] || (i > 0 && group != quantized[0])) {
        continue;
      }
      for (const std::size_t tensor : groups[group].tensors) {
        bytes.back()[tensor] = found[tensor];
      }
    }
  }
  if (quantized.size() == 1) {  // unquantized, it would leave nothing to do
    std::erase(groups[quantized[0]].schemes, std::nullopt);
  }
}

}  // namespace

TargetProblem make_target_problem(const Checkpoint& checkpoint, const Recipe& recipe) {
  check_recipe(recipe);
  TargetProblem problem;
  problem.recipe = recipe;
  problem.architecture = model_architecture(checkpoint, recipe);
  const ResolvedArchitecture& architecture = problem.architecture;
  problem.groups = groups_of(architecture, recipe);
  // By candidate and tensor; the last is of what stays unquantized.
  std::vector<std::vector<std::uint64_t>> bytes;
  std::vector<std::optional<Scheme>> order;
  std::vector<SchemeChoice> choices;  // of the first candidate's plan
  for (const std::optional<Scheme> scheme : target_schemes(recipe)) {
    if (!scheme || std::ranges::none_of(problem.groups, [&](const TargetGroup& group) {
          return may_have(group, scheme);
        })) {
      continue;
    }
    const Plan plan = plan_of_candidate(checkpoint, problem, *scheme);
    problem.candidates.push_back(*scheme);
    bytes.push_back(bytes_by_tensor(plan));
    order.push_back(scheme);
    if (choices.empty()) {
      choices = plan.choices;
    }
  }
  if (problem.candidates.empty()) {
    throw Error(ErrorCode::kUsage,
                "no candidate of the target suits any tensor; name others with --schemes");
  }
  bytes.emplace_back(architecture.tensors.size(), 0);
  order.emplace_back(std::nullopt);
  add_kept_bytes(checkpoint, recipe, architecture, problem.groups, bytes);
  for (TargetGroup& group : problem.groups) {
    problem.num_weights += group.num_weights;
    for (const std::optional<Scheme> scheme : group.schemes) {
      const auto at = static_cast<std::size_t>(std::ranges::find(order, scheme) - order.begin());
      std::uint64_t sum = 0;
      for (const std::size_t tensor : group.tensors) {
        sum += bytes[at][tensor];
      }
      group.bytes.push_back(sum);
    }
  }
  for (std::size_t tensor = 0; tensor < architecture.tensors.size(); ++tensor) {
    const SchemeChoice& choice = choices[tensor];
    if (choice.is_quantized() && !choice.by_target) {
      problem.fixed_bytes += bytes.front()[tensor];
      problem.num_weights += architecture.tensors[tensor].num_elements();
    }
  }
  return problem;
}

std::vector<CandidatePlan> candidate_plans(const Checkpoint& checkpoint,
                                           const TargetProblem& problem) {
  std::vector<CandidatePlan> plans;
  for (const Scheme scheme : problem.candidates) {
    plans.push_back({scheme, plan_of_candidate(checkpoint, problem, scheme)});
  }
  return plans;
}

std::uint64_t TargetProblem::least_bytes() const {
  std::uint64_t bytes = fixed_bytes;
  for (const TargetGroup& group : groups) {
    bytes += std::ranges::min(group.bytes);
  }
  return bytes;
}

std::uint64_t TargetProblem::most_bytes() const {
  std::uint64_t bytes = fixed_bytes;
  for (const TargetGroup& group : groups) {
    bytes += std::ranges::max(group.bytes);
  }
  return bytes;
}

std::uint64_t TargetProblem::bytes_of(const ChosenSchemes& chosen) const {
  std::uint64_t bytes = fixed_bytes;
  for (const TargetGroup& group : groups) {
    const std::optional<Scheme> scheme =
        chosen.at(architecture.tensors[group.tensors.front()].name);
    bytes += group.bytes[static_cast<std::size_t>(std::ranges::find(group.schemes, scheme) -
                                                  group.schemes.begin())];
  }
  return bytes;
}

ChosenSchemes TargetProblem::smallest_choice() const {
  ChosenSchemes chosen;
  for (const TargetGroup& group : groups) {
    const auto at = std::ranges::min_element(group.bytes) - group.bytes.begin();
    choose_for(architecture, group, group.schemes[static_cast<std::size_t>(at)], chosen);
  }
  return chosen;
}

BitsRange reachable_bits(const TargetProblem& problem) {
  const auto weights = static_cast<double>(problem.num_weights);
  return {8 * static_cast<double>(problem.least_bytes()) / weights,
          8 * static_cast<double>(problem.most_bytes()) / weights};
}

std::uint64_t bytes_for_bits(const TargetProblem& problem, double bits) {
  const BitsRange range = reachable_bits(problem);
  if (bits < range.least || bits > range.most) {
    throw Error(ErrorCode::kUsage,
                fmt::format("--target-bits {}: with these candidates the linears take from {:.4f} "
                            "to {:.4f} bits per weight; choose one between, or other --schemes",
                            bits,
                            std::ceil(range.least * 1e4) / 1e4,
                            std::floor(range.most * 1e4) / 1e4));
  }
  const double bytes = bits * static_cast<double>(problem.num_weights) / 8;
  return static_cast<std::uint64_t>(std::floor(bytes));
}

std::optional<ChosenSchemes> choose_within(const TargetProblem& problem,
                                           const std::vector<std::vector<double>>& losses,
                                           std::uint64_t bytes) {
  if (bytes < problem.fixed_bytes) {
    return std::nullopt;
  }
  std::vector<std::vector<SizedForm>> groups;
  for (std::size_t group = 0; group < problem.groups.size(); ++group) {
    groups.emplace_back();
    for (std::size_t i = 0; i < problem.groups[group].bytes.size(); ++i) {
      groups.back().push_back({problem.groups[group].bytes[i], losses[group][i]});
    }
  }
  const auto forms = choose_forms(groups, bytes - problem.fixed_bytes);
  if (!forms) {
    return std::nullopt;
  }
  ChosenSchemes chosen;
  for (std::size_t group = 0; group < problem.groups.size(); ++group) {
    choose_for(problem.architecture,
               problem.groups[group],
               problem.groups[group].schemes[(*forms)[group]],
               chosen);
  }
  return chosen;
}

TargetReached target_reached(const Plan& plan) {
  const std::vector<std::uint64_t> bytes = bytes_by_tensor(plan);
  TargetReached reached;
  std::uint64_t all_bytes = 0;
  std::uint64_t all_weights = 0;
  for (std::size_t tensor = 0; tensor < plan.choices.size(); ++tensor) {
    const SchemeChoice& choice = plan.choices[tensor];
    if (choice.is_quantized() || choice.by_target) {
      TargetReached::Count& count = reached.by_scheme[choice_name(choice.scheme)];
      const std::uint64_t weights = plan.architecture.tensors[tensor].num_elements();
      ++count.tensors;
      count.weights += weights;
      all_weights += weights;
      all_bytes += bytes[tensor];
    }
  }
  reached.bits =
      all_weights == 0 ? 0 : 8 * static_cast<double>(all_bytes) / static_cast<double>(all_weights);
  return reached;
}

std::string describe_target(const Plan& plan) {
  const SizeTarget& target = plan.recipe.target;
  if (!target.is_set()) {
    return "";
  }
  const TargetReached reached = target_reached(plan);
  std::string text =
      target.bits
          ? fmt::format(
                "target: {} bits per weight of linears, {:.4f} reached", *target.bits, reached.bits)
          : fmt::format(
                "target: {} of output, {} reached ({:.4f} bits per weight of "
                "linears)",
                format_size(*target.bytes),
                format_size(plan.output_bytes),
                reached.bits);
  for (const auto& [scheme, count] : reached.by_scheme) {
    text += fmt::format(
        "\n  {:<14} {:>6} tensors, {:>15} weights", scheme, count.tensors, count.weights);
  }
  return text + "\n";
}

std::string target_to_json(const Plan& plan) {
  const SizeTarget& target = plan.recipe.target;
  if (!target.is_set()) {
    return "null";
  }
  const TargetReached reached = target_reached(plan);
  Json json;
  json["bits"] = target.bits ? Json(*target.bits) : Json(nullptr);
  json["bytes"] = target.bytes ? Json(*target.bytes) : Json(nullptr);
  json["bits_reached"] = reached.bits;
  json["bytes_reached"] = plan.output_bytes;
  json["schemes"] = Json::object();
  for (const auto& [scheme, count] : reached.by_scheme) {
    json["schemes"][scheme] = {{"tensors", count.tensors}, {"weights", count.weights}};
  }
  return json.dump();
}

}  // namespace quantmill
