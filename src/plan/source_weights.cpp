#include "plan/source_weights.h"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "kernels/mx.h"
#include "kernels/nvfp4.h"
#include "plan/architecture_file.h"
#include "plan/quantization_settings.h"
#include "plan/source_bytes.h"
#include "plan/source_integers.h"

namespace quantmill {

namespace {

// What may stand beside the codes of a weight X.weight, by what it is called after "X".
constexpr std::array<std::string_view, 4> kScaleSuffixes = {
    ".weight_scale_inv", ".weight_scale", ".scale", "_scale_inv"};
// Of no matter for the weights: how servers quantize activations, and the shape of packed codes.
constexpr std::array<std::string_view, 8> kRuntimeSuffixes = {".input_scale",
                                                              ".input_scale_2",
                                                              ".input_zero_point",
                                                              ".input_global_scale",
                                                              ".output_scale",
                                                              ".k_scale",
                                                              ".v_scale",
                                                              ".weight_shape"};

[[noreturn]] void fail(const std::string& message) {
  throw Error(ErrorCode::kInput, message);
}

// The leading dimensions, with other last ones.
std::vector<std::uint64_t> with_last(std::vector<std::uint64_t> shape,
                                     std::uint64_t rows,
                                     std::uint64_t cols) {
  shape[shape.size() - 2] = rows;
  shape.back() = cols;
  return shape;
}

class WeightFinder {
 public:
  WeightFinder(const std::vector<SourceTensor>& stored, QuantizationSettings settings)
      : stored_(stored), settings_(std::move(settings)), used_(stored.size(), false) {
    for (std::size_t i = 0; i < stored.size(); ++i) {
      by_name_.emplace(stored[i].entry.name, i);
    }
  }

  std::vector<SourceWeight> find() {
    std::vector<std::pair<std::size_t, SourceWeight>> coded;  // by where their codes are
    for (std::size_t i = 0; i < stored_.size(); ++i) {
      if (is_codes(i)) {
        coded.emplace_back(i, with_scales(i));
      }
    }
    std::vector<SourceWeight> result;
    result.reserve(stored_.size());
    auto next = coded.begin();
    for (std::size_t i = 0; i < stored_.size(); ++i) {
      if (next != coded.end() && next->first == i) {
        result.push_back(std::move(next->second));
        ++next;
      } else if (!used_[i]) {
        check_belongs_to_nothing(i);
        result.push_back(plain(i));
      }
    }
    return result;
  }

 private:
  const TensorEntry& entry(std::size_t index) const { return stored_[index].entry; }

  static bool ends_with(const TensorEntry& entry, std::string_view suffix) {
    return entry.name.size() > suffix.size() && entry.name.ends_with(suffix);
  }

  static std::string without(const std::string& name, std::string_view suffix) {
    return name.substr(0, name.size() - suffix.size());
  }

  SourceWeight plain(std::size_t index) const {
    SourceWeight weight;
    weight.entry = entry(index);
    weight.shard = stored_[index].shard;
    weight.codes = index;
    return weight;
  }

  // Whether only a quantized weight looks like this.
  bool is_codes(std::size_t index) const {
    const TensorEntry& tensor = entry(index);
    if (tensor.dtype == DType::kF8E4m3) {
      return !ends_with(tensor, ".weight_scale");
    }
    if (ends_with(tensor, ".weight_packed") || ends_with(tensor, ".qweight")) {
      return true;
    }
    if (ends_with(tensor, "_blocks")) {
      return by_name_.contains(without(tensor.name, "_blocks") + "_scales");
    }
    return ends_with(tensor, ".weight") &&
           (tensor.dtype == DType::kU8 || tensor.dtype == DType::kI8 ||
            tensor.dtype == DType::kI32);
  }

  // The tensor of this name beside the codes; marks it as used.
  std::optional<std::size_t> take(const std::string& name) {
    const auto found = by_name_.find(name);
    if (found == by_name_.end()) {
      return std::nullopt;
    }
    used_[found->second] = true;
    return found->second;
  }

  SourceWeight with_scales(std::size_t index) {
    SourceWeight weight = plain(index);
    if (entry(index).shape.size() < 2) {
      fail(fmt::format("tensor {}: {} has the type of a quantized weight, but is no matrix",
                       entry(index).name,
                       describe(entry(index))));
    }
    if (ends_with(entry(index), "_blocks")) {
      read_blocks(weight);
    } else if (ends_with(entry(index), ".weight_packed")) {
      read_packed(weight);
    } else if (ends_with(entry(index), ".qweight")) {
      read_qweight(weight);
    } else {
      read_coded(weight);
    }
    weight.entry.dtype = DType::kBf16;
    weight.scale_dtype = entry(*weight.scales).dtype;
    return weight;
  }

