#pragma once

// Private to kernels/cpu: what each instruction set provides, as plain functions on plain data.
// backend.cpp calls them for whole matrices; isa_plain.cpp, isa_avx2.cpp and isa_avx512.cpp make
// them from the same bodies (body_*.h).

#include <cstddef>
#include <cstdint>

#include "device/context.h"
#include "kernels/codec.h"
#include "kernels/gptq.h"
#include "kernels/lane_sums.h"

namespace quantmill::cpu {

// MX blocks one after the other: 32 floats, mx_packed_bytes of codes, one scale byte each.
struct QuantizeTask {
  const float* values;
  std::uint8_t* packed;
  std::uint8_t* scales;
  std::size_t num_blocks;
  std::uint32_t carry;  // mx_scale_carry
  bool is_seed;         // TieRule::kSeed
  ElementFormat element;
  const float* importance;  // ScaleRule::kMse: of the columns of the one row that this is; or null
};

struct DequantizeTask {
  const std::uint8_t* packed;
  const std::uint8_t* scales;
  float* values;
  std::size_t num_blocks;
  ElementFormat element;
};

// One block of columns, and one candidate there. Rows lie side by side, so that each has a lane of
// its own.
struct CurveTask {
  const float* magnitudes;  // [num_groups, kMxBlock, kMxCurveRows]
  std::size_t num_groups;
  const float* s;
  const float* weights;  // importance * (1 / s)
  std::uint32_t carry;
  bool is_seed;
  ElementFormat element;
  bool is_searched;           // ScaleRule::kMse
  const double* row_weights;  // [num_groups, kMxCurveRows]
  double* sum;                // to add to
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
  const float* weights;  // null: 1 everywhere
  std::size_t cols;
  SumLanes* errors;
  SumLanes* norms;
};

// Whole blocks of 32 columns of one row.
struct MagnitudeTask {
  const float* values;
  const float* weights;
  std::size_t cols;
  double* squares;  // of each column, to add to, as the others
  double* shares;
  double* lanes;  // kSumLanes
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

// One row of integer groups: what int_group_scale takes of each.
struct IntRangeTask {
  const float* values;
  float* low;
  float* high;
  std::size_t group;
  std::size_t num_groups;
};

struct IntLimits {
  std::int32_t smallest;
  std::int32_t largest;
  std::int32_t zero_point;
};

// Null zero points are zeros.
struct IntEncodeTask {
  const float* values;
  const float* scales;
  const std::int8_t* zero_points;
  std::int8_t* codes;
  std::size_t group;
  std::size_t num_groups;
  IntLimits limits;  // without the zero point
};

// One group and one scale that it may have.
struct IntErrorTask {
  const float* values;
  const float* importance;
  std::size_t group;
  float scale;
  IntLimits limits;
};

struct IntDecodeTask {
  const std::int8_t* codes;
  const float* scales;
  const std::int8_t* zero_points;
  float* values;
  std::size_t group;
  std::size_t num_groups;
};

// Words of 8 codes side by side.
struct NibblePackTask {
  const std::int8_t* codes;
  std::uint8_t* packed;
  std::size_t num_words;
  bool is_offset;  // IntCode::kOffset
  bool is_awq;     // NibbleOrder::kAwq
};

struct NibbleUnpackTask {
  const std::uint8_t* packed;
  std::int8_t* codes;
  std::size_t num_words;
  bool is_offset;
  bool is_awq;
};

// One row of words, of 8 codes one below the other.
struct NibbleRowPackTask {
  const std::int8_t* codes;
  std::uint8_t* packed;
  std::size_t cols;
  bool is_offset;
};

struct NibbleRowUnpackTask {
  const std::uint8_t* packed;
  std::int8_t* codes;
  std::size_t cols;
  bool is_offset;
};

// Pairs of NVFP4 blocks: 32 floats, 16 bytes of codes, two scale bytes each.
struct Nvfp4QuantizeTask {
  const float* values;
  const std::uint8_t* scales;
  const float* divisors;  // of each of the 256 scale bytes; infinity for 0
  std::uint8_t* packed;
  std::size_t num_pairs;
};

// Blocks of one row; `scales` holds the first candidates, and then the best.
struct Nvfp4SearchTask {
  const float* values;
  const float* importance;
  const float* divisors;
  const float* factors;  // of each of the 256 scale bytes
  std::uint8_t* scales;
  std::size_t num_blocks;
};

struct Nvfp4DequantizeTask {
  const std::uint8_t* packed;
  const std::uint8_t* scales;
  const float* factors;  // of each of the 256 scale bytes
  float* values;
  std::size_t num_pairs;
};

// Places of the order that are worked on at a time.
constexpr std::size_t kGptqPlaces = 4;

struct GptqTask {
  float* values;         // [kGptqPlaces, kGptqRowsTogether]
  const float* losses;   // [begin, kGptqRowsTogether]
  const float* factors;  // [kGptqPlaces, cols]
  std::size_t begin;
  std::size_t cols;
};

struct Entries {
  void (*mx_quantize)(const QuantizeTask&);
  void (*mx_dequantize)(const DequantizeTask&);
  void (*add_curve)(const CurveTask&);
  void (*scale_rows)(const ScaleTask&);
  void (*add_errors)(const CompareTask&);
  void (*add_magnitudes)(const MagnitudeTask&);
  bool (*decode)(const DecodeTask&);         // whether all are finite
  bool (*encode)(const EncodeTask&);         // whether all results are finite
  bool (*fp8_decode)(const Fp8DecodeTask&);  // whether all are finite
  void (*fp8_encode)(const Fp8EncodeTask&);
  void (*amax)(const AmaxTask&);
  void (*int_range)(const IntRangeTask&);
  void (*int_encode)(const IntEncodeTask&);
  float (*int_error)(const IntErrorTask&);
  bool (*int_decode)(const IntDecodeTask&);  // whether all are finite
  void (*pack_nibbles)(const NibblePackTask&);
  void (*unpack_nibbles)(const NibbleUnpackTask&);
  void (*pack_nibble_rows)(const NibbleRowPackTask&);
  void (*unpack_nibble_rows)(const NibbleRowUnpackTask&);
  void (*nvfp4_quantize)(const Nvfp4QuantizeTask&);
  void (*nvfp4_search)(const Nvfp4SearchTask&);
  bool (*nvfp4_dequantize)(const Nvfp4DequantizeTask&);  // whether all are finite
  void (*gptq_feed_back)(const GptqTask&);
};

extern const Entries kPlainEntries;
extern const Entries kAvx2Entries;
extern const Entries kAvx512Entries;

const Entries& entries(Isa isa);

}  // namespace quantmill::cpu
