#include "plan/qwix/axis_pattern.h"

#include <algorithm>
#include <cctype>
#include <set>

#include <fmt/format.h>

#include "base/error.h"

namespace quantmill {

namespace {

[[noreturn]] void fail(std::string_view text, const std::string& what) {
  throw Error(ErrorCode::kInput, fmt::format("axes \"{}\": {}", text, what));
}

bool is_name_character(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

std::vector<AxisGroup> parse_side(std::string_view side, std::string_view text) {
  std::vector<AxisGroup> groups;
  std::set<std::string> seen;
  bool in_group = false;
  for (std::size_t i = 0; i < side.size();) {
    if (side[i] == ' ') {
      ++i;
    } else if (side[i] == '(' || side[i] == ')') {
      if (in_group != (side[i] == ')')) {
        fail(text, "parentheses do not match");
      }
      in_group = side[i] == '(';
      if (in_group) {
        groups.emplace_back();
      }
      ++i;
    } else {
      const std::size_t begin = i;
      while (i < side.size() && is_name_character(side[i])) {
        ++i;
      }
      const std::string name(side.substr(begin, i - begin));
      if (name.empty()) {
        fail(text, fmt::format("'{}' is no axis", side[i]));
      }
      if (!in_group) {
        groups.emplace_back();
      }
      if (name == "1") {
        continue;
      }
      if (!seen.insert(name).second) {
        fail(text, fmt::format("{} is there twice", name));
      }
      groups.back().push_back(name);
    }
  }
  if (in_group) {
    fail(text, "parentheses do not match");
  }
  return groups;
}

}  // namespace

std::vector<std::string> AxisPattern::stacked() const {
  std::vector<std::string> names;
  for (const AxisGroup& group : to) {
    for (const std::string& axis : group) {
      if (!has_axis(from, axis)) {
        names.push_back(axis);
      }
    }
  }
  return names;
}

AxisPattern parse_axis_pattern(std::string_view text) {
  const std::size_t arrow = text.find("->");
  if (arrow == std::string_view::npos) {
    fail(text, "an arrow is wanted: \"out in -> in out\"");
  }
  AxisPattern pattern{parse_side(text.substr(0, arrow), text),
                      parse_side(text.substr(arrow + 2), text)};
  for (const AxisGroup& group : pattern.from) {
    for (const std::string& axis : group) {
      if (!has_axis(pattern.to, axis)) {
        fail(text, fmt::format("{} is on the left and not on the right", axis));
      }
    }
  }
  return pattern;
}

bool has_axis(const std::vector<AxisGroup>& groups, const std::string& axis) {
  return std::ranges::any_of(groups, [&](const AxisGroup& group) {
    return std::ranges::find(group, axis) != group.end();
  });
}

}  // namespace quantmill