  // gpt-oss: Y_blocks U8 [experts, out, in / 32, 16] and Y_scales U8 [experts, out, in / 32].
  void read_blocks(SourceWeight& weight) {
    const std::string scales_name = without(weight.entry.name, "_blocks") + "_scales";
    weight.scales = take(scales_name);
    if (!weight.scales) {
      fail_missing(weight, scales_name);
    }
    std::vector<std::uint64_t> shape = weight.entry.shape;
    const std::vector<std::uint64_t>& scales = entry(*weight.scales).shape;
    const bool fits = shape.size() >= 3 && shape.back() * 2 == kMxBlock &&
                      std::equal(shape.begin(), shape.end() - 1, scales.begin(), scales.end());
    if (!fits || weight.entry.dtype != DType::kU8 || entry(*weight.scales).dtype != DType::kU8) {
      fail_scales(stored_, weight);
    }
    shape.pop_back();
    shape.back() *= kMxBlock;
    std::swap(shape.back(), shape[shape.size() - 2]);
    weight.entry.shape = std::move(shape);
    weight.entry.name = without(weight.entry.name, "_blocks");
    weight.turned = true;
    weight.encoding = Encoding::kMx;
  }

  // compressed-tensors: X.weight_packed.
  void read_packed(SourceWeight& weight) {
    const std::string base = without(weight.entry.name, "_packed");
    weight.scales = take(base + "_scale");
    if (!weight.scales) {
      fail_missing(weight, base + "_scale");
    }
    weight.zero_points = take(base + "_zero_point");
    weight.global_scale = take(base + "_global_scale");
    weight.column_groups = take(base + "_g_idx");
    if (weight.entry.dtype == DType::kI32) {
      describe_packed_integers(stored_, settings_, weight);
    } else {
      read_four_bits(weight, true);
    }
    weight.entry.name = base;
  }

  // AutoAWQ and GPTQ: X.qweight.
  void read_qweight(SourceWeight& weight) {
    const std::string base = without(weight.entry.name, ".qweight");
    weight.scales = take(base + ".scales");
    weight.zero_points = take(base + ".qzeros");
    weight.column_groups = take(base + ".g_idx");
    if (!weight.scales) {
      fail_missing(weight, base + ".scales");
    }
    if (!weight.zero_points) {
      fail_missing(weight, base + ".qzeros", "zero point");
    }
    if (!weight.column_groups && settings_.reorders_columns) {
      fail_missing(weight, base + ".g_idx", "order of columns");
    }
    describe_turned_integers(stored_, settings_, weight);
    weight.entry.name = base + ".weight";
  }

  // e2m1, two to a byte: MXFP4 with byte scales, NVFP4 with e4m3 scales. Or six bits.
  void read_four_bits(SourceWeight& weight, bool is_packed_name) {
    const TensorEntry& scales = entry(*weight.scales);
    const std::vector<std::uint64_t>& codes = weight.entry.shape;
    const std::uint64_t rows = codes[codes.size() - 2];
    const std::uint64_t width = codes.back();
    const bool same_rows =
        scales.shape.size() == codes.size() && scales.shape[scales.shape.size() - 2] == rows;
    if (!same_rows || weight.entry.dtype != DType::kU8) {
      fail_scales(stored_, weight);
    }
    const bool byte_scales = scales.dtype == DType::kU8 || scales.dtype == DType::kF8E8m0;
    if (byte_scales && scales.shape.back() * kMxBlock == width * 2) {
      weight.encoding = Encoding::kMx;
      weight.entry.shape = with_last(codes, rows, width * 2);
    } else if (byte_scales && scales.shape.back() * kMxBlock * 3 == width * 4) {
      weight.encoding = Encoding::kMx;
      weight.element = six_bit_element(weight);
      weight.entry.shape = with_last(codes, rows, width / 3 * 4);
    } else if (scales.dtype == DType::kF8E4m3 && scales.shape.back() * kNvfp4Block == width * 2) {
      if (!weight.global_scale) {
        fail(
            fmt::format("tensor {}: its e4m3 block scales need a scale for the whole tensor "
                        "(weight_scale_2 or weight_global_scale), and there is none",
                        weight.entry.name));
      }
      weight.encoding = Encoding::kNvfp4;
      weight.divides_by_global_scale = is_packed_name;
      weight.entry.shape = with_last(codes, rows, width * 2);
    } else {
      fail_scales(stored_, weight);
    }
  }

