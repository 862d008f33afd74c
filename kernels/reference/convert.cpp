#include <cstring>

#include "kernels/backends.h"
#include "kernels/codec_float.h"

namespace quantmill::reference {
namespace {

float decode_one(DType dtype, const std::byte* stored) {
  if (dtype == DType::kF32) {
    float value = 0;
    std::memcpy(&value, stored, sizeof value);
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, stored, sizeof bits);
  return dtype == DType::kBf16 ? bf16_to_float(bits) : f16_to_float(bits);
}

// Whether the stored element is finite.
bool encode_one(float value, DType dtype, std::byte* stored) {
  if (dtype == DType::kF32) {
    std::memcpy(stored, &value, sizeof value);
    return (float_bits(value) & 0x7f800000U) != 0x7f800000U;
  }
  const bool is_bf16 = dtype == DType::kBf16;
  const std::uint16_t bits = is_bf16 ? float_to_bf16(value) : float_to_f16(value);
  std::memcpy(stored, &bits, sizeof bits);
  const unsigned exponent = is_bf16 ? 0x7f80U : 0x7c00U;
  return (bits & exponent) != exponent;
}

}  // namespace

std::optional<MatrixPosition> decode_to_float(DType dtype,
                                              std::span<const std::byte> stored,
                                              FloatMatrix out) {
  const std::size_t size = dtype == DType::kF32 ? 4 : 2;
  std::optional<MatrixPosition> first;
  for (std::size_t r = 0; r < out.rows; ++r) {
    for (std::size_t c = 0; c < out.cols; ++c) {
      const float value = decode_one(dtype, stored.data() + (r * out.cols + c) * size);
      out.row(r)[c] = value;
      if (!first && (float_bits(value) & 0x7f800000U) == 0x7f800000U) {
        first = MatrixPosition{r, c};
      }
    }
  }
  return first;
}

std::optional<MatrixPosition> encode_from_float(ConstFloatMatrix values,
                                                DType dtype,
                                                std::span<std::byte> stored) {
  const std::size_t size = dtype == DType::kF32 ? 4 : 2;
  std::optional<MatrixPosition> first;
  for (std::size_t r = 0; r < values.rows; ++r) {
    for (std::size_t c = 0; c < values.cols; ++c) {
      std::byte* place = stored.data() + (r * values.cols + c) * size;
      if (!encode_one(values.row(r)[c], dtype, place) && !first) {
        first = MatrixPosition{r, c};
      }
    }
  }
  return first;
}

}  // namespace quantmill::reference
