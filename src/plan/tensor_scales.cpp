#include "plan/tensor_scales.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/pattern.h"
#include "plan/kv_scales.h"

namespace quantmill {
namespace {

// Sets of tensors, each named by its first.
class TensorSets {
 public:
  explicit TensorSets(std::size_t num_tensors) : first_(num_tensors) {
    std::iota(first_.begin(), first_.end(), std::size_t{0});
  }

  [[nodiscard]] std::size_t first_of(std::size_t tensor) const {
    while (first_[tensor] != tensor) {
      tensor = first_[tensor];
    }
    return tensor;
  }

  void join(std::size_t a, std::size_t b) {
    const std::size_t first = first_of(a);
    const std::size_t second = first_of(b);
    first_[std::max(first, second)] = std::min(first, second);
  }

 private:
  std::vector<std::size_t> first_;
};

std::string parent_of(const std::string& module) {
  return module.substr(0, module.find_last_of('.') + 1);
}

// Tensors that must have one scale of the whole.
TensorSets fused_sets(const ResolvedArchitecture& architecture) {
  TensorSets sets(architecture.tensors.size());
  for (const Activation& activation : architecture.activations) {
    std::map<std::pair<std::string, std::string>, std::size_t> firsts;
    for (const std::size_t reader : activation.readers) {
      const ModelTensor& tensor = architecture.tensors[reader];
      if (!tensor.fused_group.empty() && !tensor.slice) {
        const auto key = std::pair(tensor.fused_group, parent_of(tensor.module()));
        sets.join(firsts.try_emplace(key, reader).first->second, reader);
      }
    }
  }
  return sets;
}

// The largest |x| that an activation's record has; nothing if it has none.
bool has_maxima(const Statistics& statistics, const Activation& activation) {
  if (activation.statistics.empty()) {
    return false;
  }
  const std::vector<double>& absmax = statistics.at(activation.statistics).absmax;
  return absmax.size() == activation.reader_columns &&
         std::ranges::any_of(absmax, [](double value) { return value > 0; });
}

// The first tensor with an input scale whose input's maxima are known neither from its own record
// nor from a peer's; empty if there is none.
std::string find_without_maxima(const Statistics& statistics, const Plan& plan) {
  const ResolvedArchitecture& architecture = plan.architecture;
  std::set<std::string> known;
  for (const Activation& activation : architecture.activations) {
    if (has_maxima(statistics, activation)) {
      for (const std::size_t reader : activation.readers) {
        known.insert(peer_family(architecture.tensors[reader].name));
      }
    }
  }
  for (std::size_t index = 0; index < plan.choices.size(); ++index) {
    const std::string& name = architecture.tensors[index].name;
    const std::optional<Scheme> scheme = plan.choices[index].scheme;
    if (scheme && may_have_input_scale(*scheme) && !known.contains(peer_family(name))) {
      return name;
    }
  }
  return "";
}

}  // namespace

std::string peer_family(const std::string& name) {
  std::string family;
  bool is_first = true;
  for (std::size_t begin = 0; begin < name.size();) {
    const std::size_t end = std::min(name.find_first_of(".[]", begin), name.size());
    const std::string part = name.substr(begin, end - begin);
    family += is_number(part) && !is_first ? "#" : part;
    is_first = is_first && !is_number(part);
    if (end < name.size()) {
      family += name[end];
    }
    begin = end + 1;
  }
  return family;
}

void share_tensor_scales(Plan& plan) {
  const TensorSets sets = fused_sets(plan.architecture);
  std::map<std::size_t, std::size_t> first_work;  // by the set's first tensor
  for (std::size_t index = 0; index < plan.tensors.size(); ++index) {
    TensorWork& work = plan.tensors[index];
    work.shares_scale_with =
        work.action == Action::kKvScale
            ? index  // of the cache, not of the weight that it is named after
            : first_work.try_emplace(sets.first_of(work.tensor), index).first->second;
  }
}

void decide_input_scales(const Statistics& statistics, Plan& plan) {
  InputScales& wanted = plan.recipe.input_scales;
  if (wanted == InputScales::kNone) {
    return;
  }
  if (!takes_input_scales(plan.recipe)) {
    wanted = InputScales::kNone;
    return;
  }
  const std::string missing = find_without_maxima(statistics, plan);
  if (missing.empty()) {
    wanted = InputScales::kStatic;
    return;
  }
  const std::string reason =
      fmt::format("the statistics have no maxima (absmax) of what {} reads", missing);
  if (wanted == InputScales::kStatic) {
    throw Error(ErrorCode::kInput, reason + "; record them, or use --input-scales none");
  }
  wanted = InputScales::kNone;
  if (!statistics.empty()) {
    plan.notices.push_back("no scales of activations are written: " + reason);
  }
}

InputMaxima input_maxima(const Plan& plan, const Statistics& statistics) {
  InputMaxima maxima;
  for (const KvScale& scale : plan.kv_scales) {
    if (auto found = cache_maxima(statistics, plan.architecture, scale.maxima)) {
      maxima[scale.maxima] = std::move(*found);
    }
  }
  if (plan.recipe.input_scales != InputScales::kStatic) {
    return maxima;
  }
  for (const Activation& activation : plan.architecture.activations) {
    if (has_maxima(statistics, activation)) {
      maxima[activation.name] = statistics.at(activation.statistics).absmax;
    }
  }
  return maxima;
}

}  // namespace quantmill
