#include "plan/qwix/name_pattern.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"
#include "base/pattern.h"

namespace quantmill {

namespace {

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (true) {
    const std::size_t end = text.find(separator);
    parts.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) {
      return parts;
    }
    text.remove_prefix(end + 1);
  }
}

}  // namespace

NamePattern::NamePattern(const std::string& text) : text_(text) {
  const auto fail = [&](const std::string& what) {
    throw Error(ErrorCode::kInput, fmt::format("name {}: {}", text, what));
  };
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::size_t open = rest.find('{');
    if (open != 0) {
      pieces_.push_back({std::string(rest.substr(0, open)), {}, false, false, {}});
      rest.remove_prefix(std::min(open, rest.size()));
      continue;
    }
    const std::size_t close = rest.find('}');
    if (close == std::string_view::npos) {
      fail("a brace is not closed");
    }
    const std::string_view inside = rest.substr(1, close - 1);
    const std::size_t colon = inside.find(':');
    Piece piece;
    piece.placeholder = std::string(inside.substr(0, colon));
    if (colon != std::string_view::npos) {
      const std::string_view kind = inside.substr(colon + 1);
      piece.is_number = kind == "#";
      piece.has_dots = kind == "*";
      if (!piece.is_number && !piece.has_dots) {
        piece.choices = split(kind, '|');
      }
    }
    const std::vector<std::string> before = placeholders();
    if (piece.placeholder.empty() || std::ranges::find(before, piece.placeholder) != before.end()) {
      fail(fmt::format("{{{}}} has no name, or one that is taken", inside));
    }
    pieces_.push_back(std::move(piece));
    rest.remove_prefix(close + 1);
  }
}

std::vector<std::string> NamePattern::placeholders() const {
  std::vector<std::string> names;
  for (const Piece& piece : pieces_) {
    if (!piece.placeholder.empty()) {
      names.push_back(piece.placeholder);
    }
  }
  return names;
}

std::optional<NameBinding> NamePattern::match(std::string_view name) const {
  NameBinding binding;
  if (match_from(0, name, binding)) {
    return binding;
  }
  return std::nullopt;
}

bool NamePattern::match_from(std::size_t index, std::string_view rest, NameBinding& binding) const {
  if (index == pieces_.size()) {
    return rest.empty();
  }
  const Piece& piece = pieces_[index];
  if (piece.placeholder.empty()) {
    return rest.starts_with(piece.literal) &&
           match_from(index + 1, rest.substr(piece.literal.size()), binding);
  }
  // The longest text first; a step of the name at most.
  const std::size_t longest = piece.has_dots ? rest.size() : std::min(rest.find('.'), rest.size());
  const std::size_t shortest = piece.has_dots ? 0 : 1;
  for (std::size_t size = longest + 1; size-- > shortest;) {
    const std::string text(rest.substr(0, size));
    const bool fits = piece.is_number
                          ? is_number(text)
                          : piece.choices.empty() ||
                                std::ranges::find(piece.choices, text) != piece.choices.end();
    if (!fits) {
      continue;
    }
    binding.emplace_back(piece.placeholder, text);
    if (match_from(index + 1, rest.substr(size), binding)) {
      return true;
    }
    binding.pop_back();
  }
  return false;
}

std::string fill_in(const std::string& text, const NameBinding& binding) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '{') {
      result += text[i];
      continue;
    }
    const std::size_t close = text.find('}', i);
    const std::string name = text.substr(i + 1, close == std::string::npos ? close : close - i - 1);
    const auto found = std::ranges::find(binding, name, &NameBinding::value_type::first);
    if (found == binding.end()) {
      throw Error(ErrorCode::kInput,
                  fmt::format("name {}: there is nothing to put in place of {{{}}}", text, name));
    }
    result += found->second;
    i = close;
  }
  return result;
}

}  // namespace quantmill
