#pragma once

// Private to gpu_bench.cpp: a matrix and all that kernels make of it, on the GPU.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "device/context.h"
#include "device/work_buffer.h"
#include "kernels/convert.h"
#include "kernels/fp8.h"
#include "kernels/gptq.h"
#include "kernels/int4.h"
#include "kernels/mx.h"
#include "kernels/nvfp4.h"

namespace quantmill::bench {

inline constexpr std::size_t kMostCandidates = 25;
inline constexpr std::size_t kGroup = 128;
inline constexpr BlockGrid kTiles{.rows = 128, .cols = 128};
inline constexpr IntSpec kInt4{.bits = 4, .group = kGroup, .is_symmetric = false};
inline constexpr GlobalScale kGlobal{2688 / 0.1F, GlobalScaleUse::kDivides};

// Values on the GPU that the host filled once.
template <typename Value>
class Resident {
 public:
  Resident(const Context& context, std::size_t size) : buffer_(context) { buffer_.resize(size); }

  Resident(const Context& context, const std::vector<Value>& values)
      : Resident(context, values.size()) {
    context.gpu->lane().queue().upload(reinterpret_cast<std::byte*>(buffer_.data()),
                                       std::as_bytes(std::span(values)));
  }

  std::span<Value> all() { return {buffer_.data(), buffer_.size()}; }

  std::span<Value> first(std::size_t count) { return all().first(count); }

  std::span<std::byte> bytes() {
    return {reinterpret_cast<std::byte*>(buffer_.data()), buffer_.size() * sizeof(Value)};
  }

 private:
  WorkBuffer<Value> buffer_;
};

inline std::vector<float> random_values(std::size_t count, float size) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, size);
  std::vector<float> values(count);
  for (float& value : values) {
    value = normal(random);
  }
  return values;
}

inline std::vector<float> around_one(std::size_t count) {
  std::vector<float> values = random_values(count, 0.5F);
  for (float& value : values) {
    value = std::exp(value);
  }
  return values;
}

struct Data {
  Data(const Context& on_gpu, std::size_t num_rows, std::size_t num_cols)
      : context(on_gpu),
        rows(num_rows),
        cols(num_cols),
        weights(num_rows * num_cols),
        host(random_values(weights, 0.02F)),
        importance(around_one(num_cols)),
        candidates(around_one(kMostCandidates * num_cols)),
        ones(std::max(num_rows, num_cols), 1.0F),
        values(on_gpu, host),
        other(on_gpu, host),
        stored(on_gpu, weights),
        codes(on_gpu, weights),
        scales(on_gpu, weights / kNvfp4Block),
        integers(on_gpu, weights),
        group_scales(on_gpu, weights / kGroup),
        zero_points(on_gpu, weights / kGroup),
        tile_scales(
            on_gpu,
            std::vector<float>(num_block_rows(kTiles, num_rows) * num_block_cols(kTiles, num_cols),
                               2e-4F)),
        host_codes(weights / 2),
        host_scales(weights / kMxBlock),
        column_sums(num_cols),
        row_sums(num_rows) {
    feedback.factors.assign(num_cols * num_cols, 1e-3F);
    for (std::size_t i = 0; i < num_cols; ++i) {
      feedback.order.push_back(static_cast<std::uint32_t>(i));
    }
    encode_from_float(context, matrix(), DType::kBf16, stored.bytes());
    int_scales(context, kInt4, matrix(), 1, groups(), zero_points.all());
    int_quantize(context, kInt4, matrix(), groups(), zero_points.all(), integers.all());
  }

  FloatMatrix matrix() { return {values.all().data(), rows, cols}; }

  FloatMatrix other_matrix() { return {other.all().data(), rows, cols}; }

  FloatMatrix groups() { return {group_scales.all().data(), rows, cols / kGroup}; }

  FloatMatrix tiles() {
    return {tile_scales.all().data(), num_block_rows(kTiles, rows), num_block_cols(kTiles, cols)};
  }

  std::span<std::uint8_t> packed(ElementFormat element) {
    return codes.first(rows * mx_packed_bytes(element, cols));
  }

  std::span<std::uint8_t> nibbles() { return codes.first(weights / 2); }

  Context context;
  std::size_t rows;
  std::size_t cols;
  std::size_t weights;
  std::vector<float> host;
  std::vector<float> importance;  // of columns
  std::vector<float> candidates;
  std::vector<float> ones;
  ErrorFeedback feedback;
  Resident<float> values;
  Resident<float> other;
  Resident<std::uint16_t> stored;
  Resident<std::uint8_t> codes;
  Resident<std::uint8_t> scales;
  Resident<std::int8_t> integers;
  Resident<float> group_scales;
  Resident<std::int8_t> zero_points;
  Resident<float> tile_scales;
  std::vector<std::uint8_t> host_codes;
  std::vector<std::uint8_t> host_scales;
  std::vector<double> column_sums;
  std::vector<double> row_sums;
};

}  // namespace quantmill::bench
