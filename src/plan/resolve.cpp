#include "plan/architecture.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/checked.h"
#include "base/error.h"
#include "plan/architecture_file.h"
#include "plan/fold_groups.h"
#include "plan/json_text.h"
#include "plan/parameters.h"
#include "plan/placeholders.h"

namespace quantmill {

namespace {

// How many names, optional ones included, may be looked up for each tensor that is there, and at
// least. Beyond that the layer counts of config.json have nothing to do with the checkpoint, and
// looking would take for ever.
constexpr std::uint64_t kMaxNamesPerTensor = 100;
constexpr std::uint64_t kMinNamesLimit = 100'000;
constexpr std::string_view kLayer = "layer";

[[noreturn]] void fail(const std::string& message) {
  throw Error(ErrorCode::kInput, message);
}

std::string describe_shape(const std::vector<std::uint64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

// Matches one architecture against one list of tensors, step by step.
class Resolver {
 public:
  Resolver(const ArchitectureFile& file,
           Parameters parameters,
           const std::vector<SourceTensor>& tensors)
      : file_(file), parameters_(std::move(parameters)), tensors_(tensors) {
    for (const auto& [index, expression] : file_.indices) {
      counts_[index] = evaluate(expression, parameters_);
    }
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      by_stored_name_.emplace(tensors_[i].entry.name, i);
      ModelTensor& tensor = result_.tensors.emplace_back();
      tensor.name = tensors_[i].entry.name;
      tensor.module = module_of(tensor.name);
    }
    mentioned_.resize(tensors_.size(), false);
  }

  ResolvedArchitecture resolve(bool allow_unknown) {
    result_.name = file_.name;
    result_.extra_exclude = file_.extra_exclude;
    if (!file_.server_layer_offset.empty()) {
      result_.server_layer_offset = layer_offset();
    }
    for (const TensorSpec& spec : file_.tensors) {
      add_tensors(spec);
    }
    if (!allow_unknown) {
      check_all_mentioned();
    }
    add_activations();
    result_.fold_groups = join_activations(result_.activations, result_.tensors);
    for (const std::string& name : file_.known_statistics) {
      for_each_binding(placeholders(name), {}, [&](const Binding& binding) {
        result_.known_statistics.push_back(substitute(name, binding));
      });
    }
    return std::move(result_);
  }

 private:
  static std::string module_of(const std::string& tensor) {
    const std::string_view suffix = ".weight";
    return tensor.size() > suffix.size() && tensor.ends_with(suffix)
               ? tensor.substr(0, tensor.size() - suffix.size())
               : tensor;
  }

  // An offset that is one optional parameter may be unknown.
  std::optional<std::uint64_t> layer_offset() const {
    const auto parameter = parameters_.find(file_.server_layer_offset);
    return parameter != parameters_.end() ? parameter->second
                                          : evaluate(file_.server_layer_offset, parameters_);
  }

  // Calls `body` with every combination of the indices that `fixed` does not bind; the last one
  // runs fastest.
  template <typename Body>
  void for_each_binding(const std::vector<std::string>& indices,
                        const Binding& fixed,
                        Body&& body) {
    Binding binding = fixed;
    std::vector<std::uint64_t> counts;
    for (const std::string& index : indices) {
      const bool bound = std::any_of(
          fixed.begin(), fixed.end(), [&](const auto& entry) { return entry.first == index; });
      if (!bound) {
        binding.emplace_back(index, 0);
        counts.push_back(counts_.at(index));
      }
    }
    if (std::find(counts.begin(), counts.end(), 0U) != counts.end()) {
      return;
    }
    while (true) {
      if (++num_names_ > std::max(kMinNamesLimit, kMaxNamesPerTensor * tensors_.size())) {
        fail(
            fmt::format("{} tensors are there, and {} names follow from config.json and the "
                        "architecture so far; "
                        "layer counts must be wrong",
                        tensors_.size(),
                        num_names_));
      }
      body(std::as_const(binding));
      std::size_t i = counts.size();
      while (i > 0 && ++binding[fixed.size() + i - 1].second == counts[i - 1]) {
        binding[fixed.size() + i - 1].second = 0;
        --i;
      }
      if (i == 0) {
        return;
      }
    }
  }

  std::optional<std::size_t> find_stored(const TensorSpec& spec, const Binding& binding) const {
    std::vector<std::string> names = {substitute(spec.name, binding)};
    for (const std::string& alias : spec.aliases) {
      names.push_back(substitute(alias, binding));
    }
    for (const std::string& name : names) {
      for (const std::string& stored : {name, file_.optional_prefix + name}) {
        const auto found = by_stored_name_.find(stored);
        if (found != by_stored_name_.end()) {
          return found->second;
        }
      }
    }
    return std::nullopt;
  }

  void add_tensors(const TensorSpec& spec) {
    for_each_binding(placeholders(spec.name), {}, [&](const Binding& binding) {
      const std::string name = substitute(spec.name, binding);
      const std::optional<std::size_t> stored = find_stored(spec, binding);
      if (!by_name_.emplace(name, stored).second || (stored && mentioned_[*stored])) {
        fail(fmt::format("two entries of \"tensors\" stand for {}", name));
      }
      if (!stored) {
        if (!spec.optional) {
          fail(fmt::format(
              "tensor {} is missing from the checkpoint{}", name, layers_hint(binding)));
        }
        return;
      }
      mentioned_[*stored] = true;
      describe_tensor(spec, binding, result_.tensors[*stored]);
      check_shape(spec, tensors_[*stored].entry);
    });
  }

  std::string layers_hint(const Binding& binding) const {
    for (const auto& [index, value] : binding) {
      if (index == kLayer) {
        return fmt::format(" (config.json states {} layers)", counts_.at(index));
      }
    }
    return "";
  }

  static void describe_tensor(const TensorSpec& spec, const Binding& binding, ModelTensor& tensor) {
    tensor.role = spec.role;
    tensor.quantizable = spec.quantizable;
    tensor.fused_group = substitute(spec.fused_group, binding);
    tensor.exclude_all = spec.exclude_all;
    tensor.exclude_layers = spec.exclude_layers;
    for (const auto& [index, value] : binding) {
      if (index == kLayer) {
        tensor.layer = value;
      }
    }
  }

  void check_shape(const TensorSpec& spec, const TensorEntry& entry) const {
    if (spec.role == TensorRole::kLinear && entry.shape.size() != 2) {
      fail(fmt::format("tensor {} has shape {}, wanted a matrix [out, in]",
                       entry.name,
                       describe_shape(entry.shape)));
    }
    if (!spec.shape) {
      return;
    }
    std::vector<std::uint64_t> wanted;
    for (const std::string& expression : *spec.shape) {
      wanted.push_back(with_context(fmt::format("shape of tensor {}", entry.name),
                                    [&] { return evaluate(expression, parameters_); }));
    }
    if (wanted != entry.shape) {
      fail(fmt::format("tensor {} has shape {}, wanted {} = [{}] by config.json",
                       entry.name,
                       describe_shape(entry.shape),
                       describe_shape(wanted),
                       fmt::join(*spec.shape, ", ")));
    }
  }

  void check_all_mentioned() const {
    std::vector<std::string> unknown;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (!mentioned_[i]) {
        unknown.push_back(tensors_[i].entry.name);
      }
    }
    if (!unknown.empty()) {
      const std::size_t num_unknown = unknown.size();
      unknown.resize(std::min<std::size_t>(num_unknown, 3));
      fail(
          fmt::format("{} tensor{} of the checkpoint {} not known: {}{}. If they take no part in "
                      "what is quantized or scaled, "
                      "--allow-unknown copies them; otherwise describe them in a file for --arch",
                      num_unknown,
                      num_unknown == 1 ? "" : "s",
                      num_unknown == 1 ? "is" : "are",
                      fmt::join(unknown, ", "),
                      num_unknown > unknown.size() ? ", …" : ""));
    }
  }

