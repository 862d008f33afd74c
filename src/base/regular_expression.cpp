#include "base/regular_expression.h"

// Which of its libraries the header is of.
// NOLINTNEXTLINE(cppcoreguidelines-macro-usage)
#define PCRE2_CODE_UNIT_WIDTH 8
#include <array>
#include <cstdint>
#include <new>

#include <fmt/format.h>
#include <pcre2.h>

#include "base/error.h"

namespace quantmill {

namespace {

constexpr std::uint32_t kMaxSteps = 1'000'000;
constexpr std::uint32_t kMaxHeapKib = 16 * 1024;

std::string describe(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

PCRE2_SPTR units(const std::string& text) {
  return reinterpret_cast<PCRE2_SPTR>(text.data());
}

}  // namespace

RegularExpression::RegularExpression(const std::string& pattern) : pattern_(pattern) {
  int failure = 0;
  PCRE2_SIZE where = 0;
  code_ = {pcre2_compile(units(pattern), pattern.size(), PCRE2_ANCHORED, &failure, &where, nullptr),
           [](void* code) { pcre2_code_free(static_cast<pcre2_code*>(code)); }};
  if (code_ == nullptr) {
    throw Error(
        ErrorCode::kInput,
        fmt::format(
            "regular expression '{}': {} at character {}", pattern, describe(failure), where));
  }
}

bool RegularExpression::matches_start(const std::string& text) const {
  const auto* const code = static_cast<const pcre2_code*>(code_.get());
  const std::unique_ptr<pcre2_match_context, void (*)(pcre2_match_context*)> limits(
      pcre2_match_context_create(nullptr), pcre2_match_context_free);
  const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> found(
      pcre2_match_data_create(1, nullptr), pcre2_match_data_free);
  if (limits == nullptr || found == nullptr) {
    throw std::bad_alloc();
  }
  pcre2_set_match_limit(limits.get(), kMaxSteps);
  pcre2_set_heap_limit(limits.get(), kMaxHeapKib);
  const int result = pcre2_match(code, units(text), text.size(), 0, 0, found.get(), limits.get());
  if (result < 0 && result != PCRE2_ERROR_NOMATCH) {
    throw Error(
        ErrorCode::kInput,
        fmt::format("regular expression '{}' on '{}': {}", pattern_, text, describe(result)));
  }
  return result >= 0;
}

}  // namespace quantmill
