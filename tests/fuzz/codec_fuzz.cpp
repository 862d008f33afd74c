// The cpu backend, on the best instruction set of this machine and on none, against the reference:
// MX kernels and conversions of any finite bytes must agree to the bit. Input: one byte of options,
// one byte of blocks per row (1 to 8), then BF16 values.

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "kernels/compare.h"
#include "kernels/convert.h"
#include "kernels/mx.h"
#include "tests/fuzz/backends.h"

namespace {

using namespace quantmill;

constexpr Context kReference{Backend::kReference, Isa::kPlain};

void require(bool holds) {
  if (!holds) {
    std::abort();
  }
}

template <typename T>
void require_same(const std::vector<T>& got, const std::vector<T>& want) {
  require(got.size() == want.size());
  require(got.empty() || std::memcmp(got.data(), want.data(), got.size() * sizeof(T)) == 0);
}

struct Results {
  std::vector<float> decoded;
  std::optional<MatrixPosition> not_finite;
  std::vector<std::byte> encoded;
  std::vector<std::uint8_t> packed;
  std::vector<std::uint8_t> scales;
  std::vector<float> dequantized;
  std::vector<double> sums;
};

Results run(const Context& context,
            const MxSpec& spec,
            std::span<const std::byte> stored,
            std::size_t rows,
            std::size_t cols) {
  Results results;
  results.decoded.resize(rows * cols);
  const FloatMatrix values{results.decoded.data(), rows, cols};
  results.not_finite = decode_to_float(context, DType::kBf16, stored, values);
  results.encoded.resize(stored.size());
  encode_from_float(context, values, DType::kBf16, results.encoded);
  if (results.not_finite) {
    return results;
  }
  results.packed.resize(rows * mx_packed_bytes(spec.element, cols));
  results.scales.resize(rows * cols / kMxBlock);
  mx_quantize(context, spec, values, results.packed, results.scales);
  results.dequantized.resize(rows * cols);
  const FloatMatrix dequantized{results.dequantized.data(), rows, cols};
  mx_dequantize(context, spec.element, results.packed, results.scales, dequantized);
  // Products with s must stay finite, so that no NaN with a sign of its own appears.
  std::vector<float> small(results.decoded);
  for (float& value : small) {
    value *= 0x1p-60F;
  }
  std::vector<float> candidates(2 * cols, 1.0F);
  for (std::size_t c = 0; c < cols; ++c) {
    candidates[cols + c] = 0.3F + 0.1F * static_cast<float>(c % 13);
  }
  const std::vector<float> importance(candidates.begin() + static_cast<std::ptrdiff_t>(cols),
                                      candidates.end());
  results.sums.resize(2 * cols / kMxBlock);
  mx_error_curve(context,
                 spec,
                 {small.data(), rows, cols},
                 importance,
                 {candidates.data(), 2, cols},
                 results.sums);
  ErrorSums errors;
  add_errors(context, {small.data(), rows, cols}, values, errors);
  results.sums.push_back(errors.squared_error);
  results.sums.push_back(errors.squared_norm);
  return results;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) {
    return 0;
  }
  constexpr ElementFormat kElements[] = {ElementFormat::kE2m1,
                                         ElementFormat::kE2m1,
                                         ElementFormat::kE2m1,
                                         ElementFormat::kE2m1,
                                         ElementFormat::kE2m3,
                                         ElementFormat::kE3m2,
                                         ElementFormat::kE4m3,
                                         ElementFormat::kE5m2};
  constexpr ScaleRule kRules[] = {
      ScaleRule::kFloor, ScaleRule::kEven, ScaleRule::kRceil, ScaleRule::kCeil};
  MxSpec spec{kElements[data[0] & 7], kRules[(data[0] >> 3) & 3]};
  if ((data[0] & 32) != 0 && spec.element == ElementFormat::kE2m1) {
    spec.ties = TieRule::kSeed;
  }
  const std::size_t cols = kMxBlock * (1 + data[1] % 8U);
  const std::size_t rows = (size - 2) / (2 * cols);
  const auto stored = std::as_bytes(std::span(data + 2, rows * cols * 2));
  const Results want = run(kReference, spec, stored, rows, cols);
  for (const Context& context : fuzz::compared_backends()) {
    const Results got = run(context, spec, stored, rows, cols);
    require_same(got.decoded, want.decoded);
    require(got.not_finite == want.not_finite);
    require_same(got.encoded, want.encoded);
    require_same(got.packed, want.packed);
    require_same(got.scales, want.scales);
    require_same(got.dequantized, want.dequantized);
    require_same(got.sums, want.sums);
  }
  return 0;
}
