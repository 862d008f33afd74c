#pragma once

// Reads a JSON object whose keys are all known. For architecture files; errors are kInput and start
// with what the object is.

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "plan/json_text.h"

namespace quantmill {

class ObjectReader {
 public:
  // `where` says which object it is. kInput: no object, or a key that is not known (named).
  // `object` must outlive the reader.
  ObjectReader(const JsonValue& object,
               std::string where,
               std::initializer_list<std::string_view> known);

  [[nodiscard]] const JsonValue* find(std::string_view key) const { return object_.find(key); }

  // kInput if the key is missing, for all named so.
  [[nodiscard]] const JsonValue& at(std::string_view key) const;
  [[nodiscard]] std::string text(std::string_view key) const;
  [[nodiscard]] const std::vector<JsonValue>& items(std::string_view key) const;
  [[nodiscard]] const JsonValue& object(std::string_view key) const;

  [[nodiscard]] std::string text_or_empty(std::string_view key) const;
  [[nodiscard]] bool flag(std::string_view key) const;
  [[nodiscard]] std::vector<std::string> texts_or_empty(std::string_view key) const;

  [[nodiscard]] const std::string& where() const { return where_; }

 private:
  [[nodiscard]] std::string text_of(const JsonValue& value, std::string_view key) const;

  const JsonValue& object_;
  std::string where_;
};

}  // namespace quantmill
