#pragma once

// A JSON document that keeps the order of its keys and the spelling of its numbers, so that a file
// can be changed in one place and written back. Not for large files: everything is held as text.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace quantmill {

struct JsonValue {
  enum class Kind { kNull, kBoolean, kNumber, kString, kArray, kObject };

  Kind kind = Kind::kNull;
  std::string text;  // kNumber: as spelled; kString: its characters; kBoolean: true or false
  std::vector<std::string> keys;  // kObject: names of `items`, in order, each once
  std::vector<JsonValue> items;   // kArray, kObject

  static JsonValue null() { return {}; }

  static JsonValue boolean(bool value);
  static JsonValue number(std::uint64_t value);
  static JsonValue number(
      double value);  // finite; the shortest spelling that reads back as the same double
  static JsonValue string(std::string value);
  static JsonValue array(const std::vector<std::string>& strings);
  static JsonValue object();

  // The member of an object, or null if there is none or this is no object.
  [[nodiscard]] const JsonValue* find(std::string_view key) const;
  // Replaces the member where it stands, or appends it.
  void set(const std::string& key, JsonValue value);
  void remove(std::string_view key);

  // A non-negative integer that fits; nothing for anything else, 1.0 included.
  [[nodiscard]] std::optional<std::uint64_t> as_unsigned() const;
  // Any number.
  [[nodiscard]] std::optional<double> as_double() const;
};

// "an object", "a string", "the number 3" …: for messages.
std::string describe_json(const JsonValue& value);

// Errors, `code`, starting with `what` ("config.json"): not JSON (NaN, Infinity and a byte order
// mark are named as such), a key twice in one object, more than 64 levels.
JsonValue parse_json(std::string_view text, std::string_view what, ErrorCode code);

// Spelled as Python's json.dumps(value, indent=2) does: ASCII only, no newline at the end.
std::string print_json(const JsonValue& value);

}  // namespace quantmill
