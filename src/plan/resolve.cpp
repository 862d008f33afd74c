#include "plan/architecture.h"

#include <algorithm>
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
#include "plan/tensor_matcher.h"

namespace quantmill {

namespace {

[[noreturn]] void fail(const std::string& message) {
  throw Error(ErrorCode::kInput, message);
}

// Matches one architecture against one list of tensors, step by step.
class Resolver {
 public:
  Resolver(const ArchitectureFile& file,
           Parameters parameters,
           const std::vector<SourceWeight>& stored)
      : file_(file),
        parameters_(std::move(parameters)),
        stored_(stored),
        matcher_(file, parameters_, stored) {}

  ArchitectureMatches resolve() {
    ResolvedArchitecture& result = matches_.architecture;
    matcher_.match();
    matches_.copied = matcher_.copied();
    matches_.unknown = matcher_.unknown();
    matches_.variants = matcher_.present_variants();
    result.name = file_.name;
    result.extra_exclude = all_of(file_.extra_exclude);
    result.prefixes = file_.prefixes;
    result.prefixes.insert(result.prefixes.begin(), "");
    result.server_layer_offset = file_.server_layer_offset.empty() ? 0 : layer_offset();
    result.tied = find_tied();
    add_activations();
    for (const PlaceInPart& layer : matcher_.part_layers()) {
      add_activations_of(layer);
    }
    result.tensors = std::move(matcher_.tensors());
    matches_.tensors = std::move(matcher_.entries());
    result.fold_groups = join_activations(result.activations, result.tensors);
    result.known_statistics = all_of(file_.known_statistics);
    return std::move(matches_);
  }

 private:
  // Names with every value of their placeholders.
  std::vector<std::string> all_of(const std::vector<std::string>& patterns) {
    std::vector<std::string> names;
    for (const std::string& pattern : patterns) {
      matcher_.for_each_binding(placeholders(pattern), {}, [&](const Binding& binding) {
        names.push_back(substitute(pattern, binding));
      });
    }
    return names;
  }

  // An offset that is one optional parameter may be unknown.
  std::optional<std::uint64_t> layer_offset() const {
    const auto parameter = parameters_.find(file_.server_layer_offset);
    if (parameter != parameters_.end() && !parameter->second.value) {
      return std::nullopt;
    }
    return matcher_.number(file_.server_layer_offset, {});
  }

  std::optional<TiedTensors> find_tied() {
    if (!file_.tied) {
      return std::nullopt;
    }
    const bool is_tied = matcher_.holds(file_.tied->condition, {});
    const std::optional<std::size_t> kept = matcher_.find(file_.tied->kept);
    const std::optional<std::size_t> dropped = matcher_.find(file_.tied->dropped);
    if (!is_tied && (kept.has_value() != dropped.has_value())) {
      fail(
          fmt::format("config.json does not say that {} and {} are one tensor ({}), but only {} is "
                      "in the checkpoint; a shard is missing, or the setting is wrong",
                      file_.tied->kept,
                      file_.tied->dropped,
                      file_.tied->condition,
                      kept ? file_.tied->kept : file_.tied->dropped));
    }
    if (!is_tied || !kept || !dropped) {
      return std::nullopt;
    }
    const TensorEntry& a = stored_[matcher_.tensors()[*kept].stored].entry;
    const TensorEntry& b = stored_[matcher_.tensors()[*dropped].stored].entry;
    if (a.shape != b.shape || a.dtype != b.dtype) {
      fail(
          fmt::format("config.json says that {} and {} are one tensor ({}), but they differ in "
                      "shape or type; if they are two, set it to false",
                      a.name,
                      b.name,
                      file_.tied->condition));
    }
    return TiedTensors{*kept, *dropped};
  }

  // Activations that stand one after the other and have the same indices are made layer by layer.
  void add_activations() {
    const std::vector<ActivationSpec>& specs = file_.activations;
    for (const ActivationSpec& spec : specs) {
      matches_.activations.push_back({spec.name, 0, 0});
    }
    for (std::size_t begin = 0; begin < specs.size();) {
      const std::vector<std::string> indices = placeholders(specs[begin].name);
      std::size_t end = begin + 1;
      while (end < specs.size() && placeholders(specs[end].name) == indices) {
        ++end;
      }
      matcher_.for_each_binding(indices, {}, [&](const Binding& binding) {
        for (std::size_t i = begin; i < end; ++i) {
          with_context(fmt::format("activation {}", substitute(specs[i].name, binding)), [&] {
            const bool found = matcher_.holds(specs[i].condition, binding) &&
                               add_activation(specs[i], {binding, "", ""});
            ++(found ? matches_.activations[i].num_found : matches_.activations[i].num_absent);
          });
        }
      });
      begin = end;
    }
  }

