#include "report/names.h"

#include <algorithm>
#include <charconv>
#include <sstream>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/pattern.h"

namespace quantmill {
namespace {

// A number that 64 bits hold.
bool is_index(const std::string& part) {
  return part.size() < 19 && is_number(part);
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
    if (is_index(part)) {
      std::uint64_t layer = 0;
      std::from_chars(part.data(), part.data() + part.size(), layer);
      return layer;
    }
  }
  return std::nullopt;
}

std::string kind_of(const std::string& name) {
  std::vector<std::string> parts = split(name.substr(0, name.find('[')));
  const auto layer = std::ranges::find_if(parts, is_index);
  if (layer != parts.end()) {
    parts.erase(parts.begin(), layer + 1);
  }
  std::erase_if(parts, is_index);
  if (parts.size() > 1 && parts.back() == "weight") {
    parts.pop_back();
  }
  return parts.empty() ? name : fmt::format("{}", fmt::join(parts, "."));
}

std::string without_expert(const std::string& name) {
  std::vector<std::string> parts = split(name);
  int numbers = 0;
  for (std::string& part : parts) {
    if (is_index(part) && ++numbers == 2) {
      part.assign(1, '#');
      return fmt::format("{}", fmt::join(parts, "."));
    }
  }
  return "";
}

}  // namespace quantmill
