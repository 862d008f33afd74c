#pragma once

// Rows of a quantized weight in one form, whatever they are stored as: one code a byte, a float for
// each scale, a byte for each zero point. A value is (code - zero point) * scale. Small floats come
// as e4m3, which has every value of e2m1, e2m3 and e3m2; integers as signed bytes.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/context.h"
#include "kernels/codec.h"
#include "kernels/nvfp4.h"
#include "plan/scheme.h"

namespace quantmill {

struct CodedRows {
  std::size_t rows = 0;
  std::size_t cols = 0;
  std::size_t group = 1;                 // columns that share a scale; the last may be fewer
  std::size_t groups = 0;                // in each row
  std::vector<std::byte> codes;          // [rows, cols]
  std::vector<float> scales;             // [rows, groups]
  std::vector<std::int8_t> zero_points;  // as many, or none
};

// Packed elements of MX, each code as e4m3. codes: rows.rows x mx_packed_bytes(element, rows.cols).
void unpack_small_floats(ElementFormat element,
                         std::span<const std::uint8_t> packed,
                         CodedRows& rows);

// Power-of-two scales of MX, a byte each.
void unpack_mx_scales(std::span<const std::uint8_t> scales, CodedRows& rows);

// A block's e4m3 scale with the tensor's, as nvfp4_factor.
void unpack_nvfp4_scales(std::span<const std::uint8_t> scales, GlobalScale global, CodedRows& rows);

// What a scheme made of rows.rows rows of rows.cols columns: the bytes of its stored parts
// (stored_parts in layout qwix). `tensor_largest`: as in SchemeCodec::set_tensor_largest.
void unpack_scheme(const Context& context,
                   Scheme scheme,
                   float tensor_largest,
                   std::span<const std::span<const std::byte>> parts,
                   CodedRows& rows);

}  // namespace quantmill
