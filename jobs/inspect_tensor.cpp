#include "jobs/inspect_tensor.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <ostream>
#include <span>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/checked.h"
#include "base/error.h"
#include "device/context.h"
#include "jobs/value_statistics.h"
#include "kernels/convert.h"
#include "kernels/mx.h"

namespace quantmill {

namespace {

constexpr std::uint64_t kPieceElements = std::uint64_t{1} << 20;
constexpr std::uint64_t kPreviewRows = 4;
constexpr std::uint64_t kPreviewCols = 8;

// Where a tensor's values come from, as a matrix.
struct Source {
  const SourceTensor* stored = nullptr;
  const SourceTensor* scale = nullptr;  // of an MXFP4 weight, else null
  std::vector<std::uint64_t> shape;     // of the values
  std::uint64_t rows = 0;
  std::uint64_t cols = 0;
};

struct RowRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

[[noreturn]] void fail_not_found(const Checkpoint& checkpoint, const std::string& name) {
  std::string similar;
  int count = 0;
  for (const SourceTensor& tensor : checkpoint.tensors()) {
    if (!name.empty() && tensor.entry.name.find(name) != std::string::npos && ++count <= 5) {
      similar += (count == 1 ? "" : ", ") + tensor.entry.name;
    }
  }
  throw Error(ErrorCode::kInput,
              fmt::format("{} has no tensor '{}'{}",
                          checkpoint.folder().string(),
                          name,
                          count == 0 ? std::string("; run without --tensor to list them")
                                     : fmt::format("; names with this text in them: {}{}",
                                                   similar,
                                                   count > 5 ? " ..." : "")));
}

// The scales that make `tensor` an MXFP4 weight as Quark stores it, or null.
const SourceTensor* find_mx_scale(const Checkpoint& checkpoint, const SourceTensor& tensor) {
  const std::optional<std::size_t> found = checkpoint.find(tensor.entry.name + "_scale");
  if (!found || tensor.entry.dtype != DType::kU8 || tensor.entry.shape.size() < 2) {
    return nullptr;
  }
  const SourceTensor& scale = checkpoint.tensors()[*found];
  std::vector<std::uint64_t> wanted = tensor.entry.shape;
  if (scale.entry.dtype != DType::kU8 || wanted.back() % (kMxBlock / 2) != 0) {
    return nullptr;
  }
  wanted.back() /= kMxBlock / 2;
  return scale.entry.shape == wanted ? &scale : nullptr;
}

Source find_source(const Checkpoint& checkpoint, const std::string& name) {
  const std::optional<std::size_t> found = checkpoint.find(name);
  if (!found) {
    fail_not_found(checkpoint, name);
  }
  Source source;
  source.stored = &checkpoint.tensors()[*found];
  source.scale = find_mx_scale(checkpoint, *source.stored);
  source.shape = source.stored->entry.shape;
  if (source.scale != nullptr) {
    source.shape.back() *= 2;
  }
  const std::uint64_t elements =
      source.stored->entry.num_elements() * (source.scale != nullptr ? 2 : 1);
  source.cols = source.shape.empty() ? 1 : source.shape.back();
  source.rows = source.cols == 0 ? 0 : elements / source.cols;
  return source;
}

// Numbers of any width as double; 64-bit integers beyond 2^53 are rounded.
template <typename T>
void load_numbers(std::span<const std::byte> bytes, std::vector<double>& values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<double>(load_little_endian<T>(bytes.subspan(i * sizeof(T))));
  }
}

void load_plain(const SourceTensor& tensor,
                std::span<const std::byte> bytes,
                std::vector<double>& values) {
  switch (tensor.entry.dtype) {
    case DType::kBool:
    case DType::kU8:
      return load_numbers<std::uint8_t>(bytes, values);
    case DType::kI8:
      return load_numbers<std::int8_t>(bytes, values);
    case DType::kI16:
      return load_numbers<std::int16_t>(bytes, values);
    case DType::kU16:
      return load_numbers<std::uint16_t>(bytes, values);
    case DType::kI32:
      return load_numbers<std::int32_t>(bytes, values);
    case DType::kU32:
      return load_numbers<std::uint32_t>(bytes, values);
    case DType::kI64:
      return load_numbers<std::int64_t>(bytes, values);
    case DType::kU64:
      return load_numbers<std::uint64_t>(bytes, values);
    case DType::kF64:
      return load_numbers<double>(bytes, values);
    case DType::kF16:
    case DType::kBf16:
    case DType::kF32:
    case DType::kF8E4m3:
    case DType::kF8E5m2:
    case DType::kF8E8m0:
    case DType::kF6E2m3:
    case DType::kF6E3m2:
    case DType::kF4:
    case DType::kC64:
    case DType::kF8E4m3fnuz:
    case DType::kF8E5m2fnuz:
      break;
  }
  throw Error(ErrorCode::kInput,
              fmt::format("values of tensor '{}' are of dtype {}, which inspect does not show",
                          tensor.entry.name,
                          dtype_name(tensor.entry.dtype)));
}

// Reads and decodes rows of a tensor, one piece at a time.
class RowReader {
 public:
  RowReader(const Checkpoint& checkpoint, const Source& source)
      : checkpoint_(checkpoint), source_(source), context_(make_context("auto")) {}

