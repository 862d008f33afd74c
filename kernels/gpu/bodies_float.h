#pragma once

// Private to kernels/gpu: conversions, factors, errors and magnitudes (convert.h, scale.h,
// compare.h, magnitudes.h, block_grid.h).

#include "kernels/gpu/body.h"
#include "kernels/lane_sums.h"

namespace quantmill::gpu {

enum class Stored16 { kBf16, kF16 };

struct DecodeBody {  // an element each
  const std::uint16_t* stored;
  float* values;
  Stored16 type;
  Index* nonfinite;

  QUANTMILL_BODY void operator()(Index i) const {
    const float value =
        type == Stored16::kBf16 ? bf16_to_float(stored[i]) : f16_to_float(stored[i]);
    values[i] = value;
    if (!is_finite(value)) {
      lower_to(nonfinite, i);
    }
  }
};

struct EncodeBody {  // an element each
  const float* values;
  std::uint16_t* stored;
  Stored16 type;
  Index* nonfinite;

  QUANTMILL_BODY void operator()(Index i) const {
    const bool is_bf16 = type == Stored16::kBf16;
    const std::uint16_t bits = is_bf16 ? float_to_bf16(values[i]) : float_to_f16(values[i]);
    stored[i] = bits;
    const unsigned exponent = is_bf16 ? 0x7f80U : 0x7c00U;
    if ((bits & exponent) == exponent) {
      lower_to(nonfinite, i);
    }
  }
};

struct CopyBody {  // an element of F32 each
  const float* from;
  float* to;
  Index* nonfinite;

  QUANTMILL_BODY void operator()(Index i) const {
    to[i] = from[i];
    if (!is_finite(from[i])) {
      lower_to(nonfinite, i);
    }
  }
};

struct ScaleBody {  // an element each; null sides stay as they are
  float* values;
  Index cols;
  const float* column_factors;
  const float* row_factors;
  const float* column_divisors;
  const float* row_divisors;

  QUANTMILL_BODY void operator()(Index i) const {
    const Index row = i / cols;
    const Index col = i - row * cols;
    float value = values[i];
    if (column_factors != nullptr) {
      value *= column_factors[col];
    }
    if (row_factors != nullptr) {
      value *= row_factors[row];
    }
    if (column_divisors != nullptr) {
      value /= column_divisors[col];
    }
    if (row_divisors != nullptr) {
      value /= row_divisors[row];
    }
    values[i] = value;
  }
};

constexpr Index kLanes = kSumLanes;

struct ErrorLanesBody {  // a lane of a row each
  const float* got;
  const float* want;
  const float* weights;  // or null: 1
  Index cols;
  double* errors;  // [rows, kLanes]
  double* norms;

  QUANTMILL_BODY void operator()(Index thread) const {
    const Index row = thread / kLanes;
    double error_sum = 0;
    double norm_sum = 0;
    for (Index c = thread % kLanes; c < cols; c += kLanes) {
      const float weight = weights == nullptr ? 1.0F : weights[c];
      const double error = (got[row * cols + c] - want[row * cols + c]) * weight;
      const double value = want[row * cols + c] * weight;
      error_sum += error * error;
      norm_sum += value * value;
    }
    errors[thread] = error_sum;
    norms[thread] = norm_sum;
  }
};

struct AddLanesBody {   // a row each
  const double* lanes;  // [rows, kLanes]
  double* sums;

  QUANTMILL_BODY void operator()(Index row) const {
    SumLanes of_row{};
    for (Index j = 0; j < kLanes; ++j) {
      of_row[j] = lanes[row * kLanes + j];
    }
    sums[row] = add_lanes(of_row);
  }
};

// Columns that one thread looks at before it tells the others.
constexpr Index kAmaxCols = 64;

struct AmaxBody {  // kAmaxCols columns of a row each
  const float* values;
  Index cols;
  Index pieces;  // of a row
  Index grid_rows;
  Index grid_cols;
  Index first_row;
  Index amax_cols;
  float* amax;

  QUANTMILL_BODY void operator()(Index thread) const {
    const Index row = thread / pieces;
    const Index begin = thread % pieces * kAmaxCols;
    const Index end = begin + kAmaxCols < cols ? begin + kAmaxCols : cols;
    float* const of_row = amax + (first_row + row) / grid_rows * amax_cols;
    float largest = 0;
    Index block = begin / grid_cols;
    for (Index c = begin; c < end; ++c) {
      if (c / grid_cols != block) {
        raise_to(&of_row[block], largest);
        largest = 0;
        block = c / grid_cols;
      }
      largest = larger(largest, magnitude(values[row * cols + c]));
    }
    raise_to(&of_row[block], largest);
  }
};

// Columns whose largest magnitude divides each other's share.
constexpr Index kShareCols = 32;

struct InverseAmaxBody {  // a block of columns in a row each
  const float* values;
  Index cols;
  Index blocks;    // of a row
  float* inverse;  // [rows, blocks]

  QUANTMILL_BODY void operator()(Index thread) const {
    const Index row = thread / blocks;
    const Index begin = thread % blocks * kShareCols;
    const Index end = begin + kShareCols < cols ? begin + kShareCols : cols;
    float amax = 0x1p-126F;
    for (Index c = begin; c < end; ++c) {
      amax = larger(amax, magnitude(values[row * cols + c]));
    }
    inverse[thread] = 1.0F / amax;
  }
};

struct ColumnMagnitudesBody {  // a column each, down the rows
  const float* values;
  const float* inverse;
  Index rows;
  Index cols;
  Index blocks;
  double* squares;
  double* shares;

  QUANTMILL_BODY void operator()(Index col) const {
    double square_sum = squares[col];
    double share_sum = shares[col];
    for (Index row = 0; row < rows; ++row) {
      const float value = values[row * cols + col];
      const double wide = value;
      square_sum += wide * wide;
      share_sum += static_cast<double>(magnitude(value) * inverse[row * blocks + col / kShareCols]);
    }
    squares[col] = square_sum;
    shares[col] = share_sum;
  }
};

struct RowSquaresBody {  // a lane of a row each
  const float* values;
  const float* weights;
  Index cols;
  double* lanes;  // [rows, kLanes]

  QUANTMILL_BODY void operator()(Index thread) const {
    const Index row = thread / kLanes;
    double sum = 0;
    for (Index c = thread % kLanes; c < cols; c += kLanes) {
      const double weighted = values[row * cols + c] * weights[c];
      sum += weighted * weighted;
    }
    lanes[thread] = sum;
  }
};

}  // namespace quantmill::gpu
