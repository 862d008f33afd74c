#include "pipeline/function_proof.h"

#include <algorithm>
#include <cmath>
#include <random>

#include <fmt/format.h>

#include "base/error.h"
#include "base/parallel.h"
#include "kernels/convert.h"

namespace quantmill {
namespace {

constexpr std::uint64_t kRowsElements = std::uint64_t{1} << 16;

struct Edge {
  std::size_t activation = 0;
  std::size_t reader = 0;
};

class EdgeProver {
 public:
  EdgeProver(const Context& context,
             const Checkpoint& source,
             const Plan& plan,
             const ScaleTable& scales,
             const std::vector<ActivationFold>& folds,
             const ResolvedArchitecture& truth)
      : context_(context), source_(source), plan_(plan), folds_(folds), truth_(truth) {
    // s of each activation of the plan, empty where it is not scaled.
    activation_s_.resize(plan.architecture.activations.size());
    for (const FoldGroup& group : plan.architecture.fold_groups) {
      const auto found = scales.find(group.name);
      for (const std::size_t activation : group.activations) {
        if (found != scales.end() && !folds[activation].column_factors.empty()) {
          activation_s_[activation] = found->second.s;
        }
      }
    }
  }

  EdgeProof prove(const Edge& edge) const {
    const Activation& activation = truth_.activations[edge.activation];
    const std::size_t cols = activation.columns.num_columns();
    // Differs per edge, not per run: the proof gives the same numbers every time.
    std::mt19937_64 random(edge.activation * 1000003 + edge.reader);
    std::vector<double> input(cols);
    for (double& value : input) {
      value = std::normal_distribution<double>()(random);
    }
    const std::vector<double> gain = producer_gain(activation);
    for (std::size_t column = 0; column < cols; ++column) {
      input[column] *= gain[activation.columns.channel_of(column)];
    }
    std::vector<double> exact(cols);
    std::vector<double> stored(cols);
    for (std::size_t column = 0; column < cols; ++column) {
      const std::size_t channel = activation.columns.channel_of(column);
      const Ratios produced = producer_ratio(activation, channel, gain[channel]);
      const Ratios read = reader_ratio(edge.reader, column);
      exact[column] = input[column] * produced.exact * read.exact;
      stored[column] = input[column] * produced.stored * read.stored;
    }
    EdgeProof proof{activation.name, truth_.tensors[edge.reader].name, 0, 0};
    compare(edge.reader, input, exact, stored, proof);
    return proof;
  }

 private:
  struct Ratios {
    double exact = 1;
    double stored = 1;
  };

  // What the source's producer multiplies each channel by: a norm's weight; 1 for anything else.
  std::vector<double> producer_gain(const Activation& activation) const {
    std::vector<double> gain(activation.columns.num_channels(), 1.0);
    if (!activation.producer || activation.producer->kind == ProducerKind::kLinearRows) {
      return gain;
    }
    const double offset = activation.producer->kind == ProducerKind::kNormPlusOne ? 1 : 0;
    const std::vector<float> weight = read_floats(context_, source_, activation.producer->tensor);
    for (std::size_t channel = 0; channel < gain.size(); ++channel) {
      gain[channel] = offset + double{weight[channel]};
    }
    return gain;
  }

  // What the plan did to one channel of the producer, relative to the source.
  Ratios producer_ratio(const Activation& activation, std::size_t channel, double old_gain) const {
    if (!activation.producer) {
      return {};
    }
    const std::size_t tensor = activation.producer->tensor;
    const auto scaled_by = plan_.tensors[tensor].row_activation;
    if (!scaled_by || activation_s_[*scaled_by].empty()) {
      return {};
    }
    const double s = activation_s_[*scaled_by][channel];
    if (activation.producer->kind == ProducerKind::kLinearRows) {
      return {1 / s, 1 / double{folds_[*scaled_by].row_divisors[channel]}};
    }
    const double offset = activation.producer->kind == ProducerKind::kNormPlusOne ? 1 : 0;
    const double new_gain = offset + double{folds_[*scaled_by].norm_weight[channel]};
    return {1 / s, old_gain == 0 ? 1 / s : new_gain / old_gain};
  }

  Ratios reader_ratio(std::size_t tensor, std::size_t column) const {
    const auto scaled_by = plan_.tensors[tensor].column_activation;
    if (!scaled_by || activation_s_[*scaled_by].empty()) {
      return {};
    }
    const std::size_t channel =
        plan_.architecture.activations[*scaled_by].columns.channel_of(column);
    return {activation_s_[*scaled_by][channel], folds_[*scaled_by].column_factors[column]};
  }

  // W times the three inputs, row by row.
  void compare(std::size_t tensor,
               const std::vector<double>& input,
               const std::vector<double>& exact,
               const std::vector<double>& stored,
               EdgeProof& proof) const {
    const SourceTensor& source = source_.tensors()[tensor];
    const std::size_t cols = input.size();
    const std::size_t rows = source.entry.num_elements() / cols;
    const std::size_t rows_read = std::max<std::size_t>(1, kRowsElements / cols);
    const std::size_t row_bytes = cols * dtype_bits(source.entry.dtype) / 8;
    std::vector<std::byte> bytes;
    std::vector<float> values;
    double norm = 0;
    double exact_error = 0;
    double stored_error = 0;
    for (std::size_t begin = 0; begin < rows; begin += rows_read) {
      const std::size_t now = std::min(rows_read, rows - begin);
      bytes.resize(now * row_bytes);
      values.resize(now * cols);
      source_.read(source, begin * row_bytes, bytes);
      (void)decode_to_float(
          context_, source.entry.dtype, bytes, FloatMatrix{values.data(), now, cols});
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
  const ResolvedArchitecture& truth_;
  std::vector<std::vector<float>> activation_s_;
};

}  // namespace

std::vector<EdgeProof> prove_function(const Context& context,
                                      const Checkpoint& source,
                                      const Plan& plan,
                                      const ScaleTable& scales,
                                      const std::vector<ActivationFold>& folds,
                                      const ResolvedArchitecture& truth,
                                      int num_threads) {
  std::vector<Edge> edges;
  for (std::size_t activation = 0; activation < truth.activations.size(); ++activation) {
    for (const std::size_t reader : truth.activations[activation].readers) {
      edges.push_back({activation, reader});
    }
  }
  const EdgeProver prover(context, source, plan, scales, folds, truth);
  std::vector<EdgeProof> proofs(edges.size());
  run_indexed(num_threads, edges.size(), [&](std::size_t index, int) {
    proofs[index] = prover.prove(edges[index]);
  });
  return proofs;
}

const EdgeProof& worst_edge(const std::vector<EdgeProof>& edges) {
  check_invariant(!edges.empty(), "a function proof without edges");
  return *std::ranges::max_element(edges, {}, &EdgeProof::exact);
}

}  // namespace quantmill
