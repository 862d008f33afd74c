#include "plan/scheme.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/checked.h"
#include "base/error.h"
#include "kernels/mx.h"
#include "kernels/nvfp4.h"

namespace quantmill {

namespace {

constexpr std::uint64_t kFp8Block = 128;
constexpr std::uint64_t kPackedInts = 8;  // of 4 bits in an I32

struct SchemeRow {
  Scheme scheme;
  std::string_view name;
  std::uint64_t rows_together;
  std::uint64_t columns_together;
  Layout default_layout;
};

constexpr std::array<SchemeRow, 19> kSchemes = {{
    {Scheme::kMxfp4, "mxfp4", 1, kMxBlock, Layout::kQuark},
    {Scheme::kMxfp6E2m3, "mxfp6-e2m3", 1, kMxBlock, Layout::kQuark},
    {Scheme::kMxfp6E3m2, "mxfp6-e3m2", 1, kMxBlock, Layout::kQuark},
    {Scheme::kMxfp8, "mxfp8", 1, kMxBlock, Layout::kCompressedTensors},
    {Scheme::kNvfp4, "nvfp4", 1, kNvfp4Block, Layout::kCompressedTensors},
    {Scheme::kFp8Tensor, "fp8-tensor", 1, 1, Layout::kCompressedTensors},
    {Scheme::kFp8Channel, "fp8-channel", 1, 1, Layout::kCompressedTensors},
    {Scheme::kFp8Block, "fp8-block", kFp8Block, 1, Layout::kFp8},
    {Scheme::kInt8, "int8", 1, 1, Layout::kCompressedTensors},
    {Scheme::kW8a16, "w8a16", 1, kPackedInts / 2, Layout::kCompressedTensors},
    {Scheme::kW8a16G128, "w8a16-g128", 1, 128, Layout::kCompressedTensors},
    // Some layouts pack the codes or the zero points of eight rows into a word.
    {Scheme::kInt4G128, "int4-g128", kPackedInts, 128, Layout::kCompressedTensors},
    {Scheme::kInt4G32, "int4-g32", kPackedInts, 32, Layout::kCompressedTensors},
    {Scheme::kInt4AsymG128, "int4-asym-g128", kPackedInts, 128, Layout::kCompressedTensors},
    {Scheme::kInt4AsymG32, "int4-asym-g32", kPackedInts, 32, Layout::kCompressedTensors},
    {Scheme::kSource, "source", 1, 1, Layout::kQwix},
    {Scheme::kBf16, "bf16", 1, 1, Layout::kPlain},
    {Scheme::kF16, "f16", 1, 1, Layout::kPlain},
    {Scheme::kF32, "f32", 1, 1, Layout::kPlain},
}};

constexpr std::array<std::pair<Layout, std::string_view>, 6> kLayouts = {{
    {Layout::kQuark, "quark"},
    {Layout::kCompressedTensors, "compressed-tensors"},
    {Layout::kFp8, "fp8"},
    {Layout::kGptOss, "gpt-oss"},
    {Layout::kPlain, "plain"},
    {Layout::kQwix, "qwix"},
}};

const SchemeRow& row_of(Scheme scheme) {
  const auto* const row = std::ranges::find(kSchemes, scheme, &SchemeRow::scheme);
  check_invariant(row != kSchemes.end(), "a scheme without a row");
  return *row;
}

bool is_fp8(Scheme scheme) {
  return scheme == Scheme::kFp8Tensor || scheme == Scheme::kFp8Channel ||
         scheme == Scheme::kFp8Block;
}

bool is_int4(Scheme scheme) {
  return scheme == Scheme::kInt4G128 || scheme == Scheme::kInt4G32 || is_asymmetric(scheme);
}

bool goes_with(Scheme scheme, Layout layout) {
  switch (layout) {
    case Layout::kPlain:
      return is_floating_point(scheme);
    case Layout::kFp8:
      return scheme == Scheme::kFp8Block;
    case Layout::kGptOss:
      return scheme == Scheme::kMxfp4;
    case Layout::kQuark:
      return scheme == Scheme::kMxfp4 || scheme == Scheme::kMxfp6E2m3 ||
             scheme == Scheme::kMxfp6E3m2 || is_fp8(scheme) || is_int4(scheme);
    case Layout::kCompressedTensors:
      return !is_floating_point(scheme) && scheme != Scheme::kSource &&
             scheme != Scheme::kMxfp6E2m3 && scheme != Scheme::kMxfp6E3m2;
    case Layout::kQwix:
      return true;
  }
  return false;
}

std::string base_of(const std::string& name) {
  return name.ends_with(".weight") ? name.substr(0, name.size() - 7) : name;
}

std::vector<StoredPart> mx_parts(
    Scheme scheme, Layout layout, const std::string& name, std::uint64_t rows, std::uint64_t cols) {
  const StoredPart scales{name + "_scale", DType::kU8, {rows, cols / kMxBlock}, PartKind::kScales};
  if (scheme == Scheme::kMxfp8) {
    return {{name, DType::kF8E4m3, {rows, cols}}, scales};
  }
  const std::uint64_t bits = scheme == Scheme::kMxfp4 ? 4 : 6;
  const bool is_packed_name = layout == Layout::kCompressedTensors;
  return {{is_packed_name ? base_of(name) + ".weight_packed" : name,
           DType::kU8,
           {rows, cols * bits / 8}},
          scales};
}

// One value for a whole weight of so many rows.
StoredPart whole_tensor(std::string name,
                        std::vector<std::uint64_t> shape,
                        PartKind kind,
                        std::uint64_t rows) {
  return {std::move(name), DType::kF32, std::move(shape), kind, std::max<std::uint64_t>(1, rows)};
}

std::vector<StoredPart> nvfp4_parts(const std::string& name,
                                    std::uint64_t rows,
                                    std::uint64_t cols,
                                    bool has_input_scale) {
  std::vector<StoredPart> parts = {
      {name + "_packed", DType::kU8, {rows, cols / 2}},
      {name + "_scale", DType::kF8E4m3, {rows, cols / kNvfp4Block}, PartKind::kScales},
      whole_tensor(name + "_global_scale", {1}, PartKind::kTensorScale, rows)};
  if (has_input_scale) {
    parts.push_back(
        whole_tensor(base_of(name) + ".input_global_scale", {1}, PartKind::kInputScale, rows));
  }
  return parts;
}

std::vector<StoredPart> fp8_parts(Scheme scheme,
                                  Layout layout,
                                  const std::string& name,
                                  std::uint64_t rows,
                                  std::uint64_t cols,
                                  bool has_input_scale) {
  const StoredPart codes{name, DType::kF8E4m3, {rows, cols}};
  const bool is_scalar = layout == Layout::kQuark;  // or a vector of one
  const std::vector<std::uint64_t> one =
      is_scalar ? std::vector<std::uint64_t>{} : std::vector<std::uint64_t>{1};
  if (scheme == Scheme::kFp8Tensor) {
    std::vector<StoredPart> parts = {codes,
                                     whole_tensor(name + "_scale", one, PartKind::kScales, rows)};
    if (has_input_scale) {
      parts.push_back(
          whole_tensor(base_of(name) + ".input_scale", one, PartKind::kInputScale, rows));
    }
    return parts;
  }
  if (scheme == Scheme::kFp8Block) {
    return {codes,
            {name + (layout == Layout::kFp8 ? "_scale_inv" : "_scale"),
             DType::kF32,
             {divide_up(rows, kFp8Block), divide_up(cols, kFp8Block)},
             PartKind::kScales,
             kFp8Block}};
  }
  StoredPart scales{name + "_scale", DType::kF32, {rows}, PartKind::kScales};
  if (layout == Layout::kCompressedTensors) {
    scales.shape.push_back(1);
  }
  return {codes, scales};
}

// Integers in words.
std::vector<StoredPart> packed_parts(Scheme scheme,
                                     const std::string& name,
                                     std::uint64_t rows,
                                     std::uint64_t cols) {
  const std::uint64_t codes_of_word = is_int4(scheme) ? kPackedInts : kPackedInts / 2;
  const std::uint64_t groups = scheme == Scheme::kW8a16 ? 1 : cols / columns_together(scheme);
  std::vector<StoredPart> parts = {
      {name + "_packed", DType::kI32, {rows, cols / codes_of_word}},
      {name + "_scale", DType::kBf16, {rows, groups}, PartKind::kScales}};
  if (is_asymmetric(scheme)) {
    parts.push_back({name + "_zero_point",
                     DType::kI32,
                     {divide_up(rows, kPackedInts), groups},
                     PartKind::kZeroPoints,
                     kPackedInts});
  }
  parts.push_back(
      {name + "_shape", DType::kI64, {2}, PartKind::kShape, std::max<std::uint64_t>(1, rows)});
  return parts;
}

// Quark stores [in, out], eight outputs in a word, and zero points of symmetric codes too.
std::vector<StoredPart> quark_int4_parts(Scheme scheme,
                                         const std::string& name,
                                         std::uint64_t rows,
                                         std::uint64_t cols) {
  const std::uint64_t words = divide_up(rows, kPackedInts);
  const std::uint64_t groups = cols / columns_together(scheme);
  return {{name, DType::kI32, {cols, words}, PartKind::kCodes, kPackedInts, true},
          {name + "_scale", DType::kBf16, {groups, rows}, PartKind::kScales, 1, true},
          {name + "_zero_point",
           DType::kI32,
           {groups, words},
           PartKind::kZeroPoints,
           kPackedInts,
           true}};
}

}  // namespace

std::string_view scheme_name(Scheme scheme) {
  return row_of(scheme).name;
}

std::string_view layout_name(Layout layout) {
  for (const auto& [candidate, name] : kLayouts) {
    if (candidate == layout) {
      return name;
    }
  }
  return "";
}

Scheme scheme_from_name(std::string_view name) {
  std::vector<std::string_view> known;
  for (const SchemeRow& row : kSchemes) {
    if (row.name == name) {
      return row.scheme;
    }
    known.push_back(row.name);
  }
  throw Error(
      ErrorCode::kUsage,
      fmt::format("scheme \"{}\" is not known; known are {}", name, fmt::join(known, ", ")));
}

Layout layout_from_name(std::string_view name) {
  std::vector<std::string_view> known;
  for (const auto& [layout, candidate] : kLayouts) {
    if (candidate == name) {
      return layout;
    }
    known.push_back(candidate);
  }
  throw Error(
      ErrorCode::kUsage,
      fmt::format("layout \"{}\" is not known; known are {}", name, fmt::join(known, ", ")));
}

bool is_floating_point(Scheme scheme) {
  return scheme == Scheme::kBf16 || scheme == Scheme::kF16 || scheme == Scheme::kF32;
}

bool is_mx(Scheme scheme) {
  return scheme == Scheme::kMxfp4 || scheme == Scheme::kMxfp6E2m3 || scheme == Scheme::kMxfp6E3m2 ||
         scheme == Scheme::kMxfp8;
}

ElementFormat mx_element(Scheme scheme) {
  return scheme == Scheme::kMxfp6E2m3   ? ElementFormat::kE2m3
         : scheme == Scheme::kMxfp6E3m2 ? ElementFormat::kE3m2
         : scheme == Scheme::kMxfp8     ? ElementFormat::kE4m3
                                        : ElementFormat::kE2m1;
}

bool takes_feedback(Scheme scheme) {
  return !is_floating_point(scheme) && scheme != Scheme::kSource && scheme != Scheme::kFp8Tensor &&
         scheme != Scheme::kFp8Channel && scheme != Scheme::kFp8Block;
}

bool is_asymmetric(Scheme scheme) {
  return scheme == Scheme::kInt4AsymG128 || scheme == Scheme::kInt4AsymG32;
}

bool has_tensor_scale(Scheme scheme) {
  return scheme == Scheme::kNvfp4 || scheme == Scheme::kFp8Tensor;
}

bool may_have_input_scale(Scheme scheme) {
  return scheme == Scheme::kNvfp4 || scheme == Scheme::kFp8Tensor;
}

Layout default_layout(Scheme scheme) {
  return row_of(scheme).default_layout;
}

void check_layout(Scheme scheme, Layout layout) {
  if (goes_with(scheme, layout)) {
    return;
  }
  std::vector<std::string_view> schemes;
  std::vector<std::string_view> layouts;
  for (const SchemeRow& row : kSchemes) {
    if (goes_with(row.scheme, layout)) {
      schemes.push_back(row.name);
    }
  }
  for (const auto& [candidate, name] : kLayouts) {
    if (goes_with(scheme, candidate)) {
      layouts.push_back(name);
    }
  }
  throw Error(ErrorCode::kUsage,
              fmt::format(R"(layout "{}" takes the schemes {}, and scheme "{}" the layouts {})",
                          layout_name(layout),
                          fmt::join(schemes, ", "),
                          scheme_name(scheme),
                          fmt::join(layouts, ", ")));
}

std::uint64_t rows_together(Scheme scheme) {
  return row_of(scheme).rows_together;
}

std::uint64_t columns_together(Scheme scheme) {
  return row_of(scheme).columns_together;
}

std::vector<StoredPart> stored_parts(Scheme scheme,
                                     Layout layout,
                                     const std::string& name,
                                     std::uint64_t rows,
                                     std::uint64_t cols,
                                     bool has_input_scale) {
  layout = layout == Layout::kQwix ? default_layout(scheme) : layout;
  switch (scheme) {
    case Scheme::kMxfp4:
    case Scheme::kMxfp6E2m3:
    case Scheme::kMxfp6E3m2:
    case Scheme::kMxfp8:
      return mx_parts(scheme, layout, name, rows, cols);
    case Scheme::kNvfp4:
      return nvfp4_parts(base_of(name) + ".weight", rows, cols, has_input_scale);
    case Scheme::kFp8Tensor:
    case Scheme::kFp8Channel:
    case Scheme::kFp8Block:
      return fp8_parts(scheme, layout, name, rows, cols, has_input_scale);
    case Scheme::kInt8:
      return {{name, DType::kI8, {rows, cols}},
              {name + "_scale", DType::kF32, {rows, 1}, PartKind::kScales}};
    case Scheme::kW8a16:
    case Scheme::kW8a16G128:
    case Scheme::kInt4G128:
    case Scheme::kInt4G32:
    case Scheme::kInt4AsymG128:
    case Scheme::kInt4AsymG32:
      return layout == Layout::kQuark ? quark_int4_parts(scheme, name, rows, cols)
                                      : packed_parts(scheme, base_of(name) + ".weight", rows, cols);
    case Scheme::kSource:
    case Scheme::kBf16:
    case Scheme::kF16:
    case Scheme::kF32:
      break;
  }
  throw Error(ErrorCode::kInternal, "internal fault: a scheme that stores no codes");
}

std::vector<StoredPart> gpt_oss_parts(const std::string& name,
                                      std::uint64_t experts,
                                      std::uint64_t rows,
                                      std::uint64_t cols) {
  const std::uint64_t blocks_of_row = cols / kMxBlock;
  return {{name + "_blocks", DType::kU8, {experts, rows, blocks_of_row, kMxBlock / 2}},
          {name + "_scales", DType::kU8, {experts, rows, blocks_of_row}, PartKind::kScales}};
}

}  // namespace quantmill