  // Those of the model's own layers, in a layer of a part. Conditions are of the model's layers;
  // here an activation is there if its readers are.
  void add_activations_of(const PlaceInPart& layer) {
    for (const ActivationSpec& spec : file_.activations) {
      const std::optional<std::string> lead = lead_of(layer.layer, spec.name);
      if (!lead || !is_inside_layers(spec)) {
        continue;
      }
      const Binding fixed = {{"layer", layer.number}};
      matcher_.for_each_binding(placeholders(spec.name), fixed, [&](const Binding& binding) {
        const Place place{binding, *lead, layer.part};
        with_context(fmt::format("activation {}", place.name_of(spec.name)),
                     [&] { add_activation(spec, place); });
      });
    }
  }

  // Whether a layer has all of it.
  static bool is_inside_layers(const ActivationSpec& spec) {
    const auto is_inside = [](const std::string& name) {
      return name.find("{layer}") != std::string::npos;
    };
    return std::ranges::all_of(spec.readers, is_inside) &&
           (!spec.producer || is_inside(spec.producer->tensor));
  }

  // Where an activation is.
  struct Place {
    Binding binding;
    std::string lead;  // before all its names: "mtp."
    std::string part;

    [[nodiscard]] std::string name_of(const std::string& pattern) const {
      return lead + substitute(pattern, binding);
    }
  };

  // False if none of its readers is in this checkpoint.
  bool add_activation(const ActivationSpec& spec, const Place& place) {
    const Binding& binding = place.binding;
    Activation activation;
    activation.name = place.name_of(spec.name);
    activation.part = place.part;
    activation.statistics_optional = spec.statistics_optional;
    activation.no_fold_reason = spec.no_fold_reason;
    activation.split_over_ranks = spec.partition == Partition::kRow;
    for (const std::string& name : spec.statistics.value_or(std::vector<std::string>())) {
      activation.recorded_as.push_back(place.name_of(name));
    }
    const bool named_by_readers = !spec.statistics || !spec.statistics->empty();
    for (const std::string& pattern : spec.readers) {
      matcher_.for_each_binding(placeholders(pattern), binding, [&](const Binding& full) {
        const std::string name = place.lead + substitute(pattern, full);
        if (const std::optional<std::size_t> reader = matcher_.find(name)) {
          activation.readers.push_back(*reader);
          if (named_by_readers && !matcher_.tensors()[*reader].slice) {
            activation.recorded_as.push_back(module_of(name));
          }
        }
      });
    }
    if (activation.readers.empty()) {
      return false;
    }
    set_columns(spec, binding, activation);
    if (spec.producer) {
      set_producer(*spec.producer, place, activation);
    }
    matches_.architecture.activations.push_back(std::move(activation));
    return true;
  }

  void set_columns(const ActivationSpec& spec, const Binding& binding, Activation& activation) {
    ColumnMap& columns = activation.columns;
    if (spec.columns) {
      const auto number = [&](const std::string& expression, std::uint64_t otherwise) {
        return expression.empty() ? otherwise : matcher_.number(expression, binding);
      };
      columns = {number(spec.columns->start, 0),
                 number(spec.columns->groups, 1),
                 number(spec.columns->repeats, 1),
                 number(spec.columns->size, 0)};
      const std::optional<std::uint64_t> channels = checked_multiply(columns.groups, columns.size);
      const std::optional<std::uint64_t> width =
          channels ? checked_multiply(*channels, columns.repeats) : channels;
      if (!width || !checked_add(*width, columns.start)) {
        fail("the number of its columns does not fit 64 bits");
      }
    }
    for (const std::size_t reader : activation.readers) {
      const ModelTensor& tensor = matcher_.tensors()[reader];
      if (tensor.role != TensorRole::kLinear) {
        fail(fmt::format("its reader {} is not a linear", tensor.name));
      }
      const std::uint64_t width = tensor.in_features();
      if (activation.reader_columns == 0) {
        activation.reader_columns = width;
      }
      if (columns.size == 0 && !spec.columns) {
        columns.size = width;
      }
      const bool is_part = spec.columns && !spec.columns->start.empty();
      const bool fits = is_part ? width == activation.reader_columns && columns.end() <= width
                                : width == columns.num_columns();
      if (width == 0 || columns.num_columns() == 0 || !fits) {
        fail(fmt::format("its reader {} has {} columns, wanted {}{}",
                         tensor.name,
                         width,
                         is_part ? "at least " : "",
                         columns.end()));
      }
    }
  }

