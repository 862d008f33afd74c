#pragma once

// Regular expressions of others' configs, which are written for Python's re.

#include <memory>
#include <string>

namespace quantmill {

class RegularExpression {
 public:
  // kInput, with what is wrong and where, if it is none.
  explicit RegularExpression(const std::string& pattern);

  // Whether `text` has a match that starts at its first character, as Python's re.match. kInput if
  // that takes more steps or memory than any sensible expression.
  [[nodiscard]] bool matches_start(const std::string& text) const;

 private:
  std::string pattern_;
  std::shared_ptr<void> code_;
};

}  // namespace quantmill
