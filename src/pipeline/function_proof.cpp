#include "pipeline/function_proof.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <random>

#include <fmt/format.h>

#include "base/error.h"
#include "pipeline/weight_reader.h"

namespace quantmill {
namespace {

constexpr std::uint64_t kRowsElements = std::uint64_t{1} << 16;

struct Edge {
  std::size_t activation = 0;
  std::size_t reader = 0;
};

// The folds with each group's s as it was chosen, in place of what was made of it.
std::vector<ActivationFold> exact_folds(const Plan& plan,
                                        const ScaleTable& scales,
                                        std::vector<ActivationFold> folds) {
  for (const FoldGroup& group : plan.architecture.fold_groups) {
    const auto found = scales.find(group.name);
    for (const std::size_t activation : group.activations) {
      if (found != scales.end() && !folds[activation].s.empty()) {
        folds[activation].s = found->second.s;
      }
    }
  }
  return folds;
}

double at_or_one(const std::vector<float>& values, std::size_t index) {
  return values.empty() ? 1 : double{values[index]};
}

class EdgeProver {
 public:
  EdgeProver(const Context& context,
             const Checkpoint& source,
             const Plan& plan,
             const ScaleTable& scales,
             const std::vector<ActivationFold>& folds,
             const ResolvedArchitecture& truth)
      : context_(context),
        source_(source),
        plan_(plan),
        folds_(folds),
        exact_folds_(exact_folds(plan, scales, folds)),
        truth_(truth) {}

  [[nodiscard]] EdgeProof prove(const Edge& edge) const {
    const Activation& activation = truth_.activations[edge.activation];
    const ColumnMap& columns = activation.columns;
    // Differs per edge, not per run: the proof gives the same numbers every time.
    std::mt19937_64 random(edge.activation * 1000003 + edge.reader);
    const Ratios produced = producer_ratios(activation);
    const std::vector<float> read = factors_of(plan_, folds_, edge.reader).columns;
    const std::vector<float> read_exact = factors_of(plan_, exact_folds_, edge.reader).columns;
    // Columns that other activations feed see nothing here.
    std::vector<double> input(activation.reader_columns);
    std::vector<double> exact(activation.reader_columns);
    std::vector<double> stored(activation.reader_columns);
    for (std::size_t column = columns.start; column < columns.end(); ++column) {
      const std::size_t channel = columns.channel_of(column);
      input[column] = std::normal_distribution<double>()(random) * produced.gain[channel];
      exact[column] = input[column] * produced.exact[channel] * at_or_one(read_exact, column);
      stored[column] = input[column] * produced.stored[channel] * at_or_one(read, column);
    }
    EdgeProof proof{activation.name, truth_.tensors[edge.reader].name, 0, 0};
    compare(truth_.tensors[edge.reader], input, exact, stored, proof);
    return proof;
  }

 private:
  // Of a producer, per channel.
  struct Ratios {
    std::vector<double> gain;    // what the source multiplies by: a norm's weight, or 1
    std::vector<double> exact;   // what the plan did to it, relative to the source
    std::vector<double> stored;  // the same as it is stored
  };

  [[nodiscard]] Ratios producer_ratios(const Activation& activation) const {
    const std::vector<double> ones(activation.columns.num_channels(), 1.0);
    Ratios ratios{ones, ones, ones};
    if (!activation.producer) {
      return ratios;
    }
    const Producer& producer = *activation.producer;
    const bool is_norm = producer.kind != ProducerKind::kLinearRows;
    const double offset = producer.kind == ProducerKind::kNormPlusOne ? 1 : 0;
    std::vector<float> weight;
    if (is_norm) {
      weight = read_floats(context_, source_, truth_, truth_.tensors[producer.tensor]);
    }
    const std::vector<std::size_t>& folded_by = plan_.folds[producer.tensor].rows;
    const std::vector<float> exact = factors_of(plan_, exact_folds_, producer.tensor).row_divisors;
    const std::vector<float> stored = factors_of(plan_, folds_, producer.tensor).row_divisors;
    for (std::size_t channel = 0; channel < ones.size(); ++channel) {
      const std::size_t row = producer.rows.row(channel);
      ratios.gain[channel] = is_norm ? offset + double{weight[row]} : 1;
      ratios.exact[channel] = 1 / at_or_one(exact, row);
      ratios.stored[channel] = 1 / at_or_one(stored, row);
      if (is_norm && !stored.empty() && ratios.gain[channel] != 0) {
        const double new_gain = offset + double{folds_[folded_by.front()].norm_weight[row]};
        ratios.stored[channel] = new_gain / ratios.gain[channel];
      }
    }
    return ratios;
  }

