// The cpu backend: whole matrices, cut into what the entries of an instruction set take.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/backends.h"
#include "kernels/cpu/entries.h"

namespace quantmill::cpu {
namespace {

// Rows that lie ready while every candidate meets them: with 32 columns 8 KB, in the first-level
// cache.
constexpr std::size_t kTileRows = 4 * kMxCurveRows;

// Columns whose sums of squares and shares stay in the first-level cache while rows pass: 16 KB.
constexpr std::size_t kTileCols = 1024;

// The magnitudes of a block of columns in num_rows rows: [groups, kMxBlock, kMxCurveRows], 0 beyond
// the last row. Returns the number of groups.
std::size_t put_rows_side_by_side(ConstFloatMatrix values,
                                  std::size_t first,
                                  std::size_t num_rows,
                                  std::size_t begin,
                                  float* magnitudes) {
  const std::size_t num_groups = (num_rows + kMxCurveRows - 1) / kMxCurveRows;
  std::fill_n(magnitudes, num_groups * kMxBlock * kMxCurveRows, 0.0F);
  for (std::size_t r = 0; r < num_rows; ++r) {
    const float* const row = values.data + (first + r) * values.cols + begin;
    float* const lane =
        magnitudes + r / kMxCurveRows * (kMxBlock * kMxCurveRows) + r % kMxCurveRows;
    for (std::size_t c = 0; c < kMxBlock; ++c) {
      lane[c * kMxCurveRows] = std::abs(row[c]);
    }
  }
  return num_groups;
}

// Copies floats, maybe onto themselves. Whether all are finite.
bool copy_finite(const std::byte* stored, float* values, std::size_t count) {
  std::memmove(values, stored, count * sizeof(float));
  unsigned found = 0;
  for (std::size_t i = 0; i < count; ++i) {
    found |= static_cast<unsigned>((float_bits(values[i]) & 0x7f800000U) == 0x7f800000U);
  }
  return found == 0;
}

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
  const bool is_finite =
      dtype == DType::kF32
          ? copy_finite(stored.data(), out.data, count)
          : entries(isa).decode({stored.data(), out.data, count, dtype == DType::kBf16});
  if (is_finite) {
    return std::nullopt;
  }
  // The reference finds the place.
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
                    std::span<double> sums,
                    std::span<const double> row_weights) {
  const auto add_curve = entries(isa).add_curve;
  std::vector<float> weights(candidates.rows * candidates.cols);
  for (std::size_t candidate = 0; candidate < candidates.rows; ++candidate) {
    const std::span<const float> s = candidates.row(candidate);
    for (std::size_t c = 0; c < s.size(); ++c) {
      weights[candidate * candidates.cols + c] = importance[c] * (1.0F / s[c]);
    }
  }
  std::array<float, kTileRows * kMxBlock> magnitudes;
  std::array<double, kTileRows> tile_weights;
  tile_weights.fill(1);
  CurveTask task{magnitudes.data(),
                 0,
                 nullptr,
                 nullptr,
                 mx_scale_carry(spec.scale_rule, spec.element),
                 spec.ties == TieRule::kSeed,
                 spec.element,
                 spec.scale_rule == ScaleRule::kMse,
                 tile_weights.data(),
                 nullptr};
  for (std::size_t first = 0; first < values.rows; first += kTileRows) {
    const std::size_t num_rows = std::min(kTileRows, values.rows - first);
    if (!row_weights.empty()) {
      std::ranges::copy(row_weights.subspan(first, num_rows), tile_weights.begin());
    }
    for (std::size_t begin = 0; begin < values.cols; begin += kMxBlock) {
      task.num_groups = put_rows_side_by_side(values, first, num_rows, begin, magnitudes.data());
      task.sum = sums.data() + begin / kMxBlock * candidates.rows;
      for (std::size_t offset = begin; offset < weights.size(); offset += candidates.cols) {
        task.s = candidates.data + offset;
        task.weights = weights.data() + offset;
        add_curve(task);
        ++task.sum;
      }
    }
  }
}

void add_errors(Isa isa,
                ConstFloatMatrix got,
                ConstFloatMatrix want,
                ErrorSums& sums,
                std::span<const float> weights) {
  for (std::size_t r = 0; r < want.rows; ++r) {
    SumLanes errors{};
    SumLanes norms{};
    entries(isa).add_errors({got.row(r).data(),
                             want.row(r).data(),
                             weights.empty() ? nullptr : weights.data(),
                             want.cols,
                             &errors,
                             &norms});
    sums.squared_error += add_lanes(errors);
    sums.squared_norm += add_lanes(norms);
  }
}

void add_magnitudes(Isa isa,
                    ConstFloatMatrix values,
                    std::span<const float> weights,
                    const ColumnSums& columns,
                    std::span<double> row_squares) {
  const std::size_t whole = values.cols / kMxBlock * kMxBlock;
  std::vector<SumLanes> lanes(values.rows);
  for (std::size_t begin = 0; begin < whole; begin += kTileCols) {
    const std::size_t num_cols = std::min(kTileCols, whole - begin);
    for (std::size_t r = 0; r < values.rows; ++r) {
      entries(isa).add_magnitudes({values.row(r).data() + begin,
                                   weights.data() + begin,
                                   num_cols,
                                   columns.squares.data() + begin,
                                   columns.shares.data() + begin,
                                   lanes[r].data()});
    }
  }
  // A cut block is padded with zeros.
  const std::size_t rest = values.cols - whole;
  std::array<double, kMxBlock> squares{};
  std::array<double, kMxBlock> shares{};
  std::copy_n(columns.squares.data() + whole, rest, squares.data());
  std::copy_n(columns.shares.data() + whole, rest, shares.data());
  std::array<float, kMxBlock> padded_weights{};
  std::copy_n(weights.data() + whole, rest, padded_weights.data());
  for (std::size_t r = 0; rest > 0 && r < values.rows; ++r) {
    std::array<float, kMxBlock> padded{};
    std::copy_n(values.row(r).data() + whole, rest, padded.data());
    entries(isa).add_magnitudes({padded.data(),
                                 padded_weights.data(),
                                 kMxBlock,
                                 squares.data(),
                                 shares.data(),
                                 lanes[r].data()});
  }
  std::copy_n(squares.data(), rest, columns.squares.data() + whole);
  std::copy_n(shares.data(), rest, columns.shares.data() + whole);
  for (std::size_t r = 0; r < values.rows; ++r) {
    row_squares[r] = add_lanes(lanes[r]);
  }
}

}  // namespace quantmill::cpu
