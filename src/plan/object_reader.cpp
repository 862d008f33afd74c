#include "plan/object_reader.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"

namespace quantmill {

namespace {

[[noreturn]] void fail(const std::string& message) {
  throw Error(ErrorCode::kInput, message);
}

}  // namespace

ObjectReader::ObjectReader(const JsonValue& object,
                           std::string where,
                           std::initializer_list<std::string_view> known)
    : object_(object), where_(std::move(where)) {
  if (object.kind != JsonValue::Kind::kObject) {
    fail(fmt::format("{} must be an object, found {}", where_, describe_json(object)));
  }
  for (const std::string& key : object.keys) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      fail(
          fmt::format("{}: unknown key \"{}\"; known are {}", where_, key, fmt::join(known, ", ")));
    }
  }
}

const JsonValue& ObjectReader::at(std::string_view key) const {
  const JsonValue* const value = find(key);
  if (value == nullptr) {
    fail(fmt::format("{}: the key \"{}\" is missing", where_, key));
  }
  return *value;
}

std::string ObjectReader::text(std::string_view key) const {
  return text_of(at(key), key);
}

const std::vector<JsonValue>& ObjectReader::items(std::string_view key) const {
  const JsonValue& list = at(key);
  if (list.kind != JsonValue::Kind::kArray) {
    fail(fmt::format("{}: \"{}\" must be a list, found {}", where_, key, describe_json(list)));
  }
  return list.items;
}

const JsonValue& ObjectReader::object(std::string_view key) const {
  const JsonValue& value = at(key);
  if (value.kind != JsonValue::Kind::kObject) {
    fail(fmt::format("{}: \"{}\" must be an object, found {}", where_, key, describe_json(value)));
  }
  return value;
}

std::string ObjectReader::text_or_empty(std::string_view key) const {
  const JsonValue* const value = find(key);
  return value == nullptr ? std::string() : text_of(*value, key);
}

bool ObjectReader::flag(std::string_view key) const {
  const JsonValue* const value = find(key);
  if (value != nullptr && value->kind != JsonValue::Kind::kBoolean) {
    fail(fmt::format(
        "{}: \"{}\" must be true or false, found {}", where_, key, describe_json(*value)));
  }
  return value != nullptr && value->text == "true";
}

std::vector<std::string> ObjectReader::texts_or_empty(std::string_view key) const {
  std::vector<std::string> texts;
  if (find(key) != nullptr) {
    for (const JsonValue& item : items(key)) {
      texts.push_back(text_of(item, key));
    }
  }
  return texts;
}

std::string ObjectReader::text_of(const JsonValue& value, std::string_view key) const {
  if (value.kind != JsonValue::Kind::kString) {
    fail(fmt::format("{}: \"{}\" must hold text, found {}", where_, key, describe_json(value)));
  }
  return value.text;
}

}  // namespace quantmill
