#pragma once

// Shell patterns over names (`*`, `?`, `[…]`; `*` also matches dots), as --keep and recipes use
// them.

#include <string>
#include <string_view>

namespace quantmill {

// Whether all of `name` matches `pattern`.
bool matches_pattern(const std::string& pattern, const std::string& name);

// Whether `text` is digits, one or more.
bool is_number(std::string_view text);

// `text` with every occurrence of `from` replaced by `to`, left to right; an empty `from` occurs
// nowhere.
std::string replace_all(std::string text, std::string_view from, std::string_view to);

}  // namespace quantmill
