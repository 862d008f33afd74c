#include "pipeline/fold_table.h"

#include <fmt/format.h>

#include "base/error.h"

#include "kernels/convert.h"
#include "quant/norm_fold.h"

namespace quantmill {
namespace {

ActivationFold fold_activation(const Context& context,
                               const Checkpoint& checkpoint,
                               const Plan& plan,
                               const Activation& activation,
                               const std::vector<float>& s) {
  ActivationFold fold;
  std::vector<float> effective_s = s;
  const Producer& producer = *activation.producer;
  if (producer.kind == ProducerKind::kLinearRows) {
    fold.row_divisors = s;
  } else {
    NormFold norm = fold_norm(context,
                              read_floats(context, checkpoint, producer.tensor),
                              s,
                              producer.kind == ProducerKind::kNormPlusOne,
                              plan.tensors[producer.tensor].stored);
    fold.norm_weight = std::move(norm.weight);
    if (plan.recipe.compat != Compat::kSeed) {
      effective_s = std::move(norm.effective_s);
    }
  }
  fold.column_factors.resize(activation.columns.num_columns());
  for (std::size_t column = 0; column < fold.column_factors.size(); ++column) {
    fold.column_factors[column] = effective_s[activation.columns.channel_of(column)];
  }
  return fold;
}

}  // namespace

std::vector<float> read_floats(const Context& context,
                               const Checkpoint& checkpoint,
                               std::size_t tensor) {
  const SourceTensor& source = checkpoint.tensors()[tensor];
  std::vector<std::byte> bytes(source.entry.size_bytes());
  checkpoint.read(source, 0, bytes);
  std::vector<float> values(source.entry.num_elements());
  const auto bad = decode_to_float(
      context, source.entry.dtype, bytes, FloatMatrix{values.data(), 1, values.size()});
  if (bad) {
    throw Error(
        ErrorCode::kInput,
        fmt::format("tensor {}: element {} is {}; the checkpoint is damaged or was trained into it",
                    source.entry.name,
                    bad->col,
                    values[bad->col]));
  }
  return values;
}

std::vector<ActivationFold> make_fold_table(const Context& context,
                                            const Checkpoint& checkpoint,
                                            const Plan& plan,
                                            const ScaleTable& scales) {
  std::vector<ActivationFold> table(plan.architecture.activations.size());
  if (plan.recipe.scaling == Scaling::kNone || plan.recipe.fold_scales == FoldScales::kOff) {
    return table;
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
      table[index] = fold_activation(
          context, checkpoint, plan, plan.architecture.activations[index], found->second.s);
    }
  }
  return table;
}

}  // namespace quantmill
