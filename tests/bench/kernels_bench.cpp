// Weights per second of every kernel on one core, for each instruction set of this machine, beside
// memcpy. `items_per_second` counts weights (mx_error_curve: weights x candidates).

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "kernels/compare.h"
#include "kernels/convert.h"
#include "kernels/fp8.h"
#include "kernels/int4.h"
#include "kernels/int4_pack.h"
#include "kernels/magnitudes.h"
#include "kernels/mx.h"
#include "kernels/nvfp4.h"
#include "kernels/scale.h"

namespace quantmill {
namespace {

// Rows as in a task of the job: a few MB, beyond the second-level cache.
constexpr std::size_t kRows = 256;
constexpr std::size_t kCols = 5120;
constexpr std::size_t kCandidates = 11;
constexpr GlobalScale kGlobal{2688 / 0.1F, GlobalScaleUse::kDivides};
constexpr BlockGrid kTiles{.rows = 128, .cols = 128};
constexpr IntSpec kInt4{.bits = 4, .group = 128, .is_symmetric = false};

struct Data {
  std::vector<std::byte> stored;
  std::vector<float> values;
  std::vector<float> other;
  std::vector<float> row_factors;
  std::vector<float> candidates;
  std::vector<std::uint8_t> packed;
  std::vector<std::uint8_t> scales;
  std::vector<std::uint8_t> codes;  // one a byte
  std::vector<float> block_scales;  // of blocks of 128 x 128
  std::vector<std::uint8_t> nvfp4_scales;
  std::vector<std::int8_t> integers;
  std::vector<float> group_scales;  // of groups of 128
  std::vector<std::int8_t> zero_points;

  Data()
      : stored(kRows * kCols * 2),
        values(kRows * kCols),
        other(kRows * kCols),
        row_factors(kRows, 1.01F),
        candidates(kCandidates * kCols),
        packed(kRows * kCols / 2),
        scales(kRows * kCols / kMxBlock),
        codes(kRows * kCols),
        block_scales(kRows / 128 * (kCols / 128)),
        nvfp4_scales(kRows * kCols / kNvfp4Block),
        integers(kRows * kCols),
        group_scales(kRows * kCols / 128),
        zero_points(kRows * kCols / 128) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (float& value : values) {
      value = 0.02F * normal(random);
    }
    for (float& s : candidates) {
      s = std::exp(0.5F * normal(random));
    }
    const Context context{Backend::kReference, Isa::kPlain};
    encode_from_float(context, matrix(), DType::kBf16, stored);
    decode_to_float(context, DType::kBf16, stored, matrix());
    other = values;
    block_amax(context, matrix(), kTiles, block_matrix());
    for (float& scale : block_scales) {
      scale = fp8_scale(scale, DType::kF32);
    }
    fp8_quantize(context, matrix(), block_matrix(), kTiles, codes);
    nvfp4_block_scales(context, matrix(), kGlobal, nvfp4_scales);
    int_scales(context, kInt4, matrix(), 1, group_matrix(), zero_points);
    int_quantize(context, kInt4, matrix(), group_matrix(), zero_points, integers);
  }

  FloatMatrix matrix() { return {values.data(), kRows, kCols}; }

  FloatMatrix other_matrix() { return {other.data(), kRows, kCols}; }

  FloatMatrix block_matrix() { return {block_scales.data(), kRows / 128, kCols / 128}; }

  FloatMatrix group_matrix() { return {group_scales.data(), kRows, kCols / 128}; }

