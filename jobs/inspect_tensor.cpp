#include "jobs/inspect_tensor.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/checked.h"
#include "base/error.h"
#include "device/context.h"
#include "jobs/stored_numbers.h"
#include "jobs/value_statistics.h"
#include "kernels/convert.h"
#include "pipeline/weight_reader.h"
#include "plan/architecture.h"
#include "plan/source_weights.h"

namespace quantmill {

namespace {

constexpr std::uint64_t kPieceElements = std::uint64_t{1} << 20;
constexpr std::uint64_t kPreviewRows = 4;
constexpr std::uint64_t kPreviewCols = 8;

// Where a tensor's values come from, as a matrix.
struct Source {
  std::string name;
  const SourceTensor* stored = nullptr;  // of a weight in codes: these
  std::optional<SourceWeight> weight;    // if it is stored as codes and scales
  std::vector<std::uint64_t> shape;      // of the values
  std::uint64_t rows = 0;
  std::uint64_t cols = 0;
};

struct RowsShown {
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

// The weight of this name, or whose codes have it, if it is stored as codes. A folder that does not
// make sense as a model is shown tensor by tensor.
std::optional<SourceWeight> find_coded_weight(const Checkpoint& checkpoint,
                                              const std::string& name) {
  try {
    std::error_code ignored;
    const bool has_config = std::filesystem::exists(checkpoint.folder() / "config.json", ignored);
    for (SourceWeight& weight :
         find_weights(checkpoint.tensors(), has_config ? checkpoint.config_text() : "{}")) {
      const std::string& codes = checkpoint.tensors()[weight.codes].entry.name;
      if (!weight.is_plain() && (weight.entry.name == name || codes == name)) {
        if (weight.is_transposed_linear()) {  // shown as its codes lie
          std::swap(weight.entry.shape.back(), *(weight.entry.shape.end() - 2));
          weight.turned = false;
        }
        return std::move(weight);
      }
    }
  } catch (const Error&) {
    return std::nullopt;
  }
  return std::nullopt;
}

Source find_source(const Checkpoint& checkpoint, const std::string& name) {
  Source source;
  source.name = name;
  source.weight = find_coded_weight(checkpoint, name);
  const std::optional<std::size_t> found =
      source.weight ? std::optional(source.weight->codes) : checkpoint.find(name);
  if (!found) {
    fail_not_found(checkpoint, name);
  }
  source.stored = &checkpoint.tensors()[*found];
  const TensorEntry& values = source.weight ? source.weight->entry : source.stored->entry;
  source.shape = values.shape;
  source.cols = source.shape.empty() ? 1 : source.shape.back();
  source.rows = source.cols == 0 ? 0 : values.num_elements() / source.cols;
  return source;
}

// Reads and decodes rows of a tensor, one piece at a time.
class RowReader {
 public:
  RowReader(const Checkpoint& checkpoint, const Source& source)
      : checkpoint_(checkpoint),
        source_(source),
        context_(make_context("auto")),
        reader_(context_, checkpoint, model_) {
    if (source.weight) {
      // One matrix, whatever the dimensions before its columns.
      model_.weights = {*source.weight};
      matrix_.role = TensorRole::kLinear;
      matrix_.shape = {source.rows, source.cols};
    }
  }

  // rows x cols values, valid until the next call.
  std::span<const double> read(const RowsShown& rows) {
    const std::uint64_t count = rows.end - rows.begin;
    values_.resize(narrow<std::size_t>(count * source_.cols));
    if (values_.empty()) {
      return values_;
    }
    const DType dtype = source_.stored->entry.dtype;
    if (!source_.weight) {
      read_stored(*source_.stored, rows, stored_);
      if (!is_convertible(dtype)) {
        load_numbers(source_.stored->entry, stored_, values_);
        return values_;
      }
    }
    floats_.resize(values_.size());
    const FloatMatrix matrix{
        floats_.data(), narrow<std::size_t>(count), narrow<std::size_t>(source_.cols)};
    if (source_.weight) {
      reader_.load(matrix_, all_rows(matrix_), rows.begin, count);
      static_cast<void>(reader_.decode(0, matrix));
    } else {
      static_cast<void>(decode_to_float(context_, dtype, stored_, matrix));
    }
    std::copy(floats_.begin(), floats_.end(), values_.begin());
    return values_;
  }

