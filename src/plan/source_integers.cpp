#include "plan/source_integers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "plan/architecture_file.h"

namespace quantmill {
namespace {

using Shape = std::vector<std::uint64_t>;

[[noreturn]] void fail(const SourceWeight& weight, const std::string& what) {
  throw Error(ErrorCode::kInput, fmt::format("tensor {}: {}", weight.entry.name, what));
}

void check_zero_points(const std::vector<SourceTensor>& stored,
                       const SourceWeight& weight,
                       const Shape& wanted) {
  if (!weight.zero_points) {
    return;
  }
  const TensorEntry& found = stored[*weight.zero_points].entry;
  if (found.dtype != DType::kI32 || found.shape != wanted) {
    fail(weight,
         fmt::format("its zero points {} do not fit the scales {}",
                     describe(found),
                     describe(stored[*weight.scales].entry)));
  }
}

void check_column_groups(const std::vector<SourceTensor>& stored,
                         const SourceWeight& weight,
                         std::uint64_t cols) {
  if (!weight.column_groups) {
    return;
  }
  const TensorEntry& found = stored[*weight.column_groups].entry;
  if (found.dtype != DType::kI32 || found.shape != Shape{cols}) {
    fail(weight,
         fmt::format("the groups of its columns {} are {}; I32 [{}] is wanted",
                     found.name,
                     describe(found),
                     cols));
  }
}

std::uint32_t known_bits(const SourceWeight& weight, std::uint64_t bits, bool knows_eight) {
  if (bits != 4 && !(bits == 8 && knows_eight)) {
    fail(weight,
         fmt::format("config.json says that packed integers have {} bits; {} known",
                     bits,
                     knows_eight ? "4 and 8 are" : "only 4 are"));
  }
  return static_cast<std::uint32_t>(bits);
}

// How the codes are packed, by the program that wrote them.
void choose_packing(const QuantizationSettings& settings, SourceWeight& weight) {
  const std::string& format = settings.checkpoint_format;
  if (settings.method == "gptq") {
    if (!format.empty() && format != "gptq" && format != "gptq_v2") {
      fail(weight,
           fmt::format("GPTQ's checkpoint_format {} is not known; gptq and gptq_v2 are", format));
    }
    weight.packing = {known_bits(weight, settings.bits.value_or(4), true)};
    weight.packs_rows = true;
    weight.adds_one_to_zero_points = format != "gptq_v2";
    weight.zero_points_are_zero = settings.is_symmetric;
  } else if (settings.method == "awq") {
    if (!format.empty() && format != "gemm" && format != "GEMM") {
      fail(weight, fmt::format("AutoAWQ's version {} is not known; gemm is", format));
    }
    weight.packing = {known_bits(weight, settings.bits.value_or(4), false), NibbleOrder::kAwq};
  } else if (settings.method == "quark") {
    const CodeSettings& codes = settings.codes_of(module_of(weight.entry.name));
    const std::string& integer = codes.integer;
    if (integer.empty()) {
      fail(weight, "packed integers, but config.json does not say whether they are int4 or uint4");
    }
    weight.packing.order =
        settings.pack_method == "order" ? NibbleOrder::kSequential : NibbleOrder::kAwq;
    weight.packing.code = integer == "uint4" ? IntCode::kOffset : IntCode::kTwosComplement;
    weight.zero_points_are_zero = integer == "int4" && codes.is_symmetric;
  } else {
    fail(
        weight,
        fmt::format("packed integers of quant_method \"{}\" are not known; awq, gptq and quark are",
                    settings.method));
  }
}

}  // namespace

std::string describe(const TensorEntry& entry) {
  return fmt::format("{} [{}]", dtype_name(entry.dtype), fmt::join(entry.shape, ", "));
}

void fail_scales(const std::vector<SourceTensor>& stored, const SourceWeight& weight) {
  const TensorEntry& scales = stored[*weight.scales].entry;
  fail(weight,
       fmt::format("codes {} and scales {} {} do not belong to any known format",
                   describe(stored[weight.codes].entry),
                   scales.name,
                   describe(scales)));
}

void describe_packed_integers(const std::vector<SourceTensor>& stored,
                              const QuantizationSettings& settings,
                              SourceWeight& weight) {
  const std::string& name = weight.entry.name;  // X.weight_packed
  const CodeSettings& codes = settings.codes_of(module_of(name.substr(0, name.rfind("_packed"))));
  const std::uint32_t bits = known_bits(weight, codes.num_bits.value_or(0), true);
  const Shape& scales = stored[*weight.scales].entry.shape;
  Shape shape = weight.entry.shape;
  const std::uint64_t rows = shape[shape.size() - 2];
  const std::uint64_t cols = shape.back() * (32 / bits);
  const bool fits = scales.size() == shape.size() && scales[scales.size() - 2] == rows &&
                    scales.back() > 0 && cols % scales.back() == 0;
  if (!fits) {
    fail_scales(stored, weight);
  }
  shape[shape.size() - 2] = int_packed_words(bits, rows);
  shape.back() = scales.back();
  check_zero_points(stored, weight, shape);
  check_column_groups(stored, weight, cols);
  weight.encoding = Encoding::kPackedInt;
  weight.packing = {bits};
  weight.block_cols = cols / scales.back();
  weight.entry.shape.back() = cols;
}

void describe_turned_integers(const std::vector<SourceTensor>& stored,
                              const QuantizationSettings& settings,
                              SourceWeight& weight) {
  choose_packing(settings, weight);
  const TensorEntry& scales = stored[*weight.scales].entry;
  const Shape& codes = weight.entry.shape;
  if (codes.size() != 2) {
    fail_scales(stored, weight);
  }
  const std::uint64_t in_word = 32 / weight.packing.bits;
  const std::uint64_t cols = codes[0] * (weight.packs_rows ? in_word : 1);
  const std::uint64_t rows = codes[1] * (weight.packs_rows ? 1 : in_word);
  const bool is_known_type =
      scales.dtype == DType::kF16 || scales.dtype == DType::kBf16 || scales.dtype == DType::kF32;
  const bool fits = weight.entry.dtype == DType::kI32 && is_known_type &&
                    scales.shape.size() == 2 && scales.shape[1] == rows && scales.shape[0] > 0 &&
                    cols % scales.shape[0] == 0;
  if (!fits) {
    fail_scales(stored, weight);
  }
  const std::uint64_t group = cols / scales.shape[0];
  if (settings.group_size.value_or(group) != group) {
    fail(weight,
         fmt::format("its scales {} are for groups of {} columns, but config.json says {}",
                     describe(scales),
                     group,
                     *settings.group_size));
  }
  check_zero_points(stored, weight, {scales.shape[0], int_packed_words(weight.packing.bits, rows)});
  check_column_groups(stored, weight, cols);
  weight.encoding = Encoding::kPackedInt;
  weight.turned = true;
  weight.block_cols = group;
  weight.entry.shape = {rows, cols};
}

}  // namespace quantmill
