#pragma once

// Private to kernels/gpu: NVFP4 blocks (nvfp4.h).

#include "kernels/gpu/body.h"
#include "kernels/lane_sums.h"
#include "kernels/nvfp4.h"

namespace quantmill::gpu {

constexpr Index kNvBlock = kNvfp4Block;

QUANTMILL_BODY std::uint8_t nvfp4_code(float value, float factor) {
  return encode_element(ElementFormat::kE2m1, factor == 0 ? value * 0 : value / factor);
}

struct Nvfp4ScalesBody {  // a block each
  const float* values;
  GlobalScale global;
  std::uint8_t* scales;

  QUANTMILL_BODY void operator()(Index block) const {
    float x[kNvBlock];
    load_floats<kNvBlock>(values + block * kNvBlock, x);
    float amax = 0;
    QUANTMILL_UNROLL
    for (Index i = 0; i < kNvBlock; ++i) {
      amax = larger(amax, magnitude(x[i]));
    }
    const float sixth = amax / 6;
    const float scale =
        global.use == GlobalScaleUse::kMultiplies ? sixth / global.value : sixth * global.value;
    const std::uint8_t byte = encode_element(ElementFormat::kE4m3, scale);
    scales[block] = byte < 1 ? 1 : byte;
  }
};

struct Nvfp4SearchBody {  // a block each, with the scales of Nvfp4ScalesBody
  const float* values;
  GlobalScale global;
  const float* importance;  // [row_blocks * kNvBlock], or null: 1
  Index row_blocks;
  std::uint8_t* scales;

  QUANTMILL_BODY void operator()(Index block) const {
    float x[kNvBlock];
    load_floats<kNvBlock>(values + block * kNvBlock, x);
    const float* const weights =
        importance == nullptr ? nullptr : importance + block % row_blocks * kNvBlock;
    const int first = scales[block];
    std::uint8_t best = scales[block];
    float least = error_of(x, weights, best);
    for (int turn = 0; turn < 10; ++turn) {  // kNvfp4TriedSteps after the first
      const int step = turn < 8 ? (turn % 2 == 0 ? turn / 2 + 1 : -(turn / 2 + 1)) : turn - 3;
      const int wanted = first + step;
      const auto tried = static_cast<std::uint8_t>(wanted < 1 ? 1 : wanted > 0x7e ? 0x7e : wanted);
      const float error = error_of(x, weights, tried);
      if (error < least) {
        least = error;
        best = tried;
      }
    }
    scales[block] = best;
  }

  QUANTMILL_BODY float error_of(const float* x, const float* weights, std::uint8_t scale) const {
    const float factor = nvfp4_factor(scale, global);
    std::array<float, kSumLanes> squares{};
    QUANTMILL_UNROLL
    for (Index i = 0; i < kNvBlock; ++i) {
      const float got = decode_element(ElementFormat::kE2m1, nvfp4_code(x[i], factor)) * factor;
      const float error = (got - x[i]) * (weights == nullptr ? 1.0F : weights[i]);
      squares[i] = error * error;
    }
    return add_lanes(squares);
  }
};

struct Nvfp4QuantizeBody {  // a block each
  const float* values;
  const std::uint8_t* scales;
  GlobalScale global;
  std::uint8_t* packed;

  QUANTMILL_BODY void operator()(Index block) const {
    float x[kNvBlock];
    load_floats<kNvBlock>(values + block * kNvBlock, x);
    const float factor = nvfp4_factor(scales[block], global);
    std::uint32_t words[2] = {};
    QUANTMILL_UNROLL
    for (Index i = 0; i < kNvBlock; ++i) {
      words[i / 8] |= static_cast<std::uint32_t>(nvfp4_code(x[i], factor)) << (i % 8 * 4);
    }
    auto* const to = reinterpret_cast<std::uint32_t*>(packed + block * (kNvBlock / 2));
    to[0] = words[0];
    to[1] = words[1];
  }
};

struct Nvfp4DequantizeBody {  // a block each
  const std::uint8_t* packed;
  const std::uint8_t* scales;
  GlobalScale global;
  float* values;
  Index* nonfinite;

  QUANTMILL_BODY void operator()(Index block) const {
    const float factor = nvfp4_factor(scales[block], global);
    float x[kNvBlock];
    QUANTMILL_UNROLL
    for (Index i = 0; i < kNvBlock; ++i) {
      const auto code =
          static_cast<std::uint8_t>(packed[block * (kNvBlock / 2) + i / 2] >> (i % 2 * 4));
      x[i] = decode_element(ElementFormat::kE2m1, code) * factor;
      if (!is_finite(x[i])) {
        lower_to(nonfinite, block * kNvBlock + i);
      }
    }
    store_floats<kNvBlock>(x, values + block * kNvBlock);
  }
};

}  // namespace quantmill::gpu