 private:
  void read_stored(const SourceTensor& tensor,
                   const RowsShown& rows,
                   std::vector<std::byte>& bytes) const {
    const std::uint64_t row_bytes = tensor.entry.size_bytes() / source_.rows;
    bytes.resize(narrow<std::size_t>((rows.end - rows.begin) * row_bytes));
    checkpoint_.read(tensor, rows.begin * row_bytes, bytes);
  }

  const Checkpoint& checkpoint_;
  const Source& source_;
  Context context_;
  ResolvedArchitecture model_;
  ModelTensor matrix_;
  WeightReader reader_;
  std::vector<std::byte> stored_;
  std::vector<float> floats_;
  std::vector<double> values_;
};

// Calls body(first row, values) for pieces of the rows, in order.
template <typename Body>
void for_each_piece(RowReader& reader, const Source& source, const RowsShown& rows, Body&& body) {
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

RowsShown parse_rows(const std::string& text, const Source& source) {
  const std::size_t colon = text.find(':');
  RowsShown rows;
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
                            source.name,
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

std::string format_of(const SourceWeight& weight) {
  switch (weight.encoding) {
    case Encoding::kPlain:
      break;
    case Encoding::kFp8:
      return "FP8";
    case Encoding::kMx:
      return weight.element == ElementFormat::kE2m1   ? "MXFP4"
             : weight.element == ElementFormat::kE4m3 ? "MXFP8"
                                                      : "MXFP6";
    case Encoding::kNvfp4:
      return "NVFP4";
    case Encoding::kInt8:
      return "INT8";
    case Encoding::kPackedInt:
      return fmt::format("INT{}", weight.packing.bits);
  }
  return std::string(dtype_name(weight.entry.dtype));
}

std::string stored_as(const Checkpoint& checkpoint, const Source& source) {
  const TensorEntry& entry = source.stored->entry;
  return !source.weight ? std::string(dtype_name(entry.dtype))
                        : fmt::format("{} ({} [{}] and {})",
                                      format_of(*source.weight),
                                      dtype_name(entry.dtype),
                                      fmt::join(entry.shape, ", "),
                                      checkpoint.tensors()[*source.weight->scales].entry.name);
}

void write_json(RowReader& reader,
                const Source& source,
                const RowsShown& rows,
                const ValueStatistics& statistics,
                std::ostream& out) {
  const TensorEntry& entry = source.stored->entry;
  const int digits =
      entry.dtype == DType::kF64 || entry.dtype == DType::kI64 || entry.dtype == DType::kU64
          ? 17
          : std::numeric_limits<float>::max_digits10;
  out << fmt::format(
      R"({{"name": {}, "dtype": "{}", "shape": [{}], "stored_dtype": "{}", "stored_shape": [{}],)",
      nlohmann::json(source.name).dump(),
      source.weight ? format_of(*source.weight) : std::string(dtype_name(entry.dtype)),
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

void write_text(const Checkpoint& checkpoint,
                RowReader& reader,
                const Source& source,
                const RowsShown& rows,
                std::uint64_t cols,
                const ValueStatistics& statistics,
                std::ostream& out) {
  out << fmt::format("{}\n  shape  [{}]\n  dtype  {}\n",
                     source.name,
                     fmt::join(source.shape, ", "),
                     stored_as(checkpoint, source));
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
  const RowsShown all{0, source.rows};
  const RowsShown rows = request.rows      ? parse_rows(*request.rows, source)
                         : request.as_json ? all
                                           : RowsShown{0, std::min(source.rows, kPreviewRows)};
  RowReader reader(checkpoint, source);
  ValueStatistics statistics;
  for_each_piece(reader, source, all, [&](std::uint64_t, std::span<const double> values) {
    statistics.add(values);
  });
  if (request.as_json) {
    write_json(reader, source, rows, statistics, out);
  } else {
    const std::uint64_t cols = request.rows ? source.cols : std::min(source.cols, kPreviewCols);
    write_text(checkpoint, reader, source, rows, cols, statistics, out);
  }
}

}  // namespace quantmill
