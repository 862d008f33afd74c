#include "pipeline/fold_table.h"

#include <unordered_map>

#include <fmt/format.h>

#include "base/error.h"

#include "kernels/convert.h"
#include "pipeline/weight_reader.h"
#include "quant/norm_fold.h"

namespace quantmill {
namespace {

// Type in the output of each norm that is folded, by tensor of the architecture.
using StoredNorms = std::unordered_map<std::size_t, DType>;

ActivationFold fold_activation(const Context& context,
                               const Checkpoint& checkpoint,
                               const Plan& plan,
                               const StoredNorms& stored_norms,
                               const Activation& activation,
                               const std::vector<float>& s) {
  ActivationFold fold{s, {}};
  const Producer& producer = *activation.producer;
  if (producer.kind != ProducerKind::kLinearRows) {
    NormFold norm = fold_norm(
        context,
        read_floats(
            context, checkpoint, plan.architecture, plan.architecture.tensors[producer.tensor]),
        s,
        producer.kind == ProducerKind::kNormPlusOne,
        stored_norms.at(producer.tensor));
    fold.norm_weight = std::move(norm.weight);
    if (plan.recipe.compat != Compat::kSeed) {
      fold.s = std::move(norm.effective_s);
    }
  }
  return fold;
}

}  // namespace

std::vector<float> read_floats(const Context& context,
                               const Checkpoint& checkpoint,
                               const ResolvedArchitecture& architecture,
                               const ModelTensor& tensor) {
  const TensorEntry& entry = architecture.weights[tensor.stored].entry;
  std::vector<std::byte> bytes(tensor.num_elements() * dtype_bits(entry.dtype) / 8);
  read_stored(checkpoint, architecture, tensor, 0, bytes);
  std::vector<float> values(tensor.num_elements());
  const auto bad =
      decode_to_float(context, entry.dtype, bytes, FloatMatrix{values.data(), 1, values.size()});
  if (bad) {
    throw Error(
        ErrorCode::kInput,
        fmt::format("tensor {}: element {} is {}; the checkpoint is damaged or was trained into it",
                    tensor.name,
                    bad->col,
                    values[bad->col]));
  }
  return values;
}

TensorFactors factors_of(const Plan& plan,
                         const std::vector<ActivationFold>& folds,
                         std::size_t tensor) {
  const ModelTensor& model = plan.architecture.tensors[tensor];
  const bool is_linear = model.role == TensorRole::kLinear;
  TensorFactors factors;
  for (const std::size_t index : plan.folds[tensor].columns) {
    const std::vector<float>& s = folds[index].s;
    const ColumnMap& columns = plan.architecture.activations[index].columns;
    if (s.empty()) {
      continue;
    }
    factors.columns.resize(model.in_features(), 1.0F);
    for (std::size_t column = columns.start; column < columns.end(); ++column) {
      factors.columns[column] = s[columns.channel_of(column)];
    }
  }
  for (const std::size_t index : plan.folds[tensor].rows) {
    const std::vector<float>& s = folds[index].s;
    const RowRange& rows = plan.architecture.activations[index].producer->rows;
    if (s.empty()) {
      continue;
    }
    factors.row_divisors.resize(is_linear ? model.out_features() : model.num_elements(), 1.0F);
    for (std::size_t channel = 0; channel < s.size(); ++channel) {
      factors.row_divisors[rows.row(channel)] = s[channel];
    }
  }
  return factors;
}

std::vector<ActivationFold> make_fold_table(const Context& context,
                                            const Checkpoint& checkpoint,
                                            const Plan& plan,
                                            const ScaleTable& scales) {
  std::vector<ActivationFold> table(plan.architecture.activations.size());
  if (plan.recipe.scaling == Scaling::kNone || plan.recipe.fold_scales == FoldScales::kOff) {
    return table;
  }
  StoredNorms stored_norms;
  for (const TensorWork& work : plan.tensors) {
    if (work.action == Action::kFoldNorm) {
      stored_norms.emplace(work.tensor, work.stored);
    }
  }
  for (const FoldGroup& group : plan.architecture.fold_groups) {
    if (!group.no_fold_reason.empty()) {
      continue;
    }
    const auto found = scales.find(group.name);
    if (found == scales.end() || found->second.s.size() != group.num_channels) {
      throw Error(
          ErrorCode::kInput,
          fmt::format(
              "the scales have {} for fold group '{}', which has {} channels; they are of another "
              "model",
              found == scales.end() ? "nothing" : fmt::format("{} values", found->second.s.size()),
              group.name,
              group.num_channels));
    }
    if (!found->second.reason.empty()) {
      continue;
    }
    for (const std::size_t index : group.activations) {
      table[index] = fold_activation(context,
                                     checkpoint,
                                     plan,
                                     stored_norms,
                                     plan.architecture.activations[index],
                                     found->second.s);
    }
  }
  return table;
}

}  // namespace quantmill
