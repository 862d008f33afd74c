#include "report/names.h"

#include <algorithm>
#include <charconv>
#include <sstream>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace quantmill {
namespace {

bool is_digits(const std::string& part) {
  return !part.empty() && part.size() < 19 &&
         std::ranges::all_of(part, [](char c) { return c >= '0' && c <= '9'; });
}

std::vector<std::string> split(const std::string& name) {
  std::vector<std::string> parts;
  std::istringstream in(name);
  for (std::string part; std::getline(in, part, '.');) {
    parts.push_back(part);
  }
  return parts;
}

}  // namespace

std::optional<std::uint64_t> layer_of(const std::string& name) {
  for (const std::string& part : split(name)) {
    if (is_digits(part)) {
      std::uint64_t layer = 0;
      std::from_chars(part.data(), part.data() + part.size(), layer);
      return layer;
    }
  }
  return std::nullopt;
}

std::string kind_of(const std::string& name) {
  std::vector<std::string> parts = split(name.substr(0, name.find('[')));
  const auto layer = std::ranges::find_if(parts, is_digits);
  if (layer != parts.end()) {
    parts.erase(parts.begin(), layer + 1);
  }
  std::erase_if(parts, is_digits);
  if (parts.size() > 1 && parts.back() == "weight") {
    parts.pop_back();
  }
  return parts.empty() ? name : fmt::format("{}", fmt::join(parts, "."));
}

std::string without_expert(const std::string& name) {
  std::vector<std::string> parts = split(name);
  int numbers = 0;
  for (std::string& part : parts) {
    if (is_digits(part) && ++numbers == 2) {
      part = "#";
      return fmt::format("{}", fmt::join(parts, "."));
    }
  }
  return "";
}

}  // namespace quantmill
