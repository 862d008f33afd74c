// The cpu backend: whole matrices, cut into what the entries of an instruction set take.

#include <algorithm>
#include <vector>

#include "kernels/backends.h"
#include "kernels/cpu/entries.h"

namespace quantmill::cpu {
namespace {

// A tile of rows x columns is read from memory once and then met by every candidate out of the
// first-level cache: 4 x 512 values, and 512 each of s, 1 / s and importance, are 14 KB.
constexpr std::size_t kTileRows = 4;
constexpr std::size_t kTileCols = 512;

}  // namespace

const Entries& entries(Isa isa) {
  switch (isa) {
    case Isa::kPlain:
      return kPlainEntries;
    case Isa::kAvx2:
      return kAvx2Entries;
    case Isa::kAvx512:
      return kAvx512Entries;
  }
  return kPlainEntries;
}

std::optional<MatrixPosition> decode_to_float(Isa isa,
                                              DType dtype,
                                              std::span<const std::byte> stored,
                                              FloatMatrix out) {
  const std::size_t count = out.rows * out.cols;
  if (dtype != DType::kF32 &&
      entries(isa).decode({stored.data(), out.data, count, dtype == DType::kBf16})) {
    return std::nullopt;
  }
  // F32 is a copy; and where something is not finite, the reference finds the place.
  return reference::decode_to_float(dtype, stored, out);
}

std::optional<MatrixPosition> encode_from_float(Isa isa,
                                                ConstFloatMatrix values,
                                                DType dtype,
                                                std::span<std::byte> stored) {
  const std::size_t count = values.rows * values.cols;
  if (dtype == DType::kBf16 && entries(isa).encode({values.data, stored.data(), count})) {
    return std::nullopt;
  }
  return reference::encode_from_float(values, dtype, stored);
}

void scale_matrix(Isa isa, FloatMatrix values, const MatrixFactors& factors) {
  const auto pointer = [](std::span<const float> side) {
    return side.empty() ? nullptr : side.data();
  };
  entries(isa).scale_rows({values.data,
                           values.rows,
                           values.cols,
                           pointer(factors.columns),
                           pointer(factors.rows),
                           pointer(factors.column_divisors),
                           pointer(factors.row_divisors)});
}

void mx_quantize(Isa isa,
                 const MxSpec& spec,
                 ConstFloatMatrix values,
                 std::span<std::uint8_t> packed,
                 std::span<std::uint8_t> scales,
                 std::span<const float> importance) {
  QuantizeTask task{values.data,
                    packed.data(),
                    scales.data(),
                    scales.size(),
                    mx_scale_carry(spec.scale_rule, spec.element),
                    spec.ties == TieRule::kSeed,
                    spec.element,
                    nullptr};
  if (spec.scale_rule != ScaleRule::kMse) {
    return entries(isa).mx_quantize(task);
  }
  const std::vector<float> ones(importance.empty() ? values.cols : 0, 1.0F);
  task.importance = importance.empty() ? ones.data() : importance.data();
  task.num_blocks = values.cols / kMxBlock;
  for (std::size_t r = 0; r < values.rows; ++r) {
    task.values = values.row(r).data();
    task.packed = packed.data() + r * mx_packed_bytes(spec.element, values.cols);
    task.scales = scales.data() + r * task.num_blocks;
    entries(isa).mx_quantize(task);
  }
}

void mx_dequantize(Isa isa,
                   ElementFormat element,
                   std::span<const std::uint8_t> packed,
                   std::span<const std::uint8_t> scales,
                   FloatMatrix values) {
  entries(isa).mx_dequantize({packed.data(), scales.data(), values.data, scales.size(), element});
}

void mx_error_curve(Isa isa,
                    const MxSpec& spec,
                    ConstFloatMatrix values,
                    std::span<const float> importance,
                    ConstFloatMatrix candidates,
                    std::span<double> sums) {
  const auto add_curve = entries(isa).add_curve;
  const std::uint32_t carry = mx_scale_carry(spec.scale_rule, spec.element);
  std::vector<float> inverses(candidates.rows * candidates.cols);
  for (std::size_t i = 0; i < inverses.size(); ++i) {
    inverses[i] = 1.0F / candidates.data[i];
  }
  std::vector<SumLanes> lanes(kTileRows * sums.size());
  for (std::size_t first = 0; first < values.rows; first += kTileRows) {
    const std::size_t num_rows = std::min(kTileRows, values.rows - first);
    std::fill(lanes.begin(), lanes.end(), SumLanes{});
    for (std::size_t begin = 0; begin < values.cols; begin += kTileCols) {
      const std::size_t num_cols = std::min(kTileCols, values.cols - begin);
      for (std::size_t candidate = 0; candidate < sums.size(); ++candidate) {
        const std::size_t offset = candidate * values.cols + begin;
        for (std::size_t r = 0; r < num_rows; ++r) {
          add_curve({values.data + (first + r) * values.cols + begin,
                     importance.data() + begin,
                     candidates.data + offset,
                     inverses.data() + offset,
                     num_cols,
                     carry,
                     spec.ties == TieRule::kSeed,
                     lanes[r * sums.size() + candidate].data(),
                     spec.element,
                     spec.scale_rule == ScaleRule::kMse});
        }
      }
    }
    for (std::size_t r = 0; r < num_rows; ++r) {
      for (std::size_t candidate = 0; candidate < sums.size(); ++candidate) {
        sums[candidate] += add_lanes(lanes[r * sums.size() + candidate]);
      }
    }
  }
}

void add_errors(Isa isa, ConstFloatMatrix got, ConstFloatMatrix want, ErrorSums& sums) {
  for (std::size_t r = 0; r < want.rows; ++r) {
    SumLanes errors{};
    SumLanes norms{};
    entries(isa).add_errors({got.row(r).data(), want.row(r).data(), want.cols, &errors, &norms});
    sums.squared_error += add_lanes(errors);
    sums.squared_norm += add_lanes(norms);
  }
}

}  // namespace quantmill::cpu
