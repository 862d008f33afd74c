#include "plan/json_text.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace quantmill {

namespace {

constexpr std::size_t kMaxDepth = 64;

// Whether what the parser read last is the first letter of NaN or Infinity.
bool starts_non_number(const std::string& read) {
  const bool has_letter = !read.empty() && (read.back() == 'N' || read.back() == 'I');
  return has_letter &&
         (read.size() == 1 || std::isalnum(static_cast<unsigned char>(read[read.size() - 2])) == 0);
}

// Builds a JsonValue from the parser's events.
class Builder {
 public:
  Builder(std::string_view what, ErrorCode code) : what_(what), code_(code) {}

  bool null() { return add(JsonValue::null()); }

  bool boolean(bool value) { return add(JsonValue::boolean(value)); }

  bool number_integer(std::int64_t value) { return add_number(std::to_string(value)); }

  bool number_unsigned(std::uint64_t value) { return add_number(std::to_string(value)); }

  bool number_float(double /*value*/, const std::string& spelling) { return add_number(spelling); }

  bool string(const std::string& value) { return add(JsonValue::string(value)); }

  static bool binary(nlohmann::json::binary_t& /*value*/) { return false; }

  bool start_object(std::size_t /*size*/) { return open(JsonValue::Kind::kObject); }

  bool start_array(std::size_t /*size*/) { return open(JsonValue::Kind::kArray); }

  bool key(const std::string& name) {
    if (!seen_.back().insert(name).second) {
      throw Error(code_,
                  fmt::format("{}: the key \"{}\" appears twice in one object", what_, name));
    }
    open_.back().keys.push_back(name);
    return true;
  }

  bool end_object() { return close(); }

  bool end_array() { return close(); }

  bool parse_error(std::size_t position,
                   const std::string& last_token,
                   const nlohmann::json::exception& error) {
    const std::string_view message = error.what();
    const bool is_word = message.find("invalid literal") != std::string_view::npos ||
                         message.find("invalid number") != std::string_view::npos;
    if (is_word && starts_non_number(last_token)) {
      throw Error(
          code_,
          fmt::format(
              "{}: NaN or Infinity at byte {}, which JSON does not have; write null or a number",
              what_,
              position));
    }
    const std::size_t detail = message.find("] ");
    throw Error(
        code_,
        fmt::format("{}: not valid JSON: {}",
                    what_,
                    detail == std::string_view::npos ? message : message.substr(detail + 2)));
  }

  JsonValue take() { return std::move(root_); }

 private:
  bool add(JsonValue value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else {
      open_.back().items.push_back(std::move(value));
    }
    return true;
  }

  bool add_number(std::string spelling) {
    JsonValue value;
    value.kind = JsonValue::Kind::kNumber;
    value.text = std::move(spelling);
    return add(std::move(value));
  }

  bool open(JsonValue::Kind kind) {
    if (open_.size() >= kMaxDepth) {
      throw Error(code_, fmt::format("{}: nested deeper than {} levels", what_, kMaxDepth));
    }
    open_.emplace_back().kind = kind;
    seen_.emplace_back();
    return true;
  }

  bool close() {
    JsonValue value = std::move(open_.back());
    open_.pop_back();
    seen_.pop_back();
    return add(std::move(value));
  }

