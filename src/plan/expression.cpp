#include "plan/expression.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/checked.h"
#include "base/error.h"

namespace quantmill {

namespace {

constexpr int kMaxDepth = 64;  // of parentheses and brackets

// One expression, evaluated while it is parsed; one method per level of precedence. Where
// `is_needed_` is false the text is only parsed: names have no value and operators no effect.
class Evaluator {
 public:
  Evaluator(std::string_view expression, const NameLookup& names)
      : expression_(expression), rest_(expression), names_(names) {}

  Value value() {
    Value result = either();
    if (!peek().empty()) {
      fail(fmt::format("'{}' is not expected there", peek()));
    }
    return result;
  }

  [[noreturn]] std::uint64_t fail(const std::string& reason) const {
    throw Error(ErrorCode::kInput, fmt::format("expression \"{}\": {}", expression_, reason));
  }

 private:
  static bool is_word(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
  }

  // The next token, not yet taken: a word, a quoted text, an operator; empty at the end.
  std::string_view peek() {
    while (!rest_.empty() && rest_.front() == ' ') {
      rest_.remove_prefix(1);
    }
    if (rest_.empty()) {
      return {};
    }
    if (is_word(rest_.front())) {
      return rest_.substr(
          0, static_cast<std::size_t>(std::ranges::find_if_not(rest_, is_word) - rest_.begin()));
    }
    if (rest_.front() == '\'') {
      const std::size_t end = rest_.find('\'', 1);
      if (end == std::string_view::npos) {
        fail("a quote is not closed");
      }
      return rest_.substr(0, end + 1);
    }
    constexpr std::array<std::string_view, 4> kPairs = {"==", "!=", "<=", ">="};
    const bool is_pair = std::ranges::find(kPairs, rest_.substr(0, 2)) != kPairs.end();
    return rest_.substr(0, is_pair ? 2 : 1);
  }

  bool take(std::string_view token) {
    if (peek() != token) {
      return false;
    }
    rest_.remove_prefix(token.size());
    return true;
  }

  void expect(std::string_view token) {
    if (!take(token)) {
      fail(fmt::format("'{}' is missing", token));
    }
  }

  [[nodiscard]] std::uint64_t number(const Value& value) const {
    if (value.kind != Value::Kind::kNumber) {
      fail(value.kind == Value::Kind::kText
               ? fmt::format("'{}' is a text where a number is wanted", value.text)
               : "a list stands where a number is wanted");
    }
    return value.number;
  }

  // The right side of `and` or `or`, which counts only if `is_needed`.
  template <typename Parse>
  bool right_side(bool is_needed, Parse&& parse) {
    const bool was_needed = is_needed_;
    is_needed_ = was_needed && is_needed;
    const Value right = parse();
    const bool result = is_needed_ && number(right) != 0;
    is_needed_ = was_needed;
    return result;
  }

  Value either() {
    if (++depth_ > kMaxDepth) {
      fail(fmt::format("more than {} parentheses in each other", kMaxDepth));
    }
    Value left = both();
    while (take("or")) {
      const bool holds = number(left) != 0;
      const bool other = right_side(!holds, [&] { return both(); });
      left = Value::of_truth(holds || other);
    }
    --depth_;
    return left;
  }

  Value both() {
    Value left = negation();
    while (take("and")) {
      const bool holds = number(left) != 0;
      const bool other = right_side(holds, [&] { return negation(); });
      left = Value::of_truth(holds && other);
    }
    return left;
  }

  Value negation() {
    bool is_negated = false;
    bool is_plain = true;
    while (take("not")) {
      is_negated = !is_negated;
      is_plain = false;
    }
    const Value value = comparison();
    return is_plain ? value : Value::of_truth((number(value) != 0) != is_negated);
  }

  Value comparison() {
    Value left = sum();
    for (const std::string_view sign : {"==", "!=", "<=", ">=", "<", ">", "in"}) {
      if (take(sign)) {
        const Value right = sum();
        return Value::of_truth(is_needed_ && compare(sign, left, right));
      }
    }
    return left;
  }

  [[nodiscard]] bool compare(std::string_view sign, const Value& left, const Value& right) const {
    if (sign == "in") {
      if (right.kind != Value::Kind::kList) {
        fail("right of 'in' a list is wanted");
      }
      return std::ranges::find(right.items, left) != right.items.end();
    }
    if (sign == "==" || sign == "!=") {
      if (left.kind != right.kind) {
        fail("a comparison of values of different kinds");
      }
      return (left == right) == (sign == "==");
    }
    const std::uint64_t a = number(left);
    const std::uint64_t b = number(right);
    return sign == "<" ? a < b : sign == ">" ? a > b : sign == "<=" ? a <= b : a >= b;
  }