  // Index of the tensor with this name of the architecture, or nothing for an optional one that is
  // not there.
  std::optional<std::size_t> find_tensor(const std::string& name) const {
    const auto found = by_name_.find(name);
    if (found == by_name_.end()) {
      fail(fmt::format("{} is not in \"tensors\"", name));
    }
    return found->second;
  }

  // Activations that stand one after the other and have the same indices are made layer by layer.
  void add_activations() {
    const std::vector<ActivationSpec>& specs = file_.activations;
    for (std::size_t begin = 0; begin < specs.size();) {
      const std::vector<std::string> indices = placeholders(specs[begin].name);
      std::size_t end = begin + 1;
      while (end < specs.size() && placeholders(specs[end].name) == indices) {
        ++end;
      }
      for_each_binding(indices, {}, [&](const Binding& binding) {
        for (std::size_t i = begin; i < end; ++i) {
          with_context(fmt::format("activation {}", substitute(specs[i].name, binding)),
                       [&] { add_activation(specs[i], binding); });
        }
      });
      begin = end;
    }
  }

  void add_activation(const ActivationSpec& spec, const Binding& binding) {
    Activation activation;
    activation.name = substitute(spec.name, binding);
    activation.statistics = substitute(spec.statistics, binding);
    activation.statistics_optional = spec.statistics_optional;
    activation.no_fold_reason = spec.no_fold_reason;
    for (const std::string& pattern : spec.readers) {
      for_each_binding(placeholders(pattern), binding, [&](const Binding& full) {
        if (const std::optional<std::size_t> reader = find_tensor(substitute(pattern, full))) {
          activation.readers.push_back(*reader);
        }
      });
    }
    if (activation.readers.empty()) {
      return;  // all optional, and none is in this checkpoint
    }
    set_columns(spec, activation);
    if (spec.producer) {
      set_producer(*spec.producer, binding, activation);
    }
    result_.activations.push_back(std::move(activation));
  }

