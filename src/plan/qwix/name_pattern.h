#pragma once

// Names with placeholders that stand for what a name has there: "layers.{layer}.mlp.{part}_proj".
// {x} is any text without a dot, {x:*} any text, an empty one too, {x:a|b} one of these texts,
// {x:#} a number.

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace quantmill {

using NameBinding = std::vector<std::pair<std::string, std::string>>;

class NamePattern {
 public:
  // kInput: a brace without its partner, a placeholder twice or without a name.
  explicit NamePattern(const std::string& text);

  // What the placeholders stand for, in order, if all of `name` matches.
  [[nodiscard]] std::optional<NameBinding> match(std::string_view name) const;

  [[nodiscard]] const std::string& text() const { return text_; }

  // Names of the placeholders, in order.
  [[nodiscard]] std::vector<std::string> placeholders() const;

 private:
  struct Piece {
    std::string literal;      // or
    std::string placeholder;  // of this name
    bool is_number = false;
    bool has_dots = false;
    std::vector<std::string> choices;  // none: any
  };

  [[nodiscard]] bool match_from(std::size_t index,
                                std::string_view rest,
                                NameBinding& binding) const;

  std::string text_;
  std::vector<Piece> pieces_;
};

// `text` with {placeholder} replaced. kInput, with the text, for one that has no value.
std::string fill_in(const std::string& text, const NameBinding& binding);

}  // namespace quantmill