  // rows x cols values, valid until the next call.
  std::span<const double> read(const RowRange& rows) {
    const std::uint64_t count = rows.end - rows.begin;
    values_.resize(narrow<std::size_t>(count * source_.cols));
    if (values_.empty()) {
      return values_;
    }
    read_stored(*source_.stored, rows, stored_);
    const DType dtype = source_.stored->entry.dtype;
    if (source_.scale == nullptr && !is_convertible(dtype)) {
      load_plain(*source_.stored, stored_, values_);
      return values_;
    }
    floats_.resize(values_.size());
    const FloatMatrix matrix{
        floats_.data(), narrow<std::size_t>(count), narrow<std::size_t>(source_.cols)};
    if (source_.scale == nullptr) {
      static_cast<void>(decode_to_float(context_, dtype, stored_, matrix));
    } else {
      read_stored(*source_.scale, rows, scales_);
      mx_dequantize(context_, ElementFormat::kE2m1, as_codes(stored_), as_codes(scales_), matrix);
    }
    std::copy(floats_.begin(), floats_.end(), values_.begin());
    return values_;
  }

 private:
  static std::span<const std::uint8_t> as_codes(const std::vector<std::byte>& bytes) {
    return {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()};
  }

  void read_stored(const SourceTensor& tensor,
                   const RowRange& rows,
                   std::vector<std::byte>& bytes) const {
    const std::uint64_t row_bytes = tensor.entry.size_bytes() / source_.rows;
    bytes.resize(narrow<std::size_t>((rows.end - rows.begin) * row_bytes));
    checkpoint_.read(tensor, rows.begin * row_bytes, bytes);
  }

  const Checkpoint& checkpoint_;
  const Source& source_;
  Context context_;
  std::vector<std::byte> stored_;
  std::vector<std::byte> scales_;
  std::vector<float> floats_;
  std::vector<double> values_;
};

// Calls body(first row, values) for pieces of the rows, in order.
template <typename Body>
void for_each_piece(RowReader& reader, const Source& source, const RowRange& rows, Body&& body) {
  const std::uint64_t step =
      std::max<std::uint64_t>(1, kPieceElements / std::max<std::uint64_t>(source.cols, 1));
  for (std::uint64_t row = rows.begin; row < rows.end; row += step) {
    body(row, reader.read({row, std::min(rows.end, row + step)}));
  }
}

std::uint64_t parse_row(std::string_view text, std::uint64_t if_empty, const std::string& option) {
  if (text.empty()) {
    return if_empty;
  }
  std::uint64_t row = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), row);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw Error(ErrorCode::kUsage,
                fmt::format("--rows {}: give A:B, the first row and one past the last", option));
  }
  return row;
}

RowRange parse_rows(const std::string& text, const Source& source) {
  const std::size_t colon = text.find(':');
  RowRange rows;
  if (colon == std::string::npos) {
    rows.begin = parse_row(text, source.rows, text);
    rows.end = rows.begin < source.rows ? rows.begin + 1 : rows.begin;
  } else {
    rows.begin = parse_row(std::string_view(text).substr(0, colon), 0, text);
    rows.end = parse_row(std::string_view(text).substr(colon + 1), source.rows, text);
  }
  if (rows.begin >= rows.end || rows.end > source.rows) {
    throw Error(ErrorCode::kUsage,
                fmt::format("--rows {}: tensor '{}' has rows 0 to {}",
                            text,
                            source.stored->entry.name,
                            source.rows == 0 ? 0 : source.rows - 1));
  }
  return rows;
}

// A number that any reader of JSON reads back as the same value; JSON has no NaN and infinity, so
// they are text.
std::string json_number(double value, int digits) {
  if (std::isnan(value)) {
    return "\"NaN\"";
  }
  if (std::isinf(value)) {
    return value > 0 ? "\"Infinity\"" : "\"-Infinity\"";
  }
  if (value == 0 && std::signbit(value)) {
    return "-0.0";  // "-0" would be read as a whole number, which has no sign
  }
  return fmt::format("{:.{}g}", value, digits);
}