  void set_columns(const ActivationSpec& spec, Activation& activation) const {
    if (spec.columns) {
      activation.columns = {evaluate(spec.columns->groups, parameters_),
                            evaluate(spec.columns->repeats, parameters_),
                            evaluate(spec.columns->size, parameters_)};
    }
    const std::optional<std::uint64_t> channels =
        checked_multiply(activation.columns.groups, activation.columns.size);
    if (!channels || !checked_multiply(*channels, activation.columns.repeats)) {
      fail("the number of its columns does not fit 64 bits");
    }
    for (const std::size_t reader : activation.readers) {
      const TensorEntry& entry = tensors_[reader].entry;
      if (result_.tensors[reader].role != TensorRole::kLinear) {
        fail(fmt::format("its reader {} is not a linear", entry.name));
      }
      if (activation.columns.size == 0 && !spec.columns) {
        activation.columns.size = entry.shape[1];
      }
      if (entry.shape[1] == 0 || entry.shape[1] != activation.columns.num_columns()) {
        fail(fmt::format("its reader {} has {} columns, wanted {}",
                         entry.name,
                         entry.shape[1],
                         activation.columns.num_columns()));
      }
    }
  }

  void set_producer(const ProducerSpec& spec,
                    const Binding& binding,
                    Activation& activation) const {
    const std::string name = substitute(spec.tensor, binding);
    const std::optional<std::size_t> tensor = find_tensor(name);
    if (!tensor) {
      if (activation.no_fold_reason.empty()) {
        activation.no_fold_reason = fmt::format("its producer {} is not in this checkpoint", name);
      }
      return;
    }
    Producer producer{spec.kind, *tensor, std::nullopt};
    const TensorRole wanted =
        spec.kind == ProducerKind::kLinearRows ? TensorRole::kLinear : TensorRole::kNorm;
    if (result_.tensors[*tensor].role != wanted) {
      fail(fmt::format(
          "its producer {} is not a {}", name, wanted == TensorRole::kNorm ? "norm" : "linear"));
    }
    check_channels(*tensor, activation, spec.kind == ProducerKind::kLinearRows ? 2 : 1);
    if (!spec.bias.empty()) {
      producer.bias = find_tensor(substitute(spec.bias, binding));
      if (producer.bias) {
        check_channels(*producer.bias, activation, 1);
      }
    }
    activation.producer = producer;
  }

  void check_channels(std::size_t tensor,
                      const Activation& activation,
                      std::size_t dimensions) const {
    const TensorEntry& entry = tensors_[tensor].entry;
    if (entry.shape.size() != dimensions || entry.shape[0] != activation.columns.num_channels()) {
      fail(fmt::format("its producer {} has shape {}, wanted {} {}",
                       entry.name,
                       describe_shape(entry.shape),
                       activation.columns.num_channels(),
                       dimensions == 2 ? "rows" : "values"));
    }
  }

  const ArchitectureFile& file_;
  Parameters parameters_;
  const std::vector<SourceTensor>& tensors_;
  std::map<std::string, std::uint64_t> counts_;  // of each index
  std::unordered_map<std::string, std::size_t> by_stored_name_;
  std::unordered_map<std::string, std::optional<std::size_t>> by_name_;  // name in the architecture
  std::vector<bool> mentioned_;
  std::uint64_t num_names_ = 0;
  ResolvedArchitecture result_;
};

}  // namespace

ResolvedArchitecture resolve_architecture(const std::string& json,
                                          const std::string& config_json,
                                          const std::vector<SourceTensor>& tensors,
                                          bool allow_unknown) {
  const ArchitectureFile file = parse_architecture_file(json);
  const JsonValue config = parse_json(config_json, "config.json", ErrorCode::kInput);
  return with_context(fmt::format("architecture {}", file.name), [&] {
    return Resolver(file, read_parameters(file.parameters, config), tensors).resolve(allow_unknown);
  });
}

ResolvedArchitecture resolve_architecture(const std::string& json,
                                          const std::string& config_json,
                                          const Checkpoint& checkpoint,
                                          bool allow_unknown) {
  return resolve_architecture(json, config_json, checkpoint.tensors(), allow_unknown);
}

}  // namespace quantmill
