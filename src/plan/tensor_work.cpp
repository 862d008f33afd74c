#include <numeric>

#include "plan/plan.h"

namespace quantmill {

namespace {

// bytes * part / whole, without overflow: part and whole have a common divisor.
std::uint64_t checked_share(std::uint64_t bytes, std::uint64_t part, std::uint64_t whole) {
  const std::uint64_t divisor = std::gcd(part, whole);
  return bytes / (whole / divisor) * (part / divisor) +
         bytes % (whole / divisor) * (part / divisor) / (whole / divisor);
}

}  // namespace

std::uint64_t TensorWork::rows_together() const {
  std::uint64_t together = is_quantized() ? quantmill::rows_together(scheme) : 1;
  for (const ArrangedTarget& target : targets) {
    together = std::lcm(together, target.block_rows);
  }
  return together;
}

std::string_view TensorWork::stored_name() const {
  return is_quantized() ? scheme_name(scheme) : dtype_name(stored);
}

std::uint64_t TensorWork::output_bytes() const {
  std::uint64_t bytes = 0;
  for (const OutputPlace& part : parts) {
    bytes += part.size_bytes;
  }
  return bytes;
}

std::uint64_t source_bytes(const Checkpoint& checkpoint, const Plan& plan, const TensorWork& work) {
  if (work.action == Action::kKvScale) {
    return 0;
  }
  const SourceWeight& weight =
      plan.architecture.weights[plan.architecture.tensors[work.tensor].stored];
  std::uint64_t bytes = 0;
  for (const auto& part : {std::optional(weight.codes), weight.scales, weight.zero_points}) {
    bytes += part ? checkpoint.tensors()[*part].entry.size_bytes() : 0;
  }
  const std::uint64_t elements = weight.entry.num_elements();
  return elements == 0 ? 0 : checked_share(bytes, work.rows * work.cols, elements);
}

std::string_view source_type_name(const SourceWeight& weight) {
  return weight.is_plain() ? dtype_name(weight.entry.dtype) : encoding_name(weight.encoding);
}

TypeBytes source_bytes_by_type(const Checkpoint& checkpoint, const Plan& plan) {
  TypeBytes sizes;
  for (const TensorWork& work : plan.tensors) {
    if (work.action != Action::kKvScale) {
      const std::size_t stored = plan.architecture.tensors[work.tensor].stored;
      sizes[std::string(source_type_name(plan.architecture.weights[stored]))] +=
          source_bytes(checkpoint, plan, work);
    }
  }
  return sizes;
}

TypeBytes output_bytes_by_type(const Plan& plan) {
  TypeBytes sizes;
  for (const TensorWork& work : plan.tensors) {
    sizes[std::string(work.stored_name())] += work.output_bytes();
  }
  return sizes;
}

ParameterCounts count_parameters(const Plan& plan) {
  ParameterCounts count;
  for (const TensorWork& work : plan.tensors) {
    const std::uint64_t elements = work.rows * work.cols;
    count.all += elements;
    count.quantized += work.is_quantized() ? elements : 0;
  }
  return count;
}

}  // namespace quantmill
