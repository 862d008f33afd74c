#pragma once

// OCP microscaling (MX) formats: blocks of 32 elements along a row that share one power-of-two
// scale (E8M0). OCP Microscaling Formats (MX) Specification 1.0, sections 5 and 6.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "device/context.h"
#include "kernels/codec.h"
#include "kernels/matrix.h"

namespace quantmill {

constexpr std::size_t kMxBlock = 32;

// What ScaleRule::kMse adds to the exponent of ScaleRule::kFloor, in the order in which it tries:
// of equal errors the first counts. More candidates gain nothing: {-2 .. 2} was no better in
// AutoRound's measurements (docs/opt_rtn.md) and in ours.
constexpr std::array<int, 3> kMxTriedExponents = {0, 1, -1};

struct MxSpec {
  ElementFormat element = ElementFormat::kE2m1;
  ScaleRule scale_rule = ScaleRule::kEven;
  TieRule ties = TieRule::kEven;
};

// Bytes of `cols` packed elements; cols is a multiple of 32.
constexpr std::size_t mx_packed_bytes(ElementFormat element, std::size_t cols) {
  return cols * element_bits(element) / 8;
}

// Quantizes each block of 32: scale byte by mx_scale_byte (codec.h), elements by
// encode_element(value / 2^e), which is exact before rounding. values must be finite; whoever
// decoded them has looked.
//   packed: rows x mx_packed_bytes; 4-bit: element 2i in the low nibble of byte i; 6-bit: four
//   codes in three bytes,
//           v0 | v1<<6 | v2<<12 | v3<<18, little-endian; 8-bit: one code a byte.
//   scales: rows x cols/32 bytes, e + 127. A block of zeros has byte 127 (kZeroBlockScale) and
//   keeps its signs.
//   importance: of ScaleRule::kMse only: [cols], not negative, finite; empty: 1 everywhere. Each
//   block takes the candidate (kMxTriedExponents, e clamped to -127) whose error is least, the
//   earliest on a tie. In float, each operation rounded once: e_j = (dequantized - value) *
//   importance; p_j = e_j * e_j + e_(j+16) * e_(j+16) for j = 0..15, added by add_lanes
//   (lane_sums.h).
void mx_quantize(const Context& context,
                 const MxSpec& spec,
                 ConstFloatMatrix values,
                 std::span<std::uint8_t> packed,
                 std::span<std::uint8_t> scales,
                 std::span<const float> importance = {});

// The elements alone, with scales that are there: encode_element(value / 2^e), as above. One
// implementation serves every instruction set: what is encoded so was rounded before, which takes
// longer.
void mx_encode(const Context& context,
               ElementFormat element,
               ConstFloatMatrix values,
               std::span<const std::uint8_t> scales,
               std::span<std::uint8_t> packed);

// The values that packed elements and scales stand for: decode_element(code) * decode_e8m0(scale).
// Exact, except that scale byte 255 gives NaN, and that 2^128 and beyond become infinity.
void mx_dequantize(const Context& context,
                   ElementFormat element,
                   std::span<const std::uint8_t> packed,
                   std::span<const std::uint8_t> scales,
                   FloatMatrix values);

// Rows that mx_error_curve adds together.
constexpr std::size_t kMxCurveRows = 16;

// The activation-weighted error of quantizing values * s, for several s in one pass over `values`,
// of each block of columns:
//   sums[b][i] += sum over r and the columns c of block b of
//                 ((Q(values * s_i)[r][c] / s_i[c] - values[r][c]) * importance[c])^2
// sums: [cols / 32, candidates.rows]. candidates: [any, cols], positive. importance: [cols], not
// negative. Products must stay finite. Source: the objective of AWQ (Lin et al., arXiv:2306.00978,
// section 3.2) for uncorrelated channels. Arithmetic, equal on every backend to the bit, each
// operation rounded once:
//   float:  x = values * s * 2^-e; t = (decoded(encoded(x)) - x) * (importance * (1 / s)); of a
//           row's block, t * t is added to part c mod 4 in the order of columns, and the parts as
//           (0 + 2) + (1 + 3). With ScaleRule::kMse e is the one of kMxTriedExponents whose sum *
//           4^e is least, the earliest on a tie
//   double: that sum * 2^e * 2^e * the row's weight ([rows], or 1 if empty). Those of kMxCurveRows
//   rows, missing ones 0, are added by
//           add_lanes (lane_sums.h), and so on down the rows: cutting a matrix at a multiple of
//           kMxCurveRows rows changes nothing.
void mx_error_curve(const Context& context,
                    const MxSpec& spec,
                    ConstFloatMatrix values,
                    std::span<const float> importance,
                    ConstFloatMatrix candidates,
                    std::span<double> sums,
                    std::span<const double> row_weights = {});

}  // namespace quantmill
