#pragma once

// The expressions of architecture files: shapes, counts and conditions over what config.json
// states. The grammar is documented in src/architectures/README.md.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace quantmill {

// A non-negative integer, a text or a list. Truth is the number 1 or 0.
struct Value {
  enum class Kind { kNumber, kText, kList };

  Kind kind = Kind::kNumber;
  std::uint64_t number = 0;
  std::string text;
  std::vector<Value> items;

  static Value of(std::uint64_t number);
  static Value of_truth(bool holds);
  static Value of(std::string text);
  static Value of(std::vector<Value> items);

  bool operator==(const Value&) const = default;
};

// The value of a name. Throws kInput for a name that has none.
using NameLookup = std::function<Value(const std::string& name)>;

// Errors, kInput, all with the expression: a syntax error, what `names` refuses, operands of the
// wrong kind, a division with a rest or by 0, a difference below 0, overflow, an index beyond the
// list. Names on the side of `and` and `or` that is not needed are not looked up.
Value evaluate(std::string_view expression, const NameLookup& names);

// The same, where only a number (a truth value) will do.
std::uint64_t evaluate_number(std::string_view expression, const NameLookup& names);
bool evaluate_condition(std::string_view expression, const NameLookup& names);

}  // namespace quantmill
