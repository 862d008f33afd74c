#include "pipeline/coded_rows.h"

#include <algorithm>
#include <array>

#include "base/checked.h"
#include "base/error.h"
#include "kernels/convert.h"
#include "kernels/fp8.h"
#include "kernels/int4_pack.h"
#include "kernels/mx.h"

namespace quantmill {

namespace {

std::span<const std::uint8_t> as_codes(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()};
}

// The e4m3 code of every code of a narrower format.
std::array<std::byte, 64> e4m3_table(ElementFormat element) {
  std::array<std::byte, 64> table{};
  for (std::size_t code = 0; code < table.size(); ++code) {
    table[code] = static_cast<std::byte>(encode_element(
        ElementFormat::kE4m3, decode_element(element, static_cast<std::uint8_t>(code))));
  }
  return table;
}

void read_floats(const Context& context,
                 DType dtype,
                 std::span<const std::byte> bytes,
                 std::vector<float>& values) {
  values.resize(bytes.size() * 8 / dtype_bits(dtype));
  (void)decode_to_float(context, dtype, bytes, FloatMatrix{values.data(), 1, values.size()});
}

// Scales of blocks of rows, once for each row.
void spread_rows(std::uint64_t block_rows, CodedRows& rows) {
  const std::vector<float> of_blocks = rows.scales;
  rows.scales.resize(rows.rows * rows.groups);
  for (std::size_t row = 0; row < rows.rows; ++row) {
    std::copy_n(
        &of_blocks[row / block_rows * rows.groups], rows.groups, &rows.scales[row * rows.groups]);
  }
}

// Integers in words, and zero points that are.
void unpack_integers(const Context& context,
                     Scheme scheme,
                     std::span<const std::span<const std::byte>> parts,
                     CodedRows& rows) {
  IntPacking packing;
  packing.bits = scheme == Scheme::kW8a16 || scheme == Scheme::kW8a16G128 ? 8 : 4;
  rows.group = scheme == Scheme::kW8a16 ? rows.cols : columns_together(scheme);
  rows.groups = rows.cols / rows.group;
  rows.codes.resize(rows.rows * rows.cols);
  const std::span<std::int8_t> codes(reinterpret_cast<std::int8_t*>(rows.codes.data()),
                                     rows.codes.size());
  int_unpack_columns(context, packing, as_codes(parts[0]), rows.rows, rows.cols, codes);
  read_floats(context, DType::kBf16, parts[1], rows.scales);
  if (is_asymmetric(scheme)) {
    rows.zero_points.resize(rows.scales.size());
    int_unpack_rows(context, packing, as_codes(parts[2]), rows.rows, rows.groups, rows.zero_points);
  }
}

}  // namespace

void unpack_small_floats(ElementFormat element,
                         std::span<const std::uint8_t> packed,
                         CodedRows& rows) {
  rows.codes.resize(rows.rows * rows.cols);
  if (element_bits(element) == 8) {
    copy_bytes(rows.codes.data(), packed.data(), rows.codes.size());
    return;
  }
  const std::array<std::byte, 64> table = e4m3_table(element);
  if (element_bits(element) == 4) {
    for (std::size_t i = 0; i < rows.codes.size(); i += 2) {
      rows.codes[i] = table[packed[i / 2] & 15U];
      rows.codes[i + 1] = table[packed[i / 2] >> 4U];
    }
    return;
  }
  for (std::size_t i = 0; i < rows.codes.size(); i += 4) {  // four codes in three bytes
    const std::uint8_t* const bytes = &packed[i / 4 * 3];
    const std::uint32_t word = bytes[0] | static_cast<std::uint32_t>(bytes[1]) << 8U |
                               static_cast<std::uint32_t>(bytes[2]) << 16U;
    for (std::size_t j = 0; j < 4; ++j) {
      rows.codes[i + j] = table[(word >> (6 * j)) & 63U];
    }
  }
}

void unpack_mx_scales(std::span<const std::uint8_t> scales, CodedRows& rows) {
  rows.group = kMxBlock;
  rows.groups = rows.cols / kMxBlock;
  rows.scales.resize(scales.size());
  std::ranges::transform(scales, rows.scales.begin(), decode_e8m0);
}

void unpack_nvfp4_scales(std::span<const std::uint8_t> scales,
                         GlobalScale global,
                         CodedRows& rows) {
  rows.group = kNvfp4Block;
  rows.groups = rows.cols / kNvfp4Block;
  rows.scales.resize(scales.size());
  std::ranges::transform(
      scales, rows.scales.begin(), [&](std::uint8_t scale) { return nvfp4_factor(scale, global); });
}

void unpack_scheme(const Context& context,
                   Scheme scheme,
                   float tensor_largest,
                   std::span<const std::span<const std::byte>> parts,
                   CodedRows& rows) {
  rows.zero_points.clear();
  switch (scheme) {
    case Scheme::kMxfp4:
    case Scheme::kMxfp6E2m3:
    case Scheme::kMxfp6E3m2:
    case Scheme::kMxfp8:
      unpack_small_floats(mx_element(scheme), as_codes(parts[0]), rows);
      unpack_mx_scales(as_codes(parts[1]), rows);
      return;
    case Scheme::kNvfp4:
      unpack_small_floats(ElementFormat::kE2m1, as_codes(parts[0]), rows);
      unpack_nvfp4_scales(
          as_codes(parts[1]), nvfp4_global_scale(tensor_largest, GlobalScaleUse::kDivides), rows);
      return;
    case Scheme::kFp8Tensor:
      rows.group = rows.cols;
      rows.groups = 1;
      rows.codes.assign(parts[0].begin(), parts[0].end());
      rows.scales.assign(rows.rows, fp8_scale(tensor_largest, DType::kF32));
      return;
    case Scheme::kFp8Channel:
    case Scheme::kInt8:
      rows.group = rows.cols;
      rows.groups = 1;
      rows.codes.assign(parts[0].begin(), parts[0].end());
      read_floats(context, DType::kF32, parts[1], rows.scales);
      return;
    case Scheme::kFp8Block: {
      const std::uint64_t block = rows_together(scheme);  // a square
      rows.group = block;
      rows.groups = (rows.cols + block - 1) / block;
      rows.codes.assign(parts[0].begin(), parts[0].end());
      read_floats(context, DType::kF32, parts[1], rows.scales);
      spread_rows(block, rows);
      return;
    }
    case Scheme::kW8a16:
    case Scheme::kW8a16G128:
    case Scheme::kInt4G128:
    case Scheme::kInt4G32:
    case Scheme::kInt4AsymG128:
    case Scheme::kInt4AsymG32:
      unpack_integers(context, scheme, parts, rows);
      return;
    case Scheme::kSource:
    case Scheme::kBf16:
    case Scheme::kF16:
    case Scheme::kF32:
      break;
  }
  throw Error(ErrorCode::kInternal, "internal fault: a scheme that makes no codes");
}

}  // namespace quantmill
