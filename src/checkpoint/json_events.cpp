#include "checkpoint/json_events.h"

#include <cstddef>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace quantmill {

namespace {

constexpr int kMaxDepth = 32;
constexpr std::size_t kMaxQuotedBytes = 200;

// The handler that nlohmann's SAX parser calls; the names and signatures are its own.
class SaxHandler {
 public:
  explicit SaxHandler(const std::function<void(const JsonEvent&)>& on_event)
      : on_event_(on_event) {}

  bool null() { return emit(JsonEvent::Kind::kOther); }

  bool boolean(bool /*value*/) { return emit(JsonEvent::Kind::kOther); }

  bool number_integer(std::int64_t /*value*/) { return emit(JsonEvent::Kind::kOther); }

  bool number_unsigned(std::uint64_t value) {
    on_event_({JsonEvent::Kind::kUnsigned, {}, value});
    return true;
  }

  bool number_float(double /*value*/, const std::string& /*text*/) {
    return emit(JsonEvent::Kind::kOther);
  }

  bool string(const std::string& value) { return emit(JsonEvent::Kind::kString, value); }

  bool binary(const nlohmann::json::binary_t& /*value*/) { return emit(JsonEvent::Kind::kOther); }

  bool start_object(std::size_t /*size*/) { return enter(JsonEvent::Kind::kStartObject); }

  bool key(const std::string& value) { return emit(JsonEvent::Kind::kKey, value); }

  bool end_object() { return leave(JsonEvent::Kind::kEndObject); }

  bool start_array(std::size_t /*size*/) { return enter(JsonEvent::Kind::kStartArray); }

  bool end_array() { return leave(JsonEvent::Kind::kEndArray); }

  static bool parse_error(std::size_t position,
                          const std::string& last_token,
                          const nlohmann::json::exception& /*error*/) {
    throw Error(
        ErrorCode::kInput,
        fmt::format(
            "not JSON: cannot read on at byte {}, after {}", position, quote_name(last_token)));
  }

 private:
  bool emit(JsonEvent::Kind kind, std::string_view text = {}) {
    on_event_({kind, text, 0});
    return true;
  }

  bool enter(JsonEvent::Kind kind) {
    if (++depth_ > kMaxDepth) {
      throw Error(ErrorCode::kInput,
                  fmt::format("JSON nested deeper than {} levels; no valid file of this kind is",
                              kMaxDepth));
    }
    return emit(kind);
  }

  bool leave(JsonEvent::Kind kind) {
    --depth_;
    return emit(kind);
  }

  const std::function<void(const JsonEvent&)>& on_event_;
  int depth_ = 0;
};

}  // namespace

void read_json_events(std::string_view text,
                      const std::function<void(const JsonEvent&)>& on_event) {
  // The parser takes a zero byte for the end of the text and would pass over what follows.
  if (const std::size_t position = text.find('\0'); position != std::string_view::npos) {
    throw Error(ErrorCode::kInput, fmt::format("not JSON: a zero byte at byte {}", position + 1));
  }
  SaxHandler handler(on_event);
  nlohmann::json::sax_parse(text.begin(), text.end(), &handler);
}

std::string quote_name(std::string_view name) {
  std::string text = "'";
  for (const char c : name.substr(0, kMaxQuotedBytes)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      text += fmt::format("\\x{:02x}", byte);
    } else {
      text += c;
    }
  }
  return text + (name.size() > kMaxQuotedBytes ? "...'" : "'");
}

}  // namespace quantmill
