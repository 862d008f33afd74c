#pragma once

// Text that is never changed and that its copies share: what structures by the ten thousand repeat.
// Not for text that is built up or cut.

#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace quantmill {

class SharedText {
 public:
  SharedText() = default;

  // Shared ownership, where the house has none otherwise: plans are copied, and no copy knows which
  // one lives longest.
  SharedText(std::string text)  // NOLINT(google-explicit-constructor): used as a std::string is
      : text_(text.empty() ? nullptr : std::make_shared<const std::string>(std::move(text))) {}

  [[nodiscard]] const std::string& str() const noexcept {
    static const std::string empty;
    return text_ ? *text_ : empty;
  }

  [[nodiscard]] bool empty() const noexcept { return !text_; }

  friend bool operator==(const SharedText& left, std::string_view right) {
    return left.str() == right;
  }

 private:
  std::shared_ptr<const std::string> text_;
};

}  // namespace quantmill
