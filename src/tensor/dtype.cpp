#include "tensor/dtype.h"

#include <array>

#include "base/error.h"

namespace quantmill {

namespace {

struct DTypeFacts {
  DType dtype;
  std::string_view name;
  std::size_t bits;
};

// In the order of the enumeration, so that a dtype is an index.
constexpr std::array kFacts = {
    DTypeFacts{DType::kBool, "BOOL", 8},
    DTypeFacts{DType::kU8, "U8", 8},
    DTypeFacts{DType::kI8, "I8", 8},
    DTypeFacts{DType::kI16, "I16", 16},
    DTypeFacts{DType::kU16, "U16", 16},
    DTypeFacts{DType::kI32, "I32", 32},
    DTypeFacts{DType::kU32, "U32", 32},
    DTypeFacts{DType::kI64, "I64", 64},
    DTypeFacts{DType::kU64, "U64", 64},
    DTypeFacts{DType::kF16, "F16", 16},
    DTypeFacts{DType::kBf16, "BF16", 16},
    DTypeFacts{DType::kF32, "F32", 32},
    DTypeFacts{DType::kF64, "F64", 64},
    DTypeFacts{DType::kF8E4m3, "F8_E4M3", 8},
    DTypeFacts{DType::kF8E5m2, "F8_E5M2", 8},
    DTypeFacts{DType::kF8E8m0, "F8_E8M0", 8},
    DTypeFacts{DType::kF6E2m3, "F6_E2M3", 6},
    DTypeFacts{DType::kF6E3m2, "F6_E3M2", 6},
    DTypeFacts{DType::kF4, "F4", 4},
    DTypeFacts{DType::kC64, "C64", 64},
    DTypeFacts{DType::kF8E4m3fnuz, "F8_E4M3FNUZ", 8},
    DTypeFacts{DType::kF8E5m2fnuz, "F8_E5M2FNUZ", 8},
};

constexpr bool is_in_order() {
  for (std::size_t i = 0; i < kFacts.size(); ++i) {
    if (static_cast<std::size_t>(kFacts[i].dtype) != i) {
      return false;
    }
  }
  return true;
}

static_assert(is_in_order());

const DTypeFacts& facts(DType dtype) {
  const auto index = static_cast<std::size_t>(dtype);
  check_invariant(index < kFacts.size(), "a dtype outside its enumeration");
  return kFacts[index];
}

}  // namespace

std::string_view dtype_name(DType dtype) {
  return facts(dtype).name;
}

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const DTypeFacts& entry : kFacts) {
    if (entry.name == name) {
      return entry.dtype;
    }
  }
  return std::nullopt;
}

std::size_t dtype_bits(DType dtype) {
  return facts(dtype).bits;
}

}  // namespace quantmill