  Value sum() {
    Value left = product();
    while (true) {
      if (take("+")) {
        left = apply(left, product(), [&](std::uint64_t a, std::uint64_t b) {
          const std::optional<std::uint64_t> result = checked_add(a, b);
          return result ? *result : fail("does not fit 64 bits");
        });
      } else if (take("-")) {
        left = apply(left, product(), [&](std::uint64_t a, std::uint64_t b) {
          return a >= b ? a - b : fail(fmt::format("{} - {} is below 0", a, b));
        });
      } else {
        return left;
      }
    }
  }

  Value product() {
    Value left = indexed();
    while (true) {
      if (take("*")) {
        left = apply(left, indexed(), [&](std::uint64_t a, std::uint64_t b) {
          const std::optional<std::uint64_t> result = checked_multiply(a, b);
          return result ? *result : fail("does not fit 64 bits");
        });
      } else if (take("/")) {
        left = apply(left, indexed(), [&](std::uint64_t a, std::uint64_t b) {
          return b != 0 && a % b == 0 ? a / b
                                      : fail(fmt::format("{} can't be divided by {}", a, b));
        });
      } else if (take("%")) {
        left = apply(left, indexed(), [&](std::uint64_t a, std::uint64_t b) {
          return b != 0 ? a % b : fail("a rest of a division by 0");
        });
      } else {
        return left;
      }
    }
  }

  template <typename Operation>
  Value apply(const Value& left, const Value& right, Operation&& operation) const {
    return is_needed_ ? Value::of(operation(number(left), number(right))) : Value();
  }

  Value indexed() {
    Value list = primary();
    while (take("[")) {
      const Value index = either();
      expect("]");
      if (!is_needed_) {
        continue;
      }
      if (list.kind != Value::Kind::kList) {
        fail("only a list has elements");
      }
      const std::uint64_t i = number(index);
      if (i >= list.items.size()) {
        fail(fmt::format("element {} of a list of {}", i, list.items.size()));
      }
      Value item = list.items[i];
      list = std::move(item);
    }
    return list;
  }

  Value primary() {
    if (take("(")) {
      Value inner = either();
      expect(")");
      return inner;
    }
    if (take("[")) {
      expect("]");
      return Value::of(std::vector<Value>());
    }
    const std::string_view token = peek();
    if (token.empty() || (token.front() != '\'' && !is_word(token.front()))) {
      fail("a name, a number or a text is missing");
    }
    rest_.remove_prefix(token.size());
    if (token.front() == '\'') {
      return Value::of(std::string(token.substr(1, token.size() - 2)));
    }
    if (std::isdigit(static_cast<unsigned char>(token.front())) != 0) {
      return literal(token);
    }
    if (token == "count") {
      return count();
    }
    return is_needed_ ? named(std::string(token)) : Value();
  }

  [[nodiscard]] Value literal(std::string_view digits) const {
    std::uint64_t result = 0;
    const auto [end, failure] =
        std::from_chars(digits.data(), digits.data() + digits.size(), result);
    if (failure != std::errc() || end != digits.data() + digits.size()) {
      fail(fmt::format("{} is no integer", digits));
    }
    return Value::of(result);
  }

  Value count() {
    expect("(");
    const Value list = either();
    expect(")");
    if (is_needed_ && list.kind != Value::Kind::kList) {
      fail("count() takes a list");
    }
    return Value::of(std::uint64_t{list.items.size()});
  }

  [[nodiscard]] Value named(const std::string& name) const {
    try {
      return names_(name);
    } catch (const Error& error) {
      fail(error.message());
    }
  }

  std::string_view expression_;
  std::string_view rest_;
  const NameLookup& names_;
  bool is_needed_ = true;
  int depth_ = 0;
};

}  // namespace

Value Value::of(std::uint64_t number) {
  return {Kind::kNumber, number, {}, {}};
}

Value Value::of_truth(bool holds) {
  return of(std::uint64_t{holds ? 1U : 0U});
}

Value Value::of(std::string text) {
  return {Kind::kText, 0, std::move(text), {}};
}

Value Value::of(std::vector<Value> items) {
  return {Kind::kList, 0, {}, std::move(items)};
}

Value evaluate(std::string_view expression, const NameLookup& names) {
  return Evaluator(expression, names).value();
}

std::uint64_t evaluate_number(std::string_view expression, const NameLookup& names) {
  Evaluator evaluator(expression, names);
  const Value value = evaluator.value();
  if (value.kind != Value::Kind::kNumber) {
    evaluator.fail("a number is wanted");
  }
  return value.number;
}

bool evaluate_condition(std::string_view expression, const NameLookup& names) {
  return evaluate_number(expression, names) != 0;
}

}  // namespace quantmill
