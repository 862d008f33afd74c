// Regular expressions and shell patterns of others' configs on any name: an answer or a refusal,
// soon. Input: the pattern on one line, then the name.

#include <algorithm>
#include <string>

#include "base/pattern.h"
#include "base/regular_expression.h"
#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quantmill;
  const std::string_view text = fuzz::as_text(data, size);
  const std::size_t line = std::min(text.find('\n'), text.size());
  const std::string pattern(text.substr(0, line));
  const std::string name(text.substr(std::min(line + 1, text.size())));
  fuzz::only_input_errors([&] {
    const RegularExpression expression(pattern);
    fuzz::require(expression.matches_start(name) == expression.matches_start(name),
                  "an expression has one answer");
  });
  const bool matches = matches_pattern(pattern, name);
  fuzz::require(matches || pattern != "*", "a star matches everything");
  return 0;
}
