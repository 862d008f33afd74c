#include "report/code_counts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "device/context.h"
#include "kernels/codec.h"
#include "kernels/convert.h"
#include "tensor/dtype.h"

namespace quantmill {
namespace {

constexpr std::uint64_t kPieceBytes = std::uint64_t{3} << 20;  // whole groups of 6-bit codes

using ByteCounts = std::array<std::uint64_t, 256>;

void read_pieces(const Checkpoint& checkpoint,
                 const SourceTensor& tensor,
                 const std::function<void(std::span<const std::byte>)>& use) {
  std::vector<std::byte> bytes;
  for (std::uint64_t begin = 0; begin < tensor.entry.size_bytes(); begin += kPieceBytes) {
    bytes.resize(std::min(kPieceBytes, tensor.entry.size_bytes() - begin));
    checkpoint.read(tensor, begin, bytes);
    use(bytes);
  }
}

bool is_small_float(const SourceWeight& weight) {
  return weight.encoding == Encoding::kMx || weight.encoding == Encoding::kNvfp4 ||
         weight.encoding == Encoding::kFp8;
}

// Of one that is_small_float.
ElementFormat element_of(const SourceWeight& weight) {
  return weight.encoding == Encoding::kNvfp4 ? ElementFormat::kE2m1
         : weight.encoding == Encoding::kFp8 ? ElementFormat::kE4m3
                                             : weight.element;
}

std::size_t bits_of(const SourceWeight& weight) {
  return is_small_float(weight)                    ? element_bits(element_of(weight))
         : weight.encoding == Encoding::kPackedInt ? weight.packing.bits
                                                   : 8;
}

// How often each code comes, by its bits.
ByteCounts count_bits(const Checkpoint& checkpoint, const SourceWeight& weight) {
  const std::size_t bits = bits_of(weight);
  ByteCounts bytes{};
  ByteCounts codes{};
  read_pieces(
      checkpoint, checkpoint.tensors()[weight.codes], [&](std::span<const std::byte> piece) {
        if (bits != 6) {
          for (const std::byte byte : piece) {
            ++bytes[std::to_integer<std::size_t>(byte)];
          }
          return;
        }
        for (std::size_t i = 0; i + 3 <= piece.size(); i += 3) {
          const std::uint32_t four = std::to_integer<std::uint32_t>(piece[i]) |
                                     std::to_integer<std::uint32_t>(piece[i + 1]) << 8U |
                                     std::to_integer<std::uint32_t>(piece[i + 2]) << 16U;
          for (const std::uint32_t shift : {0U, 6U, 12U, 18U}) {
            ++codes[four >> shift & 63U];
          }
        }
      });
  if (bits == 8) {
    return bytes;
  }
  for (std::size_t byte = 0; bits == 4 && byte < bytes.size(); ++byte) {
    codes[byte & 15U] += bytes[byte];
    codes[byte >> 4U] += bytes[byte];
  }
  return codes;
}

// What a code stands for before its scale, without a zero point.
double value_of(const SourceWeight& weight, std::uint32_t code) {
  if (is_small_float(weight)) {
    return decode_element(element_of(weight), static_cast<std::uint8_t>(code));
  }
  const auto half = std::int64_t{1} << (bits_of(weight) - 1);
  const auto stored = static_cast<std::int64_t>(code);
  const bool is_offset =
      weight.encoding == Encoding::kPackedInt && weight.packing.code == IntCode::kOffset;
  return static_cast<double>(is_offset       ? stored - half
                             : stored < half ? stored
                                             : stored - 2 * half);
}

// Of codes with zero points both ends are the largest; of others the symmetric range counts.
double largest_magnitude(const SourceWeight& weight) {
  if (is_small_float(weight)) {
    const ElementFormat format = element_of(weight);
    return decode_element(format, static_cast<std::uint8_t>(element_layout(format).largest_code));
  }
  return static_cast<double>((std::int64_t{1} << (bits_of(weight) - 1)) - 1);
}

void count_scales(const Checkpoint& checkpoint, const SourceWeight& weight, CodeCounts& counts) {
  const SourceTensor& tensor = checkpoint.tensors()[*weight.scales];
  const auto add = [&](double scale) {
    if (!(std::isfinite(scale) && scale > 0)) {
      throw Error(
          ErrorCode::kInput,
          fmt::format(
              "tensor {}: a scale is {}; the checkpoint is damaged", tensor.entry.name, scale));
    }
    ++counts.scale_exponents[std::ilogb(scale)];
  };
  std::vector<float> values;
  read_pieces(checkpoint, tensor, [&](std::span<const std::byte> piece) {
    if (!is_convertible(tensor.entry.dtype)) {  // exponents, a byte each
      for (const std::byte byte : piece) {
        ++counts.scale_exponents[std::to_integer<int>(byte) - 127];
      }
      return;
    }
    values.resize(piece.size() * 8 / dtype_bits(tensor.entry.dtype));
    static_cast<void>(decode_to_float({Backend::kReference, Isa::kPlain},
                                      tensor.entry.dtype,
                                      piece,
                                      FloatMatrix{values.data(), 1, values.size()}));
    std::ranges::for_each(values, add);
  });
}

}  // namespace

void CodeCounts::add(const CodeCounts& other) {
  tensors += other.tensors;
  elements += other.elements;
  zeros += other.zeros;
  largest += other.largest;
  for (const auto& [magnitude, count] : other.magnitudes) {
    magnitudes[magnitude] += count;
  }
  for (const auto& [exponent, count] : other.scale_exponents) {
    scale_exponents[exponent] += count;
  }
}

CodeCounts count_codes(const Checkpoint& checkpoint, const SourceWeight& weight) {
  CodeCounts counts;
  counts.tensors = 1;
  const ByteCounts codes = count_bits(checkpoint, weight);
  const double largest = largest_magnitude(weight);
  for (std::uint32_t code = 0; code < codes.size(); ++code) {
    if (codes[code] == 0) {
      continue;
    }
    const double magnitude = std::fabs(value_of(weight, code));
    counts.elements += codes[code];
    if (!std::isfinite(magnitude)) {  // no code that is written
      continue;
    }
    counts.zeros += magnitude == 0 ? codes[code] : 0;
    counts.largest += magnitude >= largest ? codes[code] : 0;
    const bool is_exact = bits_of(weight) < 8 || magnitude == 0;
    counts.magnitudes[is_exact ? magnitude : std::exp2(std::ilogb(magnitude))] += codes[code];
  }
  if (weight.scales) {
    count_scales(checkpoint, weight, counts);
  }
  return counts;
}

}  // namespace quantmill
