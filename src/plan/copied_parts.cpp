#include "plan/copied_parts.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

#include "base/pattern.h"

namespace quantmill {
namespace {

// How much of `name`, from its start, a layer's pattern takes; nothing if it takes none.
std::optional<std::size_t> length_of(const std::string& pattern, std::string_view name) {
  const bool any_number = pattern.ends_with('*');
  const std::string_view start(pattern.data(), pattern.size() - (any_number ? 1 : 0));
  if (!name.starts_with(start)) {
    return std::nullopt;
  }
  const std::size_t end = std::min(name.find('.', start.size()), name.size());
  const bool is_whole =
      any_number ? is_number(name.substr(start.size(), end - start.size())) : end == start.size();
  return is_whole ? std::optional(end) : std::nullopt;
}

std::optional<std::uint64_t> number_of(std::string_view layer) {
  const std::string_view digits = layer.substr(layer.rfind('.') + 1);
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return error == std::errc() && end == digits.data() + digits.size() ? std::optional(number)
                                                                      : std::nullopt;
}

}  // namespace

CopiedParts::CopiedParts(std::vector<std::string> copied,
                         std::vector<PartLayers> layers,
                         std::vector<std::string> prefixes)
    : copied_(std::move(copied)), layers_(std::move(layers)), prefixes_(std::move(prefixes)) {
  prefixes_.emplace_back();
  std::ranges::stable_sort(prefixes_, std::ranges::greater(), &std::string::size);
}

std::optional<std::string> CopiedParts::pattern_of(const std::string& name) const {
  for (const std::string& pattern : copied_) {
    for (const std::string& prefix : prefixes_) {
      if (matches_pattern(prefix + pattern, name)) {
        return pattern;
      }
    }
  }
  return std::nullopt;
}

std::optional<PlaceInPart> CopiedParts::place_of(const std::string& name) const {
  for (const PartLayers& layers : layers_) {
    for (const std::string& prefix : prefixes_) {
      if (!name.starts_with(prefix)) {
        continue;
      }
      const std::string inner = name.substr(prefix.size());
      for (const std::string& pattern : layers.patterns) {
        const std::optional<std::size_t> length = length_of(pattern, inner);
        const std::optional<std::uint64_t> number =
            length ? number_of(std::string_view(inner).substr(0, *length)) : std::nullopt;
        if (number) {
          return PlaceInPart{layers.part, inner.substr(0, *length), *number, inner.substr(*length)};
        }
      }
    }
  }
  return std::nullopt;
}

}  // namespace quantmill
