#pragma once

// What stored tensors stand for. A weight may be stored as several tensors, codes and scales, in
// the spellings of the programs that write such checkpoints; here they become one weight of its
// logical name, shape and type.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/reader.h"
#include "kernels/codec.h"
#include "kernels/int4_pack.h"

namespace quantmill {

enum class Encoding {
  kPlain,     // elements as they are
  kFp8,       // e4m3 codes, each times the scale of its block of rows and columns
  kMx,        // blocks of 32 along a row with a power-of-two scale, packed as in kernels/mx.h
  kNvfp4,     // e2m1 in blocks of 16 with an e4m3 scale, and one scale for the whole tensor
  kInt8,      // signed codes, each times the scale of its group
  kPackedInt  // integers of 4 or 8 bits in I32
};

// One weight of a checkpoint. Indices are into the checkpoint's tensors.
struct SourceWeight {
  TensorEntry entry;      // name, shape and type of the weight; a decoded one has BF16
  std::size_t shard = 0;  // where its codes are
  Encoding encoding = Encoding::kPlain;
  std::size_t codes = 0;                   // or the tensor itself
  std::optional<std::size_t> scales;       // none for kPlain
  DType scale_dtype = DType::kF32;         // as stored
  std::optional<std::size_t> zero_points;  // kPackedInt
  std::optional<std::size_t> global_scale;
  bool divides_by_global_scale = false;  // compressed-tensors stores its inverse
  ElementFormat element = ElementFormat::kE2m1;
  IntPacking packing;            // kPackedInt
  std::uint64_t block_rows = 1;  // that one scale is for; the last block may be smaller
  std::uint64_t block_cols = 1;
  bool turned = false;      // the codes are those of the transposed weight; kMx, kPackedInt
  bool packs_rows = false;  // turned kPackedInt: words hold codes of one column (GPTQ)
  bool adds_one_to_zero_points = false;  // what is stored is one less, modulo 2^bits
  bool zero_points_are_zero = false;     // of a code that counts from below, as config.json says
  std::optional<std::size_t> column_groups;  // kPackedInt: which group each column is in

  [[nodiscard]] bool is_plain() const { return encoding == Encoding::kPlain; }

  // A weight [in, out] whose codes are [out, in], so that their rows are the linear's.
  [[nodiscard]] bool is_transposed_linear() const { return turned && encoding == Encoding::kMx; }
};

std::string_view encoding_name(Encoding encoding);

bool is_integer(Encoding encoding);  // kInt8, kPackedInt

// The weights in the order of the tensors that hold their codes; scales, zero points and what only
// matters at run time (input scales) disappear. Spellings: X.weight with X.weight_scale_inv,
// X.weight_scale or X.scale (FP8 block by block, per row, per tensor; MXFP4, MXFP6 and MXFP8 with
// byte scales; NVFP4 with X.weight_scale_2; INT8), X.weight_packed with X.weight_scale
// (compressed-tensors: mxfp4, nvfp4 with X.weight_global_scale, int4 and int8), X.qweight with
// X.scales and X.qzeros (AutoAWQ, GPTQ, with X.g_idx), I32 X.weight (Quark int4 and uint4),
// Y_blocks with Y_scales (gpt-oss; the weight is called Y and has the shape of the BF16 release,
// [experts, in, out], while the codes are [experts, out, in]). Of config.json the
// quantization_config decides what shapes leave open. Errors, kInput, all naming the tensor: one of
// a type that only quantized weights have without a scale that belongs to it, a scale whose shape
// does not fit, one that belongs to nothing, a method that is not known.
std::vector<SourceWeight> find_weights(const std::vector<SourceTensor>& stored,
                                       const std::string& config_json);

}  // namespace quantmill
