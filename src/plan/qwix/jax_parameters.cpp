#include "plan/qwix/jax_parameters.h"

#include <algorithm>
#include <set>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/pattern.h"
#include "plan/qwix/parameter_sources.h"

namespace quantmill {

namespace {

[[noreturn]] void fail(const std::string& message) {
  throw Error(ErrorCode::kInput, message);
}

// A weight that a rule takes.
struct Taker {
  const JaxRule* rule = nullptr;
  std::size_t position = 0;
  NameBinding binding;
};

std::string without_prefix(const std::string& name, const std::vector<std::string>& prefixes) {
  std::size_t longest = 0;
  for (const std::string& prefix : prefixes) {
    if (name.starts_with(prefix)) {
      longest = std::max(longest, prefix.size());
    }
  }
  return name.substr(longest);
}

RuleNames names_of(const Taker& taker, const Parameters& parameters) {
  RuleNames names(parameters);
  for (const auto& [placeholder, text] : taker.binding) {
    if (is_number(text) && text.size() < 19) {
      names.set(placeholder, std::uint64_t{std::stoull(text)});
    } else {
      names.set(placeholder, text);
    }
  }
  for (const auto& [index, expression] : taker.rule->at) {
    names.set(index, names.number(expression));
  }
  return names;
}

// The rules that take a weight: the first that fits, or if it takes a part only, all that do.
std::vector<Taker> find_takers(const JaxModel& model,
                               const Parameters& parameters,
                               const std::string& name) {
  std::vector<Taker> takers;
  for (const JaxRule& rule : model.rules) {
    if (!takers.empty() && !rule.take) {
      continue;
    }
    for (std::size_t position = 0; position < rule.from.size(); ++position) {
      std::optional<NameBinding> binding = rule.from[position].match(name);
      if (!binding) {
        continue;
      }
      Taker taker{&rule, position, std::move(*binding)};
      if (rule.condition.empty() || names_of(taker, parameters).number(rule.condition) != 0) {
        takers.push_back(std::move(taker));
        break;
      }
    }
    if (!takers.empty() && !takers.front().rule->take) {
      break;
    }
  }
  return takers;
}

// The axes of a dimension of `size` elements: at most one of them is not stated.
std::vector<SizedAxis> size_axes(const AxisGroup& group,
                                 std::uint64_t size,
                                 const JaxRule& rule,
                                 const RuleNames& names) {
  std::vector<SizedAxis> axes;
  std::optional<std::size_t> unknown;
  std::uint64_t known = 1;
  for (const std::string& axis : group) {
    const auto stated =
        std::ranges::find(rule.sizes, axis, &std::pair<std::string, std::string>::first);
    axes.push_back({axis, 1});
    if (stated != rule.sizes.end()) {
      axes.back().size = names.number(stated->second);
      known = checked_multiply(known, axes.back().size).value_or(0);
    } else if (unknown) {
      fail(fmt::format(
          "the sizes of {} and {} are both open; state one in \"sizes\"", group[*unknown], axis));
    } else {
      unknown = axes.size() - 1;
    }
  }
  const bool fits = known != 0 && (unknown ? size % known == 0 : size == known);
  if (!fits) {
    fail(fmt::format("a dimension of {} does not hold ({}): the stated sizes make {}",
                     size,
                     fmt::join(group, " "),
                     known));
  }
  if (unknown) {
    axes[*unknown].size = size / known;
  }
  return axes;
}

std::size_t dimension_of(const AxisPattern& axes, const std::string& axis) {
  for (std::size_t i = 0; i < axes.from.size(); ++i) {
    if (axes.from[i] == AxisGroup{axis} ||
        std::ranges::find(axes.from[i], axis) != axes.from[i].end()) {
      return i;
    }
  }
  fail(fmt::format("\"take\" names {}, which is no axis of the left side", axis));
}

class ParameterFinder {
 public:
  ParameterFinder(const JaxModel& model,
                  const Parameters& parameters,
                  const std::vector<SourceWeight>& weights,
                  const std::vector<bool>& wanted)
      : model_(model), parameters_(parameters), weights_(weights), wanted_(wanted) {}

  JaxParameters find() {
    for (std::size_t weight = 0; weight < weights_.size(); ++weight) {
      if (!wanted_[weight]) {
        continue;
      }
      const std::string name = without_prefix(weights_[weight].entry.name, model_.prefixes);
      const bool is_left_out = std::ranges::any_of(model_.left_out, [&](const std::string& text) {
        return matches_pattern(text, name) || matches_pattern(text, weights_[weight].entry.name);
      });
      if (is_left_out) {
        result_.left_out.push_back(weight);
        continue;
      }
      const std::vector<Taker> takers = find_takers(model_, parameters_, name);
      if (takers.empty()) {
        fail(
            fmt::format("tensor {}: the JAX model {} has no parameter for it; name one in "
                        "\"weights\" of a file for --jax-model, or pass it over in \"leave_out\"",
                        weights_[weight].entry.name,
                        model_.name));
      }
      for (const Taker& taker : takers) {
        with_context(fmt::format("tensor {}: rule for {}",
                                 weights_[weight].entry.name,
                                 taker.rule->from[taker.position].text()),
                     [&] { add(weight, taker); });
      }
    }
    for (std::size_t i = 0; i < result_.parameters.size(); ++i) {
      with_context(fmt::format("parameter {}", result_.parameters[i].name),
                   [&] { complete_parameter(*rules_[i], weights_, result_.parameters[i]); });
    }
    check_names();
    return std::move(result_);
  }

