#include "plan/placeholders.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"
#include "base/pattern.h"

namespace quantmill {

std::vector<std::string> placeholders(std::string_view name) {
  std::vector<std::string> found;
  for (std::size_t open = name.find('{'); open != std::string_view::npos;
       open = name.find('{', open + 1)) {
    const std::size_t close = name.find('}', open);
    if (close == std::string_view::npos) {
      throw Error(ErrorCode::kInput, fmt::format("{}: a brace is not closed", name));
    }
    const std::string placeholder(name.substr(open + 1, close - open - 1));
    if (std::find(found.begin(), found.end(), placeholder) == found.end()) {
      found.push_back(placeholder);
    }
  }
  return found;
}

std::string substitute(std::string name, const Binding& binding) {
  for (const auto& [placeholder, value] : binding) {
    name = replace_all(std::move(name), fmt::format("{{{}}}", placeholder), std::to_string(value));
  }
  return name;
}

}  // namespace quantmill
