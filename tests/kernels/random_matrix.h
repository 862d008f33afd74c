#pragma once

// What the tests of one backend against the reference share: the backends of this machine, matrices
// of random content, and comparison to the bit.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "device/context.h"
#include "kernels/codec_float.h"
#include "kernels/matrix.h"

namespace quantmill::test {

inline constexpr unsigned kSeed = 20240607;

// Every backend but the reference: each instruction set, a GPU that is emulated, and a real one
// where there is one.
std::vector<Context> contexts_of_this_machine();

// As the name of a test.
std::string name_of(const Context& context);

inline std::vector<std::uint64_t> bits_of(const std::vector<double>& values) {
  std::vector<std::uint64_t> bits;
  for (const double value : values) {
    bits.push_back(std::bit_cast<std::uint64_t>(value));
  }
  return bits;
}

// A matrix that starts one element past an aligned address, so that no vector of it is aligned.
class Matrix {
 public:
  Matrix(std::size_t rows, std::size_t cols) : rows_(rows), cols_(cols), values_(rows * cols + 1) {}

  [[nodiscard]] FloatMatrix view() { return {values_.data() + 1, rows_, cols_}; }

  [[nodiscard]] std::span<float> all() { return {values_.data() + 1, rows_ * cols_}; }

 private:
  std::size_t rows_;
  std::size_t cols_;
  std::vector<float> values_;
};

enum class Content { kOrdinary, kAnyFinite, kTies, kSparse };

inline constexpr Content kContents[] = {
    Content::kOrdinary, Content::kAnyFinite, Content::kTies, Content::kSparse};

inline float random_value(Content content, std::mt19937& random) {
  const bool negative = (random() & 1U) != 0;
  float magnitude = 0;
  switch (content) {
    case Content::kOrdinary:
      magnitude = std::fabs(std::normal_distribution<float>(0, 0.02F)(random));
      break;
    case Content::kAnyFinite:  // every exponent, subnormals included
      magnitude = float_from_bits(static_cast<std::uint32_t>(random() % 0x7f800000U));
      break;
    case Content::kTies: {  // codes, ties and their neighbours at scale 1
      const float points[] = {
          0, 0.25F, 0.5F, 0.75F, 1, 1.25F, 1.5F, 1.75F, 2, 2.5F, 3, 3.5F, 4, 5, 6, 7};
      magnitude = points[random() % 16];
      const auto neighbour = random() % 4;
      magnitude = neighbour == 0   ? std::nextafter(magnitude, 9.0F)
                  : neighbour == 1 ? std::nextafter(magnitude, 0.0F)
                                   : magnitude;
      break;
    }
    case Content::kSparse:  // mostly zeros of either sign: whole blocks of them
      magnitude = random() % 64 == 0 ? 1.5F : 0.0F;
      break;
  }
  return negative ? -magnitude : magnitude;
}

inline void fill(Matrix& matrix, Content content, std::mt19937& random) {
  for (float& value : matrix.all()) {
    value = random_value(content, random);
  }
}

inline void expect_same_floats(std::span<const float> got, std::span<const float> want) {
  ASSERT_EQ(got.size(), want.size());
  ASSERT_TRUE(got.empty() || std::memcmp(got.data(), want.data(), got.size_bytes()) == 0);
}

}  // namespace quantmill::test