  const CodeSettings& codes_of(const SourceWeight& weight) const {
    return settings_.codes_of(module_of(weight.entry.name));
  }

  ElementFormat six_bit_element(const SourceWeight& weight) const {
    const std::string& element = codes_of(weight).element;
    if (element == "fp6_e2m3") {
      return ElementFormat::kE2m3;
    }
    if (element == "fp6_e3m2") {
      return ElementFormat::kE3m2;
    }
    fail(
        fmt::format("tensor {}: elements of six bits, but config.json does not say whether they "
                    "are fp6_e2m3 or fp6_e3m2",
                    weight.entry.name));
  }

  // X.weight that holds codes, or a parameter without ".weight" that does.
  void read_coded(SourceWeight& weight) {
    const std::string name = weight.entry.name;
    const std::string base = name.ends_with(".weight") ? without(name, ".weight") : name;
    for (const std::string_view suffix : kScaleSuffixes) {
      if (!weight.scales) {
        weight.scales = take(base + std::string(suffix));
      }
    }
    if (!weight.scales && base == name) {
      weight.scales = take(base + "_scale");
    }
    if (!weight.scales) {
      fail_missing(weight,
                   fmt::format("{}{}", base, fmt::join(kScaleSuffixes, fmt::format(", {}", base))));
    }
    weight.global_scale = take(base + ".weight_scale_2");
    weight.zero_points = take(base + ".weight_zero_point");
    if (weight.entry.dtype == DType::kI32) {
      describe_turned_integers(stored_, settings_, weight);
    } else if (weight.entry.dtype == DType::kU8) {
      read_four_bits(weight, false);
    } else {
      describe_byte_codes(stored_, codes_of(weight), weight);
    }
  }

  [[noreturn]] static void fail_missing(const SourceWeight& weight,
                                        const std::string& names,
                                        std::string_view part = "scale") {
    fail(
        fmt::format("tensor {}: {} are codes of a quantized weight, but its {} is not in the "
                    "checkpoint (looked for {}); read without one every value would be wrong",
                    weight.entry.name,
                    dtype_name(weight.entry.dtype),
                    part,
                    names));
  }

  // A scale without codes means that something was lost; what servers need at run time goes. But
  // not ModelOpt's scale of inputs that a weight was divided by: it is a part of the function.
  void check_belongs_to_nothing(std::size_t index) const {
    for (const std::string_view suffix : {".weight_scale_inv",
                                          ".weight_scale",
                                          ".weight_global_scale",
                                          ".weight_scale_2",
                                          ".qzeros",
                                          ".pre_quant_scale"}) {
      if (ends_with(entry(index), suffix)) {
        fail(
            fmt::format("tensor {}: {} belongs to a quantized weight of a format that is not known",
                        entry(index).name,
                        describe(entry(index))));
      }
    }
  }

  const std::vector<SourceTensor>& stored_;
  QuantizationSettings settings_;
  std::vector<bool> used_;
  std::unordered_map<std::string_view, std::size_t> by_name_;

 public:
  // Marks what only matters at run time.
  void pass_over_runtime_tensors() {
    for (std::size_t i = 0; i < stored_.size(); ++i) {
      for (const std::string_view suffix : kRuntimeSuffixes) {
        used_[i] = used_[i] || (!settings_.method.empty() && ends_with(entry(i), suffix));
      }
    }
  }
};

}  // namespace

std::string_view encoding_name(Encoding encoding) {
  switch (encoding) {
    case Encoding::kPlain:
      return "plain";
    case Encoding::kFp8:
      return "fp8";
    case Encoding::kMx:
      return "mx";
    case Encoding::kNvfp4:
      return "nvfp4";
    case Encoding::kInt8:
      return "int8";
    case Encoding::kPackedInt:
      return "packed int";
  }
  return "";
}

bool is_integer(Encoding encoding) {
  return encoding == Encoding::kInt8 || encoding == Encoding::kPackedInt;
}

std::vector<SourceWeight> find_weights(const std::vector<SourceTensor>& stored,
                                       const std::string& config_json) {
  WeightFinder finder(stored, read_quantization_settings(config_json));
  finder.pass_over_runtime_tensors();
  std::vector<SourceWeight> weights = finder.find();
  for (SourceWeight& weight : weights) {  // one without rows or columns has no block
    weight.block_rows = std::max<std::uint64_t>(1, weight.block_rows);
    weight.block_cols = std::max<std::uint64_t>(1, weight.block_cols);
  }
  return weights;
}

}  // namespace quantmill