 private:
  void add(std::size_t weight, const Taker& taker) {
    const JaxRule& rule = *taker.rule;
    const std::vector<std::uint64_t>& shape = weights_[weight].entry.shape;
    const AxisPattern axes = axes_of(rule, shape.size());
    if (axes.from.size() != shape.size()) {
      fail(fmt::format(
          "its axes are {}, but the shape is [{}]", axes.from.size(), fmt::join(shape, ", ")));
    }
    RuleNames names = names_of(taker, parameters_);
    for (std::size_t i = 0; i < shape.size(); ++i) {
      if (axes.from[i].size() == 1) {
        names.set(axes.from[i].front(), shape[i]);
      }
    }
    ParameterSource source;
    source.weight = weight;
    source.position = taker.position;
    std::vector<std::uint64_t> taken = shape;
    if (rule.take) {
      take_part(rule, axes, names, taken, source);
    }
    for (std::size_t i = 0; i < shape.size(); ++i) {
      source.dimensions.push_back(size_axes(axes.from[i], taken[i], rule, names));
    }
    NameBinding binding = taker.binding;
    for (const auto& [index, expression] : rule.at) {
      binding.emplace_back(index, std::to_string(names.number(expression)));
    }
    for (const std::string& axis : axes.stacked()) {
      if (axis == kPartAxis) {
        source.at[axis] = taker.position;
        continue;
      }
      const std::string index = fill_in(fmt::format("{{{}}}", axis), binding);
      if (!is_number(index) || index.size() > 9) {
        fail(fmt::format("{} is \"{}\", and tensors are stacked by number", axis, index));
      }
      source.at[axis] = std::stoull(index);
    }
    JaxParameter& parameter = parameter_of(fill_in(rule.to, binding), rule);
    if (!rule.block.empty()) {
      parameter.block = names.number(rule.block);
    }
    parameter.sources.push_back(std::move(source));
  }

  static void take_part(const JaxRule& rule,
                        const AxisPattern& axes,
                        const RuleNames& names,
                        std::vector<std::uint64_t>& shape,
                        ParameterSource& source) {
    const std::size_t dimension = dimension_of(axes, rule.take->axis);
    source.taken_dimension = dimension;
    source.taken_start = names.number(rule.take->start);
    const std::uint64_t size = names.number(rule.take->size);
    if (source.taken_start > shape[dimension] || size > shape[dimension] - source.taken_start ||
        size == 0) {
      fail(fmt::format("{} elements from {} on are not in a dimension of {}",
                       size,
                       source.taken_start,
                       shape[dimension]));
    }
    shape[dimension] = size;
  }

  JaxParameter& parameter_of(const std::string& name, const JaxRule& rule) {
    const auto [found, is_new] = by_name_.try_emplace(name, result_.parameters.size());
    if (is_new) {
      result_.parameters.emplace_back().name = name;
      result_.parameters.back().opaque = rule.opaque;
      rules_.push_back(&rule);
    }
    if (rules_[found->second] != &rule) {
      fail(fmt::format("makes the parameter {}, which the rule for {} makes too",
                       name,
                       rules_[found->second]->from.front().text()));
    }
    return result_.parameters[found->second];
  }

  // No parameter may be where others are below it.
  void check_names() const {
    std::set<std::string> names;
    for (const JaxParameter& parameter : result_.parameters) {
      names.insert(parameter.name);
    }
    for (const std::string& name : names) {
      for (std::size_t dot = name.find('.'); dot != std::string::npos;
           dot = name.find('.', dot + 1)) {
        if (names.contains(name.substr(0, dot))) {
          fail(fmt::format("parameter {}: {} is a parameter too, so it can't hold others",
                           name,
                           name.substr(0, dot)));
        }
      }
    }
  }

  const JaxModel& model_;
  const Parameters& parameters_;
  const std::vector<SourceWeight>& weights_;
  const std::vector<bool>& wanted_;
  JaxParameters result_;
  std::vector<const JaxRule*> rules_;  // of each parameter
  std::unordered_map<std::string, std::size_t> by_name_;
};

}  // namespace

std::vector<std::uint64_t> JaxParameter::shape() const {
  std::vector<std::uint64_t> shape;
  for (const std::vector<SizedAxis>& dimension : dimensions) {
    shape.push_back(1);
    for (const SizedAxis& axis : dimension) {
      shape.back() *= axis.size;
    }
  }
  return shape;
}

JaxParameters find_jax_parameters(const JaxModel& model,
                                  const std::string& config_json,
                                  const std::vector<SourceWeight>& weights,
                                  const std::vector<bool>& wanted) {
  const Parameters parameters =
      read_parameters(model.parameters,
                      parse_json(config_json, "config.json", ErrorCode::kInput),
                      model.config_sections);
  return ParameterFinder(model, parameters, weights, wanted).find();
}

}  // namespace quantmill