std::string stored_as(const Source& source) {
  const TensorEntry& entry = source.stored->entry;
  return source.scale == nullptr ? std::string(dtype_name(entry.dtype))
                                 : fmt::format("MXFP4 ({} [{}] and {})",
                                               dtype_name(entry.dtype),
                                               fmt::join(entry.shape, ", "),
                                               source.scale->entry.name);
}

void write_json(RowReader& reader,
                const Source& source,
                const RowRange& rows,
                const ValueStatistics& statistics,
                std::ostream& out) {
  const TensorEntry& entry = source.stored->entry;
  const int digits =
      entry.dtype == DType::kF64 || entry.dtype == DType::kI64 || entry.dtype == DType::kU64
          ? 17
          : std::numeric_limits<float>::max_digits10;
  out << fmt::format(
      R"({{"name": {}, "dtype": "{}", "shape": [{}], "stored_dtype": "{}", "stored_shape": [{}],)",
      nlohmann::json(entry.name).dump(),
      source.scale == nullptr ? dtype_name(entry.dtype) : "MXFP4",
      fmt::join(source.shape, ", "),
      dtype_name(entry.dtype),
      fmt::join(entry.shape, ", "));
  if (statistics.num_finite > 0) {
    out << fmt::format("\n \"min\": {}, \"max\": {}, \"mean\": {}, \"std\": {},",
                       json_number(statistics.min, 17),
                       json_number(statistics.max, 17),
                       json_number(statistics.mean, 17),
                       json_number(statistics.deviation(), 17));
  }
  out << fmt::format("\n \"nan\": {}, \"infinite\": {}, \"rows\": [{}, {}], \"values\": [",
                     statistics.num_nan,
                     statistics.num_infinite,
                     rows.begin,
                     rows.end);
  for_each_piece(reader, source, rows, [&](std::uint64_t first, std::span<const double> values) {
    std::string text;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const bool is_row_start = i % source.cols == 0;
      text += is_row_start ? (i == 0 && first == rows.begin ? "\n  [" : ",\n  [") : ", ";
      text += json_number(values[i], digits);
      text += (i + 1) % source.cols == 0 ? "]" : "";
    }
    out << text;
  });
  out << "]}\n";
}

void write_text(RowReader& reader,
                const Source& source,
                const RowRange& rows,
                std::uint64_t cols,
                const ValueStatistics& statistics,
                std::ostream& out) {
  out << fmt::format("{}\n  shape  [{}]\n  dtype  {}\n",
                     source.stored->entry.name,
                     fmt::join(source.shape, ", "),
                     stored_as(source));
  if (statistics.num_finite > 0) {
    out << fmt::format("  min {:.9g}  max {:.9g}  mean {:.6g}  std {:.6g}\n",
                       statistics.min,
                       statistics.max,
                       statistics.mean,
                       statistics.deviation());
  }
  if (statistics.num_nan + statistics.num_infinite > 0) {
    out << fmt::format("  NOT FINITE: {} NaN, {} infinite; the statistics are of the others\n",
                       statistics.num_nan,
                       statistics.num_infinite);
  }
  for_each_piece(reader, source, rows, [&](std::uint64_t first, std::span<const double> values) {
    std::string text;
    for (std::size_t begin = 0; begin < values.size(); begin += source.cols) {
      text += fmt::format("  row {}:", first + begin / source.cols);
      for (const double value : values.subspan(begin, cols)) {
        text += fmt::format(" {:.9g}", value);
      }
      text += cols < source.cols ? " ...\n" : "\n";
    }
    out << text;
  });
  if (cols < source.cols) {
    out << fmt::format("  (the start of {} of {} rows; --rows A:B shows rows whole)\n",
                       rows.end - rows.begin,
                       source.rows);
  }
}

}  // namespace

void show_tensor(const Checkpoint& checkpoint, const TensorRequest& request, std::ostream& out) {
  const Source source = find_source(checkpoint, request.name);
  const RowRange all{0, source.rows};
  const RowRange rows = request.rows      ? parse_rows(*request.rows, source)
                        : request.as_json ? all
                                          : RowRange{0, std::min(source.rows, kPreviewRows)};
  RowReader reader(checkpoint, source);
  ValueStatistics statistics;
  for_each_piece(reader, source, all, [&](std::uint64_t, std::span<const double> values) {
    statistics.add(values);
  });
  if (request.as_json) {
    write_json(reader, source, rows, statistics, out);
  } else {
    const std::uint64_t cols = request.rows ? source.cols : std::min(source.cols, kPreviewCols);
    write_text(reader, source, rows, cols, statistics, out);
  }
}

}  // namespace quantmill
