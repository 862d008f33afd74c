#pragma once

// Private to kernels/cpu: what each instruction set provides, as plain functions on plain data.
// backend.cpp calls them for whole matrices; isa_plain.cpp, isa_avx2.cpp and isa_avx512.cpp make
// them from the same bodies (body_*.h).

#include <cstddef>
#include <cstdint>

#include "device/context.h"
#include "kernels/lane_sums.h"

namespace quantmill::cpu {

// MXFP4 blocks one after the other: 32 floats, 16 bytes of codes, one scale byte each.
struct QuantizeTask {
  const float* values;
  std::uint8_t* packed;
  std::uint8_t* scales;
  std::size_t num_blocks;
  std::uint32_t carry;  // mx_scale_carry
  bool is_seed;         // TieRule::kSeed
};

struct DequantizeTask {
  const std::uint8_t* packed;
  const std::uint8_t* scales;
  float* values;
  std::size_t num_blocks;
};

// A part of one row (whole blocks), and one candidate there.
struct CurveTask {
  const float* values;
  const float* importance;
  const float* s;
  const float* inverse;  // 1 / s
  std::size_t cols;
  std::uint32_t carry;
  bool is_seed;
  double* lanes;  // kSumLanes sums to add to
};

// Null factors or divisors leave that side as it is.
struct ScaleTask {
  float* values;
  std::size_t rows;
  std::size_t cols;
  // Null: that side stays as it is.
  const float* column_factors;
  const float* row_factors;
  const float* column_divisors;
  const float* row_divisors;
};

// One row; adds to 16 lanes each, by column modulo 16.
struct CompareTask {
  const float* got;
  const float* want;
  std::size_t cols;
  SumLanes* errors;
  SumLanes* norms;
};

// Elements of two bytes, BF16 or F16.
struct DecodeTask {
  const std::byte* stored;
  float* values;
  std::size_t count;
  bool is_bf16;
};

// To BF16.
struct EncodeTask {
  const float* values;
  std::byte* stored;
  std::size_t count;
};

// One row of e4m3 codes; scales[b] belongs to columns b * block_cols and on.
struct Fp8DecodeTask {
  const std::uint8_t* codes;
  const float* scales;
  float* values;
  std::size_t cols;
  std::size_t block_cols;
};

struct Fp8EncodeTask {
  const float* values;
  const float* scales;
  std::uint8_t* codes;
  std::size_t cols;
  std::size_t block_cols;
};

// One row; raises amax[b] to the magnitudes of its block.
struct AmaxTask {
  const float* values;
  float* amax;
  std::size_t cols;
  std::size_t block_cols;
};

struct Entries {
  void (*mx_quantize)(const QuantizeTask&);
  void (*mx_dequantize)(const DequantizeTask&);
  void (*add_curve)(const CurveTask&);
  void (*scale_rows)(const ScaleTask&);
  void (*add_errors)(const CompareTask&);
  bool (*decode)(const DecodeTask&);         // whether all are finite
  bool (*encode)(const EncodeTask&);         // whether all results are finite
  bool (*fp8_decode)(const Fp8DecodeTask&);  // whether all are finite
  void (*fp8_encode)(const Fp8EncodeTask&);
  void (*amax)(const AmaxTask&);
};

extern const Entries kPlainEntries;
extern const Entries kAvx2Entries;
extern const Entries kAvx512Entries;

const Entries& entries(Isa isa);

}  // namespace quantmill::cpu
