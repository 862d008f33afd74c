#include "stats/torch_values.h"

#include <bit>
#include <cmath>
#include <limits>

#include "base/checked.h"

namespace quantmill {

namespace {

// IEEE 754 binary16: 5 exponent bits with bias 15, 10 of mantissa.
double half_to_double(std::uint16_t bits) {
  const double sign = (bits & 0x8000U) != 0 ? -1.0 : 1.0;
  const int exponent = (bits >> 10) & 0x1f;
  const int mantissa = bits & 0x3ff;
  if (exponent == 0x1f) {
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  return exponent == 0 ? sign * std::ldexp(mantissa, -24)
                       : sign * std::ldexp(mantissa + 0x400, exponent - 25);
}

// The upper half of a binary32.
double bfloat16_to_double(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

double load_float(TorchType type, std::span<const std::byte> element) {
  if (type == TorchType::kF16) {
    return half_to_double(load_little_endian<std::uint16_t>(element));
  }
  if (type == TorchType::kBf16) {
    return bfloat16_to_double(load_little_endian<std::uint16_t>(element));
  }
  if (type == TorchType::kF32) {
    return load_little_endian<float>(element);
  }
  check_invariant(type == TorchType::kF64, "a float's type");
  return load_little_endian<double>(element);
}

}  // namespace

bool is_float(TorchType type) {
  return type == TorchType::kF16 || type == TorchType::kBf16 || type == TorchType::kF32 ||
         type == TorchType::kF64;
}

bool is_integer(TorchType type) {
  return !is_float(type) && type != TorchType::kBool;
}

bool fits(const TorchView& view, std::uint64_t storage_elements) {
  if (view.size == 0) {
    return true;
  }
  const auto span = checked_multiply(view.size - 1, view.stride);
  const auto last = span ? checked_add(view.offset, *span) : std::nullopt;
  return last && *last < storage_elements;
}

std::vector<double> load_floats(const TorchView& view, std::span<const std::byte> storage) {
  const std::size_t element_bytes = torch_type_bytes(view.type);
  std::vector<double> values(static_cast<std::size_t>(view.size));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t element = view.offset + i * view.stride;
    values[i] = load_float(view.type, storage.subspan(element * element_bytes, element_bytes));
  }
  return values;
}

std::int64_t load_integer(const TorchView& view, std::span<const std::byte> storage) {
  const std::size_t element_bytes = torch_type_bytes(view.type);
  const auto element = storage.subspan(view.offset * element_bytes, element_bytes);
  if (view.type == TorchType::kU8) {
    return load_little_endian<std::uint8_t>(element);
  }
  if (view.type == TorchType::kI8) {
    return load_little_endian<std::int8_t>(element);
  }
  if (view.type == TorchType::kI16) {
    return load_little_endian<std::int16_t>(element);
  }
  if (view.type == TorchType::kI32) {
    return load_little_endian<std::int32_t>(element);
  }
  check_invariant(view.type == TorchType::kI64, "an integer's type");
  return load_little_endian<std::int64_t>(element);
}

}  // namespace quantmill
