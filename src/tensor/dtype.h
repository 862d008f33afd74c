#pragma once

// Element types of safetensors files: names and sizes. Conversions of values are in
// kernels/codec.h.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace quantmill {

// Every dtype of the safetensors format (enum Dtype in safetensors/src/tensor.rs of
// huggingface/safetensors, 0.8).
enum class DType : std::uint8_t {
  kBool,
  kU8,
  kI8,
  kI16,
  kU16,
  kI32,
  kU32,
  kI64,
  kU64,
  kF16,
  kBf16,
  kF32,
  kF64,
  kF8E4m3,
  kF8E5m2,
  kF8E8m0,
  kF6E2m3,
  kF6E3m2,
  kF4,
  kC64,
  kF8E4m3fnuz,
  kF8E5m2fnuz,
};

// The name in a safetensors header: "BF16", "F8_E4M3" …
std::string_view dtype_name(DType dtype);

// Nothing for a name that the format does not have.
std::optional<DType> dtype_from_name(std::string_view name);

// Bits of one element: 4, 6, 8 … 64.
std::size_t dtype_bits(DType dtype);

}  // namespace quantmill
