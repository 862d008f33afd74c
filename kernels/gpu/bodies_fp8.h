#pragma once

// Private to kernels/gpu: FP8 with scales of blocks (fp8.h).

#include "kernels/codec.h"
#include "kernels/gpu/body.h"

namespace quantmill::gpu {

// Of a BlockGrid, and the scales of its blocks.
struct ScaleGrid {
  const float* scales;
  Index scale_cols;
  Index rows;
  Index cols;
  Index first_row;

  [[nodiscard]] QUANTMILL_BODY float at(Index row, Index col) const {
    return scales[(first_row + row) / rows * scale_cols + col / cols];
  }
};

struct Fp8DequantizeBody {  // an element each
  const std::uint8_t* codes;
  ScaleGrid grid;
  Index cols;
  float* values;
  Index* nonfinite;

  QUANTMILL_BODY void operator()(Index i) const {
    const Index row = i / cols;
    const float value =
        decode_element(ElementFormat::kE4m3, codes[i]) * grid.at(row, i - row * cols);
    values[i] = value;
    if (!is_finite(value)) {
      lower_to(nonfinite, i);
    }
  }
};

struct Fp8QuantizeBody {  // an element each
  const float* values;
  ScaleGrid grid;
  Index cols;
  std::uint8_t* codes;

  QUANTMILL_BODY void operator()(Index i) const {
    const Index row = i / cols;
    codes[i] = encode_element(ElementFormat::kE4m3, values[i] / grid.at(row, i - row * cols));
  }
};

}  // namespace quantmill::gpu
