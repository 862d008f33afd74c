#include "jobs/inspect_tensor.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "jobs/tensor_blocks.h"
#include "jobs/tensor_values.h"
#include "jobs/value_statistics.h"

namespace quantmill {

namespace {

constexpr std::uint64_t kPreviewRows = 4;
constexpr std::uint64_t kPreviewCols = 8;

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

RowSpan parse_rows(const std::string& text, const TensorValues& source) {
  const std::size_t colon = text.find(':');
  RowSpan rows;
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

std::string stored_as(const Checkpoint& checkpoint, const TensorValues& source) {
  const TensorEntry& entry = source.stored->entry;
  return !source.weight ? std::string(dtype_name(entry.dtype))
                        : fmt::format("{} ({} [{}] and {})",
                                      format_name(source),
                                      dtype_name(entry.dtype),
                                      fmt::join(entry.shape, ", "),
                                      checkpoint.tensors()[*source.weight->scales].entry.name);
}

void write_json(ValueReader& reader,
                const TensorValues& source,
                const RowSpan& rows,
                const ValueStatistics& statistics,
                const ValueHistogram& histogram,
                bool blocks,
                std::ostream& out) {
  const TensorEntry& entry = source.stored->entry;
  const int digits =
      entry.dtype == DType::kF64 || entry.dtype == DType::kI64 || entry.dtype == DType::kU64
          ? 17
          : std::numeric_limits<float>::max_digits10;
  out << fmt::format(
      R"({{"name": {}, "dtype": "{}", "shape": [{}], "stored_dtype": "{}", "stored_shape": [{}],)",
      nlohmann::json(source.name).dump(),
      format_name(source),
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
  out << fmt::format("\n \"nan\": {}, \"infinite\": {}, \"histogram\": [{}],",
                     statistics.num_nan,
                     statistics.num_infinite,
                     fmt::join(histogram.counts, ", "));
  if (blocks) {
    out << "\n \"blocks\": " << blocks_to_json(reader, source, rows) << ',';
  }
  out << fmt::format("\n \"rows\": [{}, {}], \"values\": [", rows.begin, rows.end);
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
                ValueReader& reader,
                const TensorValues& source,
                const RowSpan& rows,
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

// A line for each bin.
std::string describe_histogram(const ValueHistogram& histogram) {
  constexpr double kWidest = 50;
  const std::uint64_t most = *std::ranges::max_element(histogram.counts);
  std::string text = "  histogram of the values\n";
  for (std::size_t bin = 0; most > 0 && bin < histogram.counts.size(); ++bin) {
    const double share = static_cast<double>(histogram.counts[bin]) / static_cast<double>(most);
    std::string bar;
    for (int i = 0; i < static_cast<int>(std::ceil(share * kWidest)); ++i) {
      bar += "█";
    }
    text +=
        fmt::format("  {:>12.4g} … {:>12}  {}\n", histogram.begin(bin), histogram.counts[bin], bar);
  }
  return text;
}

}  // namespace

void show_tensor(const Checkpoint& checkpoint, const TensorRequest& request, std::ostream& out) {
  const TensorValues source = find_values(checkpoint, request.name);
  const RowSpan all{0, source.rows};
  const RowSpan rows = request.rows      ? parse_rows(*request.rows, source)
                       : request.as_json ? all
                                         : RowSpan{0, std::min(source.rows, kPreviewRows)};
  ValueReader reader(checkpoint, source);
  ValueStatistics statistics;
  for_each_piece(reader, source, all, [&](std::uint64_t, std::span<const double> values) {
    statistics.add(values);
  });
  ValueHistogram histogram(statistics);
  if (request.as_json || request.histogram) {
    for_each_piece(reader, source, all, [&](std::uint64_t, std::span<const double> values) {
      histogram.add(values);
    });
  }
  if (request.blocks && !source.weight) {
    throw Error(ErrorCode::kUsage,
                fmt::format("--blocks: '{}' is {} and has no blocks with scales",
                            source.name,
                            format_name(source)));
  }
  if (request.as_json) {
    write_json(reader, source, rows, statistics, histogram, request.blocks, out);
  } else {
    const std::uint64_t cols = request.rows ? source.cols : std::min(source.cols, kPreviewCols);
    write_text(checkpoint, reader, source, rows, cols, statistics, out);
    if (request.histogram) {
      out << describe_histogram(histogram);
    }
    if (request.blocks) {
      out << describe_blocks(reader, source, rows);
    }
  }
}

}  // namespace quantmill
