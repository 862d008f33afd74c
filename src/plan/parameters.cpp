#include "plan/parameters.h"

#include <cctype>
#include <charconv>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/checked.h"
#include "base/error.h"

namespace quantmill {

namespace {

const JsonValue* find_path(const JsonValue& config, std::string_view path) {
  const JsonValue* value = &config;
  while (value != nullptr && !path.empty()) {
    const std::size_t dot = path.find('.');
    value = value->find(path.substr(0, dot));
    path = dot == std::string_view::npos ? std::string_view() : path.substr(dot + 1);
  }
  return value;
}

std::uint64_t value_of(const ParameterSpec& spec, const std::string& key, const JsonValue& value) {
  if (spec.count) {
    if (value.kind != JsonValue::Kind::kArray) {
      throw Error(
          ErrorCode::kInput,
          fmt::format("config.json: {} must be a list, found {}", key, describe_json(value)));
    }
    return value.items.size();
  }
  const std::optional<std::uint64_t> number = value.as_unsigned();
  if (!number) {
    throw Error(
        ErrorCode::kInput,
        fmt::format(
            "config.json: {} must be a non-negative integer, found {}", key, describe_json(value)));
  }
  return *number;
}

std::optional<std::uint64_t> read_parameter(const ParameterSpec& spec,
                                            const JsonValue& config,
                                            const Parameters& before) {
  for (const std::string& key : spec.config_keys) {
    const JsonValue* const value = find_path(config, key);
    if (value != nullptr && value->kind != JsonValue::Kind::kNull) {
      return value_of(spec, key, *value);
    }
  }
  if (!spec.fallback.empty()) {
    return evaluate(spec.fallback, before);
  }
  if (spec.optional) {
    return std::nullopt;
  }
  throw Error(ErrorCode::kInput,
              fmt::format("config.json: {} is missing, and the architecture needs it ({})",
                          fmt::join(spec.config_keys, " or "),
                          spec.name));
}

// Reads an expression from left to right.
class ExpressionReader {
 public:
  ExpressionReader(const std::string& expression, const Parameters& parameters)
      : expression_(expression), rest_(expression), parameters_(parameters) {}

  std::uint64_t value() {
    std::uint64_t result = factor();
    for (char sign = next(); sign != '\0'; sign = next()) {
      rest_.remove_prefix(1);
      const std::uint64_t right = factor();
      if (sign == '*') {
        const std::optional<std::uint64_t> product = checked_multiply(result, right);
        result = product ? *product : fail("does not fit 64 bits");
      } else if (sign == '/') {
        result = right != 0 && result % right == 0
                     ? result / right
                     : fail(fmt::format("{} can't be divided by {}", result, right));
      } else {
        fail("only names, integers, * and / are known");
      }
    }
    return result;
  }

 private:
  // The next character that is no space, or 0 at the end.
  char next() {
    while (!rest_.empty() && rest_.front() == ' ') {
      rest_.remove_prefix(1);
    }
    return rest_.empty() ? '\0' : rest_.front();
  }

  std::uint64_t factor() {
    next();
    std::size_t length = 0;
    while (length < rest_.size() &&
           (std::isalnum(static_cast<unsigned char>(rest_[length])) != 0 || rest_[length] == '_')) {
      ++length;
    }
    const std::string_view word = rest_.substr(0, length);
    rest_.remove_prefix(length);
    if (word.empty()) {
      return fail("a name or an integer is missing");
    }
    if (std::isdigit(static_cast<unsigned char>(word.front())) == 0) {
      return named(std::string(word));
    }
    std::uint64_t number = 0;
    const auto [end, failure] = std::from_chars(word.data(), word.data() + word.size(), number);
    return failure == std::errc() && end == word.data() + word.size()
               ? number
               : fail(fmt::format("{} is no integer", word));
  }

  std::uint64_t named(const std::string& name) {
    const auto found = parameters_.find(name);
    if (found == parameters_.end()) {
      return fail(fmt::format("there is no parameter {}", name));
    }
    return found->second ? *found->second
                         : fail(fmt::format("config.json does not state {}", name));
  }

  [[noreturn]] std::uint64_t fail(const std::string& reason) const {
    throw Error(ErrorCode::kInput, fmt::format("expression \"{}\": {}", expression_, reason));
  }

  const std::string& expression_;
  std::string_view rest_;
  const Parameters& parameters_;
};

}  // namespace

Parameters read_parameters(const std::vector<ParameterSpec>& specs, const JsonValue& config) {
  Parameters parameters;
  for (const ParameterSpec& spec : specs) {
    parameters[spec.name] = with_context(fmt::format("parameter {}", spec.name),
                                         [&] { return read_parameter(spec, config, parameters); });
  }
  return parameters;
}

std::uint64_t evaluate(const std::string& expression, const Parameters& parameters) {
  return ExpressionReader(expression, parameters).value();
}

}  // namespace quantmill