  void set_producer(const ProducerSpec& spec, const Place& place, Activation& activation) {
    const Binding& binding = place.binding;
    const std::string name = place.name_of(spec.tensor);
    const std::optional<std::size_t> tensor = matcher_.find(name);
    if (!tensor) {
      if (activation.no_fold_reason.empty()) {
        activation.no_fold_reason = fmt::format("its producer {} is not in this checkpoint", name);
      }
      return;
    }
    const bool is_rows = spec.kind == ProducerKind::kLinearRows;
    const ModelTensor& found = matcher_.tensors()[*tensor];
    if (found.role != (is_rows ? TensorRole::kLinear : TensorRole::kNorm)) {
      fail(fmt::format("its producer {} is not a {}", name, is_rows ? "linear" : "norm"));
    }
    if (!is_rows && found.shape.size() != 1) {
      fail(fmt::format(
          "its producer {} has {} dimensions, wanted one", found.name, found.shape.size()));
    }
    Producer producer{spec.kind, *tensor, std::nullopt, {}};
    const std::uint64_t rows = is_rows ? found.out_features() : found.shape[0];
    producer.rows = spec.range ? evaluate_range(*spec.range,
                                                [&](const std::string& expression) {
                                                  return matcher_.number(expression, binding);
                                                })
                               : RowRange{0, 1, rows, rows};
    check_channels(found.name, rows, producer.rows, activation);
    if (!spec.bias.empty()) {
      producer.bias = matcher_.find(place.name_of(spec.bias));
      if (producer.bias) {
        const ModelTensor& bias = matcher_.tensors()[*producer.bias];
        if (bias.shape.size() != 1 || bias.shape[0] != rows) {
          fail(fmt::format(
              "the bias {} of its producer {} must have {} values", bias.name, found.name, rows));
        }
      }
    }
    activation.producer = producer;
  }

  // Whether the rows are there, each once, one for each channel.
  static void check_channels(const std::string& name,
                             std::uint64_t num_rows,
                             const RowRange& rows,
                             const Activation& activation) {
    const std::uint64_t channels = activation.columns.num_channels();
    const std::optional<std::uint64_t> count = checked_multiply(rows.groups, rows.size);
    if (!count || *count != channels) {
      fail(fmt::format("its producer {} makes {} rows of {}, wanted {}",
                       name,
                       count ? *count : UINT64_MAX,
                       num_rows,
                       channels));
    }
    if (!is_range_of(rows, num_rows)) {
      fail(
          fmt::format("its producer {} has {} rows, and the range goes beyond them or takes some "
                      "twice",
                      name,
                      num_rows));
    }
  }

  const ArchitectureFile& file_;
  Parameters parameters_;
  const std::vector<SourceWeight>& stored_;
  TensorMatcher matcher_;
  ArchitectureMatches matches_;
};

void check_all_known(std::vector<std::string> unknown) {
  if (unknown.empty()) {
    return;
  }
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

ArchitectureMatches match_all(const std::string& json,
                              const std::string& config_json,
                              const std::vector<SourceTensor>& stored,
                              bool allow_unknown) {
  const ArchitectureFile file = parse_architecture_file(json);
  const JsonValue config = parse_json(config_json, "config.json", ErrorCode::kInput);
  return with_context(fmt::format("architecture {}", file.name), [&] {
    std::vector<SourceWeight> weights = find_weights(stored, config_json);
    ArchitectureMatches matches =
        Resolver(file, read_parameters(file.parameters, config, file.config_sections), weights)
            .resolve();
    matches.architecture.weights = std::move(weights);
    if (!allow_unknown) {
      check_all_known(matches.unknown);
    }
    return matches;
  });
}

}  // namespace

ResolvedArchitecture resolve_architecture(const std::string& json,
                                          const std::string& config_json,
                                          const std::vector<SourceTensor>& tensors,
                                          bool allow_unknown) {
  return std::move(match_all(json, config_json, tensors, allow_unknown).architecture);
}

ResolvedArchitecture resolve_architecture(const std::string& json,
                                          const std::string& config_json,
                                          const Checkpoint& checkpoint,
                                          bool allow_unknown) {
  return resolve_architecture(json, config_json, checkpoint.tensors(), allow_unknown);
}

ArchitectureMatches match_architecture(const std::string& json,
                                       const std::string& config_json,
                                       const std::vector<SourceTensor>& tensors) {
  return match_all(json, config_json, tensors, true);
}

}  // namespace quantmill
