// Rounding to an element's values without its codes, as kernels on a GPU do it.

#include <cmath>
#include <cstdint>

#include <gtest/gtest.h>

#include "kernels/codec.h"
#include "kernels/gpu/bodies_mx.h"

namespace quantmill {
namespace {

// Every sign and exponent, the bits of the mantissa that codes keep, and what can lie below them.
template <ElementFormat kElement>
void expect_as_by_code(TieRule ties) {
  for (std::uint32_t top = 0; top <= 0xffffU; ++top) {
    for (const std::uint32_t rest : {0U, 1U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
      const float value = float_from_bits(top << 16 | rest);
      const float want = decode_element(kElement, encode_element(kElement, value, ties));
      const float got = gpu::nearest_element<kElement>(value, ties);
      if (std::isnan(want)) {
        ASSERT_TRUE(std::isnan(got)) << value;
      } else {
        ASSERT_EQ(float_bits(got), float_bits(want)) << value << " became " << got;
      }
    }
  }
}

TEST(GpuElement, NearestIsThatOfTheCode) {
  for (const TieRule ties : {TieRule::kEven, TieRule::kSeed}) {
    expect_as_by_code<ElementFormat::kE2m1>(ties);
    expect_as_by_code<ElementFormat::kE2m3>(ties);
    expect_as_by_code<ElementFormat::kE3m2>(ties);
    expect_as_by_code<ElementFormat::kE4m3>(ties);
    expect_as_by_code<ElementFormat::kE5m2>(ties);
  }
}

}  // namespace
}  // namespace quantmill
