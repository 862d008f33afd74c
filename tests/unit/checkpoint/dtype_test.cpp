#include "tensor/dtype.h"

#include <string_view>

#include <gtest/gtest.h>

namespace quantmill {
namespace {

struct Expected {
  std::string_view name;
  std::size_t bits;
};

class DTypeTest : public testing::TestWithParam<Expected> {};

TEST_P(DTypeTest, NameAndSizeAreTheFormats) {
  const auto dtype = dtype_from_name(GetParam().name);
  ASSERT_TRUE(dtype.has_value());
  EXPECT_EQ(dtype_name(*dtype), GetParam().name);
  EXPECT_EQ(dtype_bits(*dtype), GetParam().bits);
}

// Dtype::bitsize() of safetensors/src/tensor.rs, 0.8.
INSTANTIATE_TEST_SUITE_P(Format,
                         DTypeTest,
                         testing::Values(Expected{"BOOL", 8},
                                         Expected{"F4", 4},
                                         Expected{"F6_E2M3", 6},
                                         Expected{"F6_E3M2", 6},
                                         Expected{"U8", 8},
                                         Expected{"I8", 8},
                                         Expected{"F8_E5M2", 8},
                                         Expected{"F8_E4M3", 8},
                                         Expected{"F8_E8M0", 8},
                                         Expected{"F8_E4M3FNUZ", 8},
                                         Expected{"F8_E5M2FNUZ", 8},
                                         Expected{"I16", 16},
                                         Expected{"U16", 16},
                                         Expected{"F16", 16},
                                         Expected{"BF16", 16},
                                         Expected{"I32", 32},
                                         Expected{"U32", 32},
                                         Expected{"F32", 32},
                                         Expected{"C64", 64},
                                         Expected{"F64", 64},
                                         Expected{"I64", 64},
                                         Expected{"U64", 64}));

TEST(DType, AnUnknownNameIsNone) {
  EXPECT_FALSE(dtype_from_name("BF8").has_value());
  EXPECT_FALSE(dtype_from_name("bf16").has_value());
  EXPECT_FALSE(dtype_from_name("").has_value());
}

}  // namespace
}  // namespace quantmill