  std::span<const float> first_candidate() { return std::span(candidates).first(kCols); }
};

void decode(const Context& context, Data& data) {
  decode_to_float(context, DType::kBf16, data.stored, data.other_matrix());
}

void encode(const Context& context, Data& data) {
  encode_from_float(context, data.matrix(), DType::kBf16, data.stored);
}

void quantize(const Context& context, Data& data) {
  mx_quantize(context, {}, data.matrix(), data.packed, data.scales);
}

// Three exponents tried for each block.
void search_and_quantize(const Context& context, Data& data) {
  mx_quantize(context,
              {ElementFormat::kE2m1, ScaleRule::kMse},
              data.matrix(),
              data.packed,
              data.scales,
              data.first_candidate());
}

template <ElementFormat Element>
void quantize_other(const Context& context, Data& data) {
  const std::span packed = std::span(data.codes).first(kRows * mx_packed_bytes(Element, kCols));
  mx_quantize(context, {Element, ScaleRule::kEven}, data.matrix(), packed, data.scales);
}

template <ElementFormat Element>
void dequantize_other(const Context& context, Data& data) {
  const std::span packed = std::span(data.codes).first(kRows * mx_packed_bytes(Element, kCols));
  mx_dequantize(context, Element, packed, data.scales, data.other_matrix());
}

// What the job does to a tensor without a fold, in pieces that stay in the cache.
void decode_and_quantize(const Context& context, Data& data) {
  constexpr std::size_t kPiece = 4;
  for (std::size_t row = 0; row < kRows; row += kPiece) {
    const FloatMatrix piece{data.other.data(), kPiece, kCols};
    const auto part = [&](auto& all, std::size_t row_size) {
      return std::span(all).subspan(row * row_size, kPiece * row_size);
    };
    decode_to_float(context, DType::kBf16, part(data.stored, kCols * 2), piece);
    mx_quantize(
        context, {}, piece, part(data.packed, kCols / 2), part(data.scales, kCols / kMxBlock));
  }
}

void dequantize(const Context& context, Data& data) {
  mx_dequantize(context, ElementFormat::kE2m1, data.packed, data.scales, data.other_matrix());
}

void scale(const Context& context, Data& data) {
  scale_matrix(context,
               data.other_matrix(),
               {.columns = data.first_candidate(), .row_divisors = data.row_factors});
}

void compare(const Context& context, Data& data) {
  ErrorSums sums;
  add_errors(context, data.matrix(), data.other_matrix(), sums);
  benchmark::DoNotOptimize(sums);
}

void measure(const Context& context, Data& data) {
  std::vector<double> squares(kCols);
  std::vector<double> shares(kCols);
  std::vector<double> rows(kRows);
  add_magnitudes(context, data.matrix(), data.first_candidate(), {squares, shares}, rows);
  benchmark::DoNotOptimize(squares.data());
}

void largest_magnitudes(const Context& context, Data& data) {
  std::vector<float> amax(data.block_scales.size());
  block_amax(context, data.matrix(), kTiles, {amax.data(), kRows / 128, kCols / 128});
  benchmark::DoNotOptimize(amax.data());
}

void quantize_fp8(const Context& context, Data& data) {
  fp8_quantize(context, data.matrix(), data.block_matrix(), kTiles, data.codes);
}

void dequantize_fp8(const Context& context, Data& data) {
  fp8_dequantize(context, data.codes, data.block_matrix(), kTiles, data.other_matrix());
}

void scales_of_nvfp4(const Context& context, Data& data) {
  nvfp4_block_scales(context, data.matrix(), kGlobal, data.nvfp4_scales);
}

void quantize_nvfp4(const Context& context, Data& data) {
  nvfp4_quantize(context, data.matrix(), data.nvfp4_scales, kGlobal, data.packed);
}

void dequantize_nvfp4(const Context& context, Data& data) {
  nvfp4_dequantize(context, data.packed, data.nvfp4_scales, kGlobal, data.other_matrix());
}

void scales_of_integers(const Context& context, Data& data) {
  int_scales(context, kInt4, data.matrix(), 0.9F, data.group_matrix(), data.zero_points);
}

void quantize_integers(const Context& context, Data& data) {
  int_quantize(context, kInt4, data.matrix(), data.group_matrix(), data.zero_points, data.integers);
}

void dequantize_integers(const Context& context, Data& data) {
  int_dequantize(
      context, data.integers, data.group_matrix(), data.zero_points, {}, data.other_matrix());
}

template <NibbleOrder Order>
void pack_integers(const Context& context, Data& data) {
  int_pack_columns(context, {.order = Order}, data.integers, kRows, kCols, data.packed);
}

template <NibbleOrder Order>
void unpack_integers(const Context& context, Data& data) {
  int_unpack_columns(context, {.order = Order}, data.packed, kRows, kCols, data.integers);
}

void unpack_integer_rows(const Context& context, Data& data) {
  int_unpack_rows(context, {}, data.packed, kRows, kCols, data.integers);
}

void transpose_integers(const Context& /*context*/, Data& data) {
  transpose_codes(data.integers,
                  kRows,
                  kCols,
                  {reinterpret_cast<std::int8_t*>(data.codes.data()), data.codes.size()});
}

template <ElementFormat Element, TieRule Ties, ScaleRule Rule = ScaleRule::kEven>
void error_curve(const Context& context, Data& data) {
  std::vector<double> sums(kCandidates * kCols / kMxBlock);
  mx_error_curve(context,
                 {Element, Rule, Ties},
                 data.matrix(),
                 data.first_candidate(),
                 {data.candidates.data(), kCandidates, kCols},
                 sums);
  benchmark::DoNotOptimize(sums.data());
}

void copy(const Context& /*context*/, Data& data) {
  std::memcpy(data.other.data(), data.values.data(), kRows * kCols * sizeof(float));
}

struct Kernel {
  const char* name;
  void (*run)(const Context&, Data&);
  std::size_t items_per_weight;
};

constexpr Kernel kKernels[] = {
    {"decode_bf16", decode, 1},
    {"encode_bf16", encode, 1},
    {"mx_quantize", quantize, 1},
    {"mx_quantize/mse", search_and_quantize, 1},
    {"decode_bf16+mx_quantize", decode_and_quantize, 1},
    {"mx_dequantize", dequantize, 1},
    {"mx_quantize/e2m3", quantize_other<ElementFormat::kE2m3>, 1},
    {"mx_quantize/e3m2", quantize_other<ElementFormat::kE3m2>, 1},
    {"mx_quantize/e4m3", quantize_other<ElementFormat::kE4m3>, 1},
    {"mx_dequantize/e2m3", dequantize_other<ElementFormat::kE2m3>, 1},
    {"mx_dequantize/e3m2", dequantize_other<ElementFormat::kE3m2>, 1},
    {"mx_dequantize/e4m3", dequantize_other<ElementFormat::kE4m3>, 1},
    {"block_amax", largest_magnitudes, 1},
    {"fp8_quantize", quantize_fp8, 1},
    {"fp8_dequantize", dequantize_fp8, 1},
    {"nvfp4_block_scales", scales_of_nvfp4, 1},
    {"nvfp4_quantize", quantize_nvfp4, 1},
    {"nvfp4_dequantize", dequantize_nvfp4, 1},
    {"int_scales", scales_of_integers, 1},
    {"int_quantize", quantize_integers, 1},
    {"int_dequantize", dequantize_integers, 1},
    {"int_pack", pack_integers<NibbleOrder::kSequential>, 1},
    {"int_pack/awq", pack_integers<NibbleOrder::kAwq>, 1},
    {"int_unpack", unpack_integers<NibbleOrder::kSequential>, 1},
    {"int_unpack/awq", unpack_integers<NibbleOrder::kAwq>, 1},
    {"int_unpack_rows", unpack_integer_rows, 1},
    {"transpose_codes", transpose_integers, 1},
    {"scale_matrix", scale, 1},
    {"add_errors", compare, 1},
    {"add_magnitudes", measure, 1},
    {"mx_error_curve", error_curve<ElementFormat::kE2m1, TieRule::kEven>, kCandidates},
    {"mx_error_curve/seed", error_curve<ElementFormat::kE2m1, TieRule::kSeed>, kCandidates},
    {"mx_error_curve/mse",
     error_curve<ElementFormat::kE2m1, TieRule::kEven, ScaleRule::kMse>,
     kCandidates},
    {"mx_error_curve/e2m3", error_curve<ElementFormat::kE2m3, TieRule::kEven>, kCandidates}};

void register_kernel(const Kernel& kernel,
                     const Context& context,
                     const std::string& where,
                     Data& data) {
  const auto run = [&data, context, kernel](benchmark::State& state) {
    for (const auto _ : state) {
      kernel.run(context, data);
      benchmark::ClobberMemory();
    }
    const std::size_t items = kRows * kCols * kernel.items_per_weight;
    state.SetItemsProcessed(static_cast<std::int64_t>(items) * state.iterations());
  };
  benchmark::RegisterBenchmark((std::string(kernel.name) + "/" + where).c_str(), run);
}

void register_all(Data& data) {
  register_kernel({"memcpy of floats", copy, 1}, {}, "libc", data);
  for (const Kernel& kernel : kKernels) {
    register_kernel(kernel, {Backend::kReference, Isa::kPlain}, "reference", data);
    for (const Isa isa : {Isa::kPlain, Isa::kAvx2, Isa::kAvx512}) {
      if (isa <= best_isa()) {
        register_kernel(kernel, {Backend::kCpu, isa}, std::string(isa_name(isa)), data);
      }
    }
  }
}

}  // namespace
}  // namespace quantmill

int main(int argc, char** argv) {
  quantmill::Data data;
  quantmill::register_all(data);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 2;
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
