#pragma once

// Schemes that are chosen for a size: which tensors may have which, and how large they are then.
// What each choice costs in accuracy comes from elsewhere (pipeline/error_table.h).

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/reader.h"
#include "plan/knapsack.h"
#include "plan/plan.h"
#include "plan/recipe.h"

namespace quantmill {

// A plan in which all tensors that are chosen for, and can have it, have one scheme; unscaled.
struct CandidatePlan {
  Scheme scheme = Scheme::kMxfp4;
  Plan plan;
};

// Tensors that get one scheme (scheme_groups), and what they may have.
struct TargetGroup {
  std::vector<std::size_t> tensors;            // indices, ascending
  std::vector<std::optional<Scheme>> schemes;  // candidates that suit all of them, in order
  std::vector<std::uint64_t> bytes;            // for each: of all of them, codes and scales
  std::uint64_t num_weights = 0;
};

// What the mean of --target-bits is taken over: linears that are chosen for, and those whose scheme
// a pattern says. Scales of activations do not count.
struct TargetProblem {
  Recipe recipe;  // of the job
  ResolvedArchitecture architecture;
  std::vector<Scheme> candidates;  // that suit any tensor
  std::vector<TargetGroup> groups;
  std::uint64_t fixed_bytes = 0;  // of the linears whose scheme a pattern says
  std::uint64_t num_weights = 0;  // with those

  // Of these linears with the smallest and the largest candidates, and with this choice.
  [[nodiscard]] std::uint64_t least_bytes() const;
  [[nodiscard]] std::uint64_t most_bytes() const;
  [[nodiscard]] std::uint64_t bytes_of(const ChosenSchemes& chosen) const;
  [[nodiscard]] ChosenSchemes smallest_choice() const;
};

// From headers alone. Errors: what make_plan_without_search refuses; kUsage: patterns leave nothing
// to choose for, a tensor that no candidate suits (named).
TargetProblem make_target_problem(const Checkpoint& checkpoint, const Recipe& recipe);

// Of every candidate of the problem, which was made from this checkpoint.
std::vector<CandidatePlan> candidate_plans(const Checkpoint& checkpoint,
                                           const TargetProblem& problem);

// Bits per weight with the smallest and the largest candidates.
struct BitsRange {
  double least = 0;
  double most = 0;
};

BitsRange reachable_bits(const TargetProblem& problem);

// The bytes of linears that a mean of so many bits allows, rounded down. kUsage, with the reachable
// range, if it lies outside.
std::uint64_t bytes_for_bits(const TargetProblem& problem, double bits);

// A scheme for every tensor that is chosen for. `losses`: one for each of each group's schemes.
// Nothing if the smallest candidates take more than `bytes`.
std::optional<ChosenSchemes> choose_within(const TargetProblem& problem,
                                           const std::vector<std::vector<double>>& losses,
                                           std::uint64_t bytes);

// What a plan came to.
struct TargetReached {
  double bits = 0;  // a mean as of --target-bits

  struct Count {
    std::uint64_t tensors = 0;
    std::uint64_t weights = 0;
  };

  std::map<std::string, Count> by_scheme;  // "keep" for what is unquantized
};

TargetReached target_reached(const Plan& plan);

// "target: 4.75 bits per weight asked, 4.748 reached" and a line of the schemes, for people; empty
// for a plan without a target.
std::string describe_target(const Plan& plan);

// {bits or bytes asked, bits_reached, bytes_reached, schemes: {name: {tensors, weights}}} as JSON
// text; "null" for a plan without a target.
std::string target_to_json(const Plan& plan);

}  // namespace quantmill
