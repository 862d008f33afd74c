#pragma once

// JSON text as a stream of events, for files that are too large or too little trusted for a tree of
// values. Not for configuration files, where a tree is handier.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace quantmill {

struct JsonEvent {
  enum class Kind {
    kStartObject,
    kKey,  // text
    kEndObject,
    kStartArray,
    kEndArray,
    kString,    // text
    kUnsigned,  // number
    kOther,     // null, true, false, a negative number, a fraction, or one beyond 64 bits
  };

  Kind kind = Kind::kOther;
  std::string_view text;  // valid during the call only
  std::uint64_t number = 0;
};

// Calls `on_event` for every event of exactly one JSON value in valid UTF-8. Linear in the size of
// `text`. Errors, kInput: not JSON (says where), nested deeper than 32. What `on_event` throws
// passes through.
void read_json_events(std::string_view text, const std::function<void(const JsonEvent&)>& on_event);

// A name from a file as a message shows it: in quotes, control characters escaped, cut after 200
// bytes.
std::string quote_name(std::string_view name);

}  // namespace quantmill
