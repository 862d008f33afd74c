#include "plan/copied_parts.h"

#include <algorithm>
#include <utility>

#include "base/pattern.h"

namespace quantmill {

CopiedParts::CopiedParts(std::vector<std::string> copied,
                         std::vector<PartLinears> linears,
                         const std::vector<std::string>& prefixes)
    : copied_(std::move(copied)), linears_(std::move(linears)), prefixes_(prefixes) {
  prefixes_.emplace_back();
  std::ranges::stable_sort(prefixes_, std::ranges::greater(), &std::string::size);
}

bool CopiedParts::describe(ModelTensor& tensor) const {
  const std::optional<std::string> pattern = find(copied_, tensor.name);
  if (!pattern) {
    return false;
  }
  tensor.copied_by = *pattern;
  for (const PartLinears& linears : linears_) {
    if (tensor.shape.size() == 2 && find(linears.patterns, tensor.name)) {
      tensor.role = TensorRole::kLinear;
      tensor.quantizable = true;
      tensor.part = linears.part;
      tensor.fused_group = module_around(tensor.module);
      break;
    }
  }
  return true;
}

std::optional<std::string> CopiedParts::find(const std::vector<std::string>& patterns,
                                             const std::string& name) const {
  for (const std::string& pattern : patterns) {
    for (const std::string& prefix : prefixes_) {
      if (matches_pattern(prefix + pattern, name)) {
        return pattern;
      }
    }
  }
  return std::nullopt;
}

std::string CopiedParts::module_around(const std::string& module) const {
  const auto prefix = std::ranges::find_if(
      prefixes_, [&](const std::string& candidate) { return module.starts_with(candidate); });
  std::string around = module.substr(prefix->size());
  around.resize(std::min(around.rfind('.'), around.size()));
  const std::size_t number = around.rfind('.');
  if (number != std::string::npos && is_number(around.substr(number + 1))) {
    around.resize(number);  // of one expert: all of them
  }
  return around;
}

}  // namespace quantmill
