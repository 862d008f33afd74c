#include "plan/scheme.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/checked.h"
#include "base/error.h"
#include "kernels/mx.h"

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

constexpr std::array<SchemeRow, 10> kSchemes = {{
    {Scheme::kMxfp4, "mxfp4", 1, kMxBlock, Layout::kQuark},
    {Scheme::kMxfp6E2m3, "mxfp6-e2m3", 1, kMxBlock, Layout::kQuark},
    {Scheme::kMxfp6E3m2, "mxfp6-e3m2", 1, kMxBlock, Layout::kQuark},
    {Scheme::kFp8Channel, "fp8-channel", 1, 1, Layout::kCompressedTensors},
    {Scheme::kFp8Block, "fp8-block", kFp8Block, 1, Layout::kFp8},
    {Scheme::kInt8, "int8", 1, 1, Layout::kCompressedTensors},
    {Scheme::kInt4G128, "int4-g128", 1, 128, Layout::kCompressedTensors},
    {Scheme::kInt4G32, "int4-g32", 1, 32, Layout::kCompressedTensors},
    {Scheme::kBf16, "bf16", 1, 1, Layout::kPlain},
    {Scheme::kF32, "f32", 1, 1, Layout::kPlain},
}};

constexpr std::array<std::pair<Layout, std::string_view>, 4> kLayouts = {{
    {Layout::kQuark, "quark"},
    {Layout::kCompressedTensors, "compressed-tensors"},
    {Layout::kFp8, "fp8"},
    {Layout::kPlain, "plain"},
}};

const SchemeRow& row_of(Scheme scheme) {
  const auto* const row = std::ranges::find(kSchemes, scheme, &SchemeRow::scheme);
  check_invariant(row != kSchemes.end(), "a scheme without a row");
  return *row;
}

bool goes_with(Scheme scheme, Layout layout) {
  switch (layout) {
    case Layout::kPlain:
      return is_floating_point(scheme);
    case Layout::kFp8:
      return scheme == Scheme::kFp8Block;
    case Layout::kQuark:
      return is_mx(scheme) || scheme == Scheme::kFp8Channel;
    case Layout::kCompressedTensors:
      return !is_floating_point(scheme) && scheme != Scheme::kMxfp6E2m3 &&
             scheme != Scheme::kMxfp6E3m2;
  }
  return false;
}

std::string base_of(const std::string& name) {
  return name.ends_with(".weight") ? name.substr(0, name.size() - 7) : name;
}

std::vector<StoredPart> mx_parts(
    Scheme scheme, Layout layout, const std::string& name, std::uint64_t rows, std::uint64_t cols) {
  const std::uint64_t bits = scheme == Scheme::kMxfp4 ? 4 : 6;
  const std::string codes =
      layout == Layout::kCompressedTensors ? base_of(name) + ".weight_packed" : name;
  return {{codes, DType::kU8, {rows, cols * bits / 8}},
          {name + "_scale", DType::kU8, {rows, cols / kMxBlock}}};
}

std::vector<StoredPart> fp8_channel_parts(Layout layout,
                                          const std::string& name,
                                          std::uint64_t rows,
                                          std::uint64_t cols) {
  StoredPart scales{name + "_scale", DType::kF32, {rows}};
  if (layout == Layout::kCompressedTensors) {
    scales.shape.push_back(1);
  }
  return {{name, DType::kF8E4m3, {rows, cols}}, scales};
}

std::vector<StoredPart> int4_parts(Scheme scheme,
                                   const std::string& name,
                                   std::uint64_t rows,
                                   std::uint64_t cols) {
  const std::string base = base_of(name);
  return {{base + ".weight_packed", DType::kI32, {rows, cols / kPackedInts}},
          {base + ".weight_scale", DType::kBf16, {rows, cols / columns_together(scheme)}},
          {base + ".weight_shape", DType::kI64, {2}, std::max<std::uint64_t>(1, rows)}};
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
  return scheme == Scheme::kBf16 || scheme == Scheme::kF32;
}

bool is_mx(Scheme scheme) {
  return scheme == Scheme::kMxfp4 || scheme == Scheme::kMxfp6E2m3 || scheme == Scheme::kMxfp6E3m2;
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
              fmt::format("layout \"{}\" takes the schemes {}, and scheme \"{}\" the layouts {}",
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

std::vector<StoredPart> stored_parts(
    Scheme scheme, Layout layout, const std::string& name, std::uint64_t rows, std::uint64_t cols) {
  switch (scheme) {
    case Scheme::kMxfp4:
    case Scheme::kMxfp6E2m3:
    case Scheme::kMxfp6E3m2:
      return mx_parts(scheme, layout, name, rows, cols);
    case Scheme::kFp8Channel:
      return fp8_channel_parts(layout, name, rows, cols);
    case Scheme::kFp8Block:
      return {{name, DType::kF8E4m3, {rows, cols}},
              {name + (layout == Layout::kFp8 ? "_scale_inv" : "_scale"),
               DType::kF32,
               {divide_up(rows, kFp8Block), divide_up(cols, kFp8Block)},
               kFp8Block}};
    case Scheme::kInt8:
      return {{name, DType::kI8, {rows, cols}}, {name + "_scale", DType::kF32, {rows, 1}}};
    case Scheme::kInt4G128:
    case Scheme::kInt4G32:
      return int4_parts(scheme, name, rows, cols);
    case Scheme::kBf16:
    case Scheme::kF32:
      break;
  }
  throw Error(ErrorCode::kInternal, "internal fault: a scheme that stores no codes");
}

}  // namespace quantmill
