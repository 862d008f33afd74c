#include "base/byte_size.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "base/checked.h"
#include "base/error.h"

namespace quantmill {

namespace {

constexpr std::string_view kUnits = "KMGT";

// 1 for "" and "B", 1024 for "K", "KB" and "KiB" …; nothing for anything else.
std::optional<std::uint64_t> unit_bytes(std::string_view unit) {
  if (unit.empty() || unit == "B" || unit == "b") {
    return 1;
  }
  const char letter =
      unit.front() >= 'a' ? static_cast<char>(unit.front() - 'a' + 'A') : unit.front();
  const std::size_t power = kUnits.find(letter);
  const std::string_view rest = unit.substr(1);
  if (power == std::string_view::npos ||
      !(rest.empty() || rest == "B" || rest == "b" || rest == "iB" || rest == "ib")) {
    return std::nullopt;
  }
  return std::uint64_t{1} << (10 * (power + 1));
}

}  // namespace

std::uint64_t parse_size(const std::string& text) {
  const auto refuse = [&text]() {
    throw Error(
        ErrorCode::kUsage,
        fmt::format("\"{}\" is no size; write a number of bytes, or one with K, M, G or T (powers "
                    "of 1024) such as 512M, 4G, 1.5GiB",
                    text));
  };
  const std::size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::optional<std::uint64_t> unit = unit_bytes(std::string_view(text).substr(digits));
  const char* const begin = text.data();
  const char* const end = begin + digits;
  std::uint64_t whole = 0;
  if (!unit) {
    refuse();
  }
  if (const auto [rest, failure] = std::from_chars(begin, end, whole);
      failure == std::errc() && rest == end) {
    if (const std::optional<std::uint64_t> bytes = checked_multiply(whole, *unit)) {
      return *bytes;
    }
    refuse();
  }
  double value = 0;
  const auto [rest, failure] = std::from_chars(begin, end, value, std::chars_format::fixed);
  const double bytes = std::floor(value * static_cast<double>(*unit));
  // 2^63: half of what fits, so that the conversion is safe whatever is added later.
  if (failure != std::errc() || rest != end || *unit == 1 || !(bytes < 9223372036854775808.0)) {
    refuse();
  }
  return static_cast<std::uint64_t>(bytes);
}

std::string format_size(std::uint64_t bytes) {
  if (bytes < 1024) {
    return fmt::format("{} B", bytes);
  }
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  // 1023.95 would print as 1024.0.
  while (value >= 1023.95 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {}iB", value, kUnits[unit]);
}

}  // namespace quantmill
