#pragma once

// Recipes that are built in, for --recipe NAME.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quantmill {

struct Preset {
  std::string_view name;
  std::string_view purpose;
  std::string_view json;  // as a recipe file; what it does not say follows as ever
};

// In the order in which people should look at them.
const std::vector<Preset>& presets();

// kUsage naming the presets, unless `name` is one.
const Preset& find_preset(const std::string& name);

}  // namespace quantmill
