#include "pipeline/carried_scales.h"

#include <cmath>

#include "kernels/convert.h"
#include "kernels/mx.h"
#include "pipeline/measure.h"

namespace quantmill {
namespace {

// 0 if it is no number that can be a scale: then the weight is decoded, which tells.
double stored_scale(const Checkpoint& checkpoint, const Plan& plan, const TensorWork& work) {
  const ModelTensor& tensor = plan.architecture.tensors[work.tensor];
  const SourceWeight& weight = plan.architecture.weights[tensor.stored];
  const bool is_nvfp4 = weight.encoding == Encoding::kNvfp4;
  const SourceTensor& source =
      checkpoint.tensors()[is_nvfp4 ? *weight.global_scale : *weight.scales];
  const std::uint64_t element = dtype_bits(source.entry.dtype) / 8;
  const std::uint64_t slice = source.entry.num_elements() > 1 ? tensor.slice.value_or(0) : 0;
  std::vector<std::byte> bytes(element);
  checkpoint.read(source, slice * element, bytes);
  float value = 0;
  if (element == 1) {
    value = decode_e8m0(static_cast<std::uint8_t>(bytes[0]));
  } else {
    (void)decode_to_float(
        {Backend::kReference, Isa::kPlain}, source.entry.dtype, bytes, FloatMatrix{&value, 1, 1});
  }
  if (is_nvfp4 && !weight.divides_by_global_scale) {
    value = 1 / value;  // ModelOpt and Quark store the inverse of what is written here
  }
  return std::isfinite(value) && value > 0 ? value : 0;
}

// Whether a tensor's codes stay as they are if its scale does.
bool may_carry(const TensorWork& work) {
  return is_measured(work) && work.copies_codes;
}

// One value for each set, 0 if its tensors differ.
std::vector<float> shared_scales(const Plan& plan, const std::vector<double>& stored) {
  std::vector<float> of_set(plan.tensors.size(), 0.0F);
  for (std::size_t index = 0; index < plan.tensors.size(); ++index) {
    of_set[plan.tensors[index].shares_scale_with] = static_cast<float>(stored[index]);
  }
  for (std::size_t index = 0; index < plan.tensors.size(); ++index) {
    float& shared = of_set[plan.tensors[index].shares_scale_with];
    shared = static_cast<float>(stored[index]) == shared ? shared : 0;
  }
  std::vector<float> result;
  for (const TensorWork& work : plan.tensors) {
    result.push_back(of_set[work.shares_scale_with]);
  }
  return result;
}

}  // namespace

std::vector<float> carried_scales(const Team& team,
                                  const Checkpoint& checkpoint,
                                  const Plan& plan) {
  std::vector<double> stored(plan.tensors.size(), 0.0);
  team.world.collectively([&] {
    for (std::size_t index = 0; index < plan.tensors.size(); ++index) {
      const bool is_own = index % static_cast<std::size_t>(team.world.size()) ==
                          static_cast<std::size_t>(team.world.rank());
      if (is_own && may_carry(plan.tensors[index])) {
        stored[index] = stored_scale(checkpoint, plan, plan.tensors[index]);
      }
    }
  });
  team.world.sum_disjoint(stored);
  return shared_scales(plan, stored);
}

}  // namespace quantmill
