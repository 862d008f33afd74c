#include "jobs/stored_numbers.h"

#include <fmt/format.h>

#include "base/checked.h"
#include "base/error.h"

namespace quantmill {

namespace {

// Numbers of any width as double; 64-bit integers beyond 2^53 are rounded.
template <typename T>
void load_as(std::span<const std::byte> bytes, std::span<double> values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<double>(load_little_endian<T>(bytes.subspan(i * sizeof(T))));
  }
}

}  // namespace

void load_numbers(const TensorEntry& tensor,
                  std::span<const std::byte> bytes,
                  std::span<double> values) {
  switch (tensor.dtype) {
    case DType::kBool:
    case DType::kU8:
      return load_as<std::uint8_t>(bytes, values);
    case DType::kI8:
      return load_as<std::int8_t>(bytes, values);
    case DType::kI16:
      return load_as<std::int16_t>(bytes, values);
    case DType::kU16:
      return load_as<std::uint16_t>(bytes, values);
    case DType::kI32:
      return load_as<std::int32_t>(bytes, values);
    case DType::kU32:
      return load_as<std::uint32_t>(bytes, values);
    case DType::kI64:
      return load_as<std::int64_t>(bytes, values);
    case DType::kU64:
      return load_as<std::uint64_t>(bytes, values);
    case DType::kF64:
      return load_as<double>(bytes, values);
    case DType::kF16:
    case DType::kBf16:
    case DType::kF32:
    case DType::kF8E4m3:
    case DType::kF8E5m2:
    case DType::kF8E8m0:
    case DType::kF6E2m3:
    case DType::kF6E3m2:
    case DType::kF4:
    case DType::kC64:
    case DType::kF8E4m3fnuz:
    case DType::kF8E5m2fnuz:
      break;
  }
  throw Error(ErrorCode::kInput,
              fmt::format("values of tensor '{}' are of dtype {}, which inspect does not show",
                          tensor.name,
                          dtype_name(tensor.dtype)));
}

}  // namespace quantmill