  std::string_view what_;
  ErrorCode code_;
  JsonValue root_;
  std::vector<JsonValue> open_;
  std::vector<std::unordered_set<std::string>> seen_;  // keys of each open value
};

std::string quote(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

void print_to(const JsonValue& value, std::size_t indent, std::string& out) {
  switch (value.kind) {
    case JsonValue::Kind::kNull:
      out += "null";
      return;
    case JsonValue::Kind::kBoolean:
    case JsonValue::Kind::kNumber:
      out += value.text;
      return;
    case JsonValue::Kind::kString:
      out += quote(value.text);
      return;
    case JsonValue::Kind::kArray:
    case JsonValue::Kind::kObject:
      break;
  }
  const bool is_object = value.kind == JsonValue::Kind::kObject;
  out += is_object ? '{' : '[';
  for (std::size_t i = 0; i < value.items.size(); ++i) {
    out += i == 0 ? "\n" : ",\n";
    out.append(indent + 2, ' ');
    if (is_object) {
      out += quote(value.keys[i]) + ": ";
    }
    print_to(value.items[i], indent + 2, out);
  }
  if (!value.items.empty()) {
    out += '\n';
    out.append(indent, ' ');
  }
  out += is_object ? '}' : ']';
}

}  // namespace

JsonValue JsonValue::boolean(bool value) {
  JsonValue result;
  result.kind = Kind::kBoolean;
  result.text = value ? "true" : "false";
  return result;
}

JsonValue JsonValue::number(std::uint64_t value) {
  JsonValue result;
  result.kind = Kind::kNumber;
  result.text = std::to_string(value);
  return result;
}

JsonValue JsonValue::number(double value) {
  JsonValue result;
  result.kind = Kind::kNumber;
  result.text = fmt::format("{}", value);
  return result;
}

JsonValue JsonValue::string(std::string value) {
  JsonValue result;
  result.kind = Kind::kString;
  result.text = std::move(value);
  return result;
}

JsonValue JsonValue::array(const std::vector<std::string>& strings) {
  JsonValue result;
  result.kind = Kind::kArray;
  for (const std::string& text : strings) {
    result.items.push_back(string(text));
  }
  return result;
}

JsonValue JsonValue::object() {
  JsonValue result;
  result.kind = Kind::kObject;
  return result;
}

const JsonValue* JsonValue::find(std::string_view key) const {
  const auto found = std::find(keys.begin(), keys.end(), key);
  return found == keys.end() ? nullptr : &items[static_cast<std::size_t>(found - keys.begin())];
}

void JsonValue::set(const std::string& key, JsonValue value) {
  const auto found = std::find(keys.begin(), keys.end(), key);
  if (found == keys.end()) {
    keys.push_back(key);
    items.push_back(std::move(value));
  } else {
    items[static_cast<std::size_t>(found - keys.begin())] = std::move(value);
  }
}

void JsonValue::remove(std::string_view key) {
  const auto found = std::find(keys.begin(), keys.end(), key);
  if (found != keys.end()) {
    items.erase(items.begin() + (found - keys.begin()));
    keys.erase(found);
  }
}

std::optional<std::uint64_t> JsonValue::as_unsigned() const {
  std::uint64_t value = 0;
  const char* const end = text.data() + text.size();
  if (kind != Kind::kNumber) {
    return std::nullopt;
  }
  const auto [rest, failure] = std::from_chars(text.data(), end, value);
  return failure == std::errc() && rest == end ? std::optional(value) : std::nullopt;
}

std::optional<double> JsonValue::as_double() const {
  double value = 0;
  const char* const end = text.data() + text.size();
  if (kind != Kind::kNumber) {
    return std::nullopt;
  }
  const auto [rest, failure] = std::from_chars(text.data(), end, value);
  return failure == std::errc() && rest == end ? std::optional(value) : std::nullopt;
}

std::string describe_json(const JsonValue& value) {
  switch (value.kind) {
    case JsonValue::Kind::kNull:
      return "null";
    case JsonValue::Kind::kBoolean:
      return value.text;
    case JsonValue::Kind::kNumber:
      return "the number " + value.text;
    case JsonValue::Kind::kString:
      return "the text " + quote(value.text);
    case JsonValue::Kind::kArray:
      return "a list";
    case JsonValue::Kind::kObject:
      return "an object";
  }
  return "";
}

JsonValue parse_json(std::string_view text, std::string_view what, ErrorCode code) {
  if (text.substr(0, 3) == "\xEF\xBB\xBF") {
    throw Error(code,
                fmt::format("{}: starts with a byte order mark; save it as plain UTF-8", what));
  }
  Builder builder(what, code);
  nlohmann::json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

std::string print_json(const JsonValue& value) {
  std::string out;
  print_to(value, 0, out);
  return out;
}

}  // namespace quantmill