  // W times the three inputs, row by row.
  void compare(const ModelTensor& tensor,
               const std::vector<double>& input,
               const std::vector<double>& exact,
               const std::vector<double>& stored,
               EdgeProof& proof) const {
    const std::size_t cols = input.size();
    const std::size_t rows = tensor.out_features();
    const std::size_t rows_read = std::max<std::size_t>(1, kRowsElements / cols);
    WeightReader reader(context_, source_, truth_);
    std::vector<float> values;
    double norm = 0;
    double exact_error = 0;
    double stored_error = 0;
    for (std::size_t begin = 0; begin < rows; begin += rows_read) {
      const std::size_t now = std::min(rows_read, rows - begin);
      values.resize(now * cols);
      reader.load(tensor, all_rows(tensor), begin, now);
      (void)reader.decode(0, FloatMatrix{values.data(), now, cols});
      for (std::size_t row = 0; row < now; ++row) {
        double before = 0;
        double after = 0;
        double as_stored = 0;
        for (std::size_t column = 0; column < cols; ++column) {
          const double weight = values[row * cols + column];
          before += weight * input[column];
          after += weight * exact[column];
          as_stored += weight * stored[column];
        }
        norm += before * before;
        exact_error += (after - before) * (after - before);
        stored_error += (as_stored - before) * (as_stored - before);
      }
    }
    proof.exact = norm == 0 ? 0 : std::sqrt(exact_error / norm);
    proof.stored = norm == 0 ? 0 : std::sqrt(stored_error / norm);
  }

  const Context& context_;
  const Checkpoint& source_;
  const Plan& plan_;
  const std::vector<ActivationFold>& folds_;
  const std::vector<ActivationFold> exact_folds_;
  const ResolvedArchitecture& truth_;
};

}  // namespace

std::vector<EdgeProof> prove_function(const Team& team,
                                      const Context& context,
                                      const Checkpoint& source,
                                      const Plan& plan,
                                      const ScaleTable& scales,
                                      const std::vector<ActivationFold>& folds,
                                      const ResolvedArchitecture& truth) {
  std::vector<Edge> edges;
  for (std::size_t activation = 0; activation < truth.activations.size(); ++activation) {
    for (const std::size_t reader : truth.activations[activation].readers) {
      edges.push_back({activation, reader});
    }
  }
  std::optional<EdgeProver> prover;
  team.world.collectively([&] { prover.emplace(context, source, plan, scales, folds, truth); });
  std::vector<std::uint64_t> costs;
  std::vector<EdgeProof> proofs;
  for (const Edge& edge : edges) {
    costs.push_back(truth.tensors[edge.reader].num_elements());
    proofs.push_back(
        {truth.activations[edge.activation].name, truth.tensors[edge.reader].name, 0, 0});
  }
  std::vector<double> differences(2 * edges.size(), 0.0);
  run_tasks(
      team,
      {"function",
       own_tasks(team, costs, [](std::size_t) { return false; }),
       [&](std::size_t edge) { return 2 * costs[edge]; }},
      [&](std::size_t edge, int /*worker*/) {
        const EdgeProof proof = prover->prove(edges[edge]);
        differences[2 * edge] = proof.exact;
        differences[2 * edge + 1] = proof.stored;
      },
      [] {});
  team.world.sum_disjoint(differences);
  for (std::size_t edge = 0; edge < edges.size(); ++edge) {
    proofs[edge].exact = differences[2 * edge];
    proofs[edge].stored = differences[2 * edge + 1];
  }
  return proofs;
}

const EdgeProof& worst_edge(const std::vector<EdgeProof>& edges) {
  check_invariant(!edges.empty(), "a function proof without edges");
  return *std::ranges::max_element(edges, {}, &EdgeProof::exact);
}

}  // namespace quantmill
