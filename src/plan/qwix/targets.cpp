#include "plan/qwix/targets.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "plan/qwix/codes.h"

namespace quantmill {

namespace {

// Larger squares would need as many rows of a weight at a time.
constexpr std::uint64_t kLargestSquare = 128;

using AxisNumbers = std::map<std::string, std::uint64_t>;

[[noreturn]] void fail(const std::string& message) {
  throw Error(ErrorCode::kInput, message);
}

std::uint64_t product(const std::vector<SizedAxis>& axes) {
  std::uint64_t size = 1;
  for (const SizedAxis& axis : axes) {
    size *= axis.size;
  }
  return size;
}

const ModelTensor& tensor_of(const Plan& plan, const TensorWork& work) {
  return plan.architecture.tensors[work.tensor];
}

// Which stored dimensions are a linear's outputs and inputs.
struct LinearDimensions {
  std::size_t out = 0;
  std::size_t in = 1;
};

LinearDimensions linear_dimensions(const Plan& plan, const TensorWork& work) {
  const ModelTensor& tensor = tensor_of(plan, work);
  const std::size_t first = tensor.slice ? 1 : 0;
  return tensor.transposed ? LinearDimensions{first + 1, first}
                           : LinearDimensions{first, first + 1};
}

// What a scale's tensor has of each axis: its size divided by this.
AxisNumbers scale_divisors(const ParameterSource& source,
                           const LinearDimensions& dimensions,
                           const ScaleBlocks& blocks) {
  AxisNumbers divisors;
  const auto divide = [&](std::size_t dimension, std::uint64_t block, const char* what) {
    std::vector<std::string> names;
    for (const SizedAxis& axis : source.dimensions[dimension]) {
      if (axis.size > 1) {
        names.push_back(axis.name);
      }
    }
    if (names.size() > 1) {
      fail(
          fmt::format("its {} are split into ({}), and Qwix has one scale for all of the first of "
                      "them, but the codes have a scale for every {}; only codes with one scale "
                      "for each output can be stored so",
                      what,
                      fmt::join(names, " "),
                      block));
    }
    for (const std::string& name : names) {
      divisors[name] = block;
    }
  };
  if (blocks.is_whole) {
    for (const SizedAxis& axis : source.dimensions[dimensions.in]) {
      divisors[axis.name] = axis.size;
    }
  } else {
    divide(dimensions.in, blocks.cols, "inputs");
  }
  if (blocks.rows > 1) {
    divide(dimensions.out, blocks.rows, "outputs");
  }
  return divisors;
}

std::uint64_t divisor_of(const AxisNumbers& divisors, const std::string& axis) {
  const auto found = divisors.find(axis);
  return found == divisors.end() ? 1 : found->second;
}

AxisNumbers strides_of(const JaxParameter& parameter, const AxisNumbers& divisors) {
  AxisNumbers strides;
  std::uint64_t stride = 1;
  for (std::size_t i = parameter.dimensions.size(); i-- > 0;) {
    const std::vector<SizedAxis>& dimension = parameter.dimensions[i];
    for (std::size_t j = dimension.size(); j-- > 0;) {
      strides[dimension[j].name] = stride;
      stride *= dimension[j].size / divisor_of(divisors, dimension[j].name);
    }
  }
  return strides;
}

// Stored dimensions, after that of the slice, that number rows and columns of the work's matrix.
struct Sides {
  std::vector<std::size_t> rows;
  std::vector<std::size_t> cols;
};

Sides sides_of(const Plan& plan, const TensorWork& work) {
  if (work.is_quantized()) {
    const LinearDimensions dimensions = linear_dimensions(plan, work);
    return {{dimensions.out}, {dimensions.in}};
  }
  const ModelTensor& tensor = tensor_of(plan, work);
  const std::vector<std::uint64_t>& shape = plan.architecture.weights[tensor.stored].entry.shape;
  const std::size_t first = tensor.slice ? 1 : 0;
  std::size_t split = shape.size();
  for (std::uint64_t size = 1; split > first && size != work.cols;) {
    size *= shape[--split];
  }
  Sides sides;
  for (std::size_t i = first; i < shape.size(); ++i) {
    (i < split ? sides.rows : sides.cols).push_back(i);
  }
  return sides;
}

ArrangedPart arrange(const TensorPlace& place,
                     const JaxParameter& parameter,
                     const ParameterSource& source,
                     const std::optional<std::uint64_t>& slice,
                     const Sides& sides,
                     const AxisNumbers& divisors) {
  const AxisNumbers strides = strides_of(parameter, divisors);
  const auto steps = [&](std::size_t dimension, std::vector<AxisStep>& all) {
    for (const SizedAxis& axis : source.dimensions[dimension]) {
      all.push_back({axis.size / divisor_of(divisors, axis.name), strides.at(axis.name)});
    }
  };
  ArrangedPart part{place.shard, 0, place.dtype, {}};
  std::uint64_t first = 0;
  for (const auto& [axis, index] : source.at) {
    first += index / divisor_of(divisors, axis) * strides.at(axis);
  }
  if (slice) {
    std::vector<AxisStep> leading;
    steps(0, leading);
    first += Arrangement::offset(leading, *slice);
  }
  for (const std::size_t dimension : sides.rows) {
    steps(dimension, part.arrangement.rows);
  }
  for (const std::size_t dimension : sides.cols) {
    steps(dimension, part.arrangement.cols);
  }
  part.file_offset = place.file_offset + first * part.element_bytes();
  return part;
}

// Whether the elements of the whole matrix lie one after the other.
bool is_contiguous(const ArrangedTarget& target, const TensorWork& work) {
  if (target.row_begin != 0 || target.row_end != work.rows || target.col_begin != 0 ||
      target.col_end != work.cols) {
    return false;
  }
  const Arrangement& arrangement = target.values.arrangement;
  std::vector<AxisStep> steps = arrangement.rows;
  steps.insert(steps.end(), arrangement.cols.begin(), arrangement.cols.end());
  std::uint64_t stride = 1;
  for (std::size_t i = steps.size(); i-- > 0;) {
    if (steps[i].size != 1 && steps[i].stride != stride) {
      return false;
    }
    stride *= steps[i].size;
  }
  return true;
}

void take_range(const ParameterSource& source, const Sides& sides, ArrangedTarget& target) {
  if (!source.taken_dimension) {
    return;
  }
  const std::uint64_t size = product(source.dimensions[*source.taken_dimension]);
  const std::vector<std::size_t> wanted = {*source.taken_dimension};
  if (sides.rows == wanted) {
    target.row_begin = source.taken_start;
    target.row_end = source.taken_start + size;
  } else if (sides.cols == wanted && !target.scales) {
    target.col_begin = source.taken_start;
    target.col_end = source.taken_start + size;
  } else {
    fail("a part of that axis can't be taken as the weight is stored");
  }
}

}  // namespace

ScaleBlocks choose_blocks(const Checkpoint& checkpoint,
                          const Plan& plan,
                          const std::vector<std::vector<std::size_t>>& works,
                          const JaxParameter& parameter) {
  std::uint64_t rows = 0;
  std::uint64_t cols = 0;
  bool is_whole = true;
  std::map<std::string, std::uint64_t> totals;
  for (const std::vector<SizedAxis>& dimension : parameter.dimensions) {
    for (const SizedAxis& axis : dimension) {
      totals[axis.name] = axis.size;
    }
  }
  for (const ParameterSource& source : parameter.sources) {
    for (const std::size_t index : works[source.weight]) {
      const TensorWork& work = plan.tensors[index];
      const QwixCodes codes = qwix_codes(checkpoint, plan, work);
      const LinearDimensions dimensions = linear_dimensions(plan, work);
      const std::uint64_t outputs = product(source.dimensions[dimensions.out]);
      const std::uint64_t inputs = product(source.dimensions[dimensions.in]);
      const bool takes_outputs = source.taken_dimension == dimensions.out;
      const std::uint64_t first = takes_outputs ? source.taken_start : 0;
      rows = std::gcd(rows, std::gcd(std::gcd(codes.block_rows, outputs), first));
      cols =
          std::gcd(cols, codes.block_cols >= inputs ? inputs : std::gcd(codes.block_cols, inputs));
      is_whole = is_whole && codes.block_cols >= inputs;
      for (const SizedAxis& axis : source.dimensions[dimensions.in]) {
        is_whole = is_whole && totals.at(axis.name) == axis.size;
      }
    }
  }
  const bool is_square = parameter.opaque && rows > 1;
  std::uint64_t block = is_square ? std::gcd(rows, cols) : cols;
  if (parameter.block) {
    if (*parameter.block == 0 || block % *parameter.block != 0) {
      fail(
          fmt::format("blocks of {} do not fit: the codes' blocks, their outputs and their inputs "
                      "allow {} at most, and what divides it",
                      *parameter.block,
                      block));
    }
    is_whole = is_whole && *parameter.block == block;
    block = *parameter.block;
  } else if (is_square && block > kLargestSquare) {
    block = std::gcd(block, kLargestSquare);
  }
  return {is_square ? block : 1, block, is_whole && !is_square};
}

std::vector<std::uint64_t> scale_shape(const Plan& plan,
                                       const TensorWork& work,
                                       const JaxParameter& parameter,
                                       const ScaleBlocks& blocks) {
  const AxisNumbers divisors =
      scale_divisors(parameter.sources.front(), linear_dimensions(plan, work), blocks);
  JaxParameter scales = parameter;
  for (std::vector<SizedAxis>& dimension : scales.dimensions) {
    for (SizedAxis& axis : dimension) {
      axis.size /= divisor_of(divisors, axis.name);
    }
  }
  return scales.shape();
}

void add_target(const Plan& plan,
                const JaxParameter& parameter,
                const ParameterSource& source,
                const ParameterPlaces& places,
                TensorWork& work) {
  const Sides sides = sides_of(plan, work);
  const std::optional<std::uint64_t> slice = tensor_of(plan, work).slice;
  if (slice && source.taken_dimension == std::size_t{0}) {
    fail("some slices can't be taken without the others");
  }
  ArrangedTarget target;
  target.row_end = work.rows;
  target.col_end = work.cols;
  target.values = arrange(places.values, parameter, source, slice, sides, {});
  if (places.scales) {
    const AxisNumbers divisors =
        scale_divisors(source, linear_dimensions(plan, work), places.blocks);
    target.block_rows = places.blocks.rows;
    target.block_cols = places.blocks.cols;
    target.scales = arrange(*places.scales, parameter, source, slice, sides, divisors);
    if (places.zero_points) {
      target.zero_points = arrange(*places.zero_points, parameter, source, slice, sides, divisors);
    }
  }
  take_range(source, sides, target);
  work.targets.push_back(std::move(target));
}

void finish_targets(const Plan& plan, TensorWork& work) {
  std::uint64_t covered = 0;
  for (const ArrangedTarget& target : work.targets) {
    covered += (target.row_end - target.row_begin) * (target.col_end - target.col_begin);
  }
  if (covered != work.rows * work.cols) {
    fail(
        fmt::format("tensor {}: the parts of it that parameters take are {} elements, but it has "
                    "{}; every element must go to one parameter",
                    work.name,
                    covered,
                    work.rows * work.cols));
  }
  const ArrangedPart& values = work.targets.front().values;
  const std::uint64_t bytes = work.rows * work.cols * values.element_bytes();
  if (!work.is_quantized()) {
    const std::uint64_t row_bytes = work.cols * values.element_bytes();
    work.parts = {{values.shard, values.file_offset, bytes, row_bytes, 1}};
    if (work.targets.size() == 1 && is_contiguous(work.targets.front(), work)) {
      work.targets.clear();
    } else if (work.action == Action::kCopy) {
      work.action = Action::kRearrange;
    } else if (work.action == Action::kFoldNorm) {
      fail(fmt::format("tensor {}: a norm that is scaled can't be spread out", work.name));
    }
    return;
  }
  if (work.copies_codes) {
    work.parts = {{values.shard, values.file_offset, bytes, work.cols, 1}};
    return;
  }
  // What the codes and scales take before they are arranged.
  for (const StoredPart& part :
       stored_parts(work.scheme, plan.recipe.layout, work.name, work.rows, work.cols, false)) {
    const std::uint64_t rows =
        work.rows / part.weight_rows + (work.rows % part.weight_rows != 0 ? 1 : 0);
    const std::uint64_t size = tensor_size_bytes(part.dtype, part.shape);
    work.parts.push_back({values.shard,
                          values.file_offset,
                          size,
                          rows == 0 ? 0 : size / rows,
                          part.weight_rows,
                          part.kind});
  }
}

}  // namespace quantmill
