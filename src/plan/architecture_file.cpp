#include "plan/architecture_file.h"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "plan/architecture_specs.h"
#include "plan/json_text.h"
#include "plan/object_reader.h"
#include "plan/placeholders.h"

namespace quantmill {

namespace {

constexpr std::uint64_t kSchema = 1;
constexpr int kMaxExtends = 8;

[[noreturn]] void fail(const std::string& message) {
  throw Error(ErrorCode::kInput, message);
}

// Whether every placeholder of `name` is in `allowed`.
void check_placeholders(const std::string& name,
                        const std::vector<std::string>& allowed,
                        const std::string& where) {
  for (const std::string& placeholder : placeholders(name)) {
    if (std::find(allowed.begin(), allowed.end(), placeholder) == allowed.end()) {
      fail(fmt::format("{}: {{{}}} in {} is no index that is known there; known are {}",
                       where,
                       placeholder,
                       name,
                       fmt::join(allowed, ", ")));
    }
  }
}

void check_tensor(const TensorSpec& tensor, const std::vector<std::string>& indices) {
  const std::string where = fmt::format("tensor {}", tensor.name);
  check_placeholders(tensor.name, indices, where);
  std::vector<std::string> own = placeholders(tensor.name);
  for (const std::string& alias : tensor.aliases) {
    check_placeholders(alias, own, where);
  }
  if (!tensor.slices.empty()) {
    check_placeholders(fmt::format("{{{}}}", tensor.slices), indices, where + ", slices");
    own.push_back(tensor.slices);
  }
  check_placeholders(tensor.fused_group, own, where);
  for (const WrittenSpec& written : tensor.written_as) {
    check_placeholders(written.name, own, where);
  }
}

// A name without what its placeholders are called: "layers.#.x.weight[#]".
std::string form_of(const std::string& name) {
  std::string form;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const bool is_digit = std::isdigit(static_cast<unsigned char>(name[i])) != 0;
    if (name[i] == '{') {
      form += '#';
      i = std::min(name.find('}', i), name.size());
    } else if (!is_digit) {
      form += name[i];
    } else if (form.empty() || form.back() != '#') {
      form += '#';
    }
  }
  return form;
}

// Whether activations name only tensors that the file describes.
void check_known_tensors(const ArchitectureFile& file) {
  std::set<std::string> forms;
  for (const TensorSpec& tensor : file.tensors) {
    forms.insert(form_of(tensor.name) + (tensor.slices.empty() ? "" : "[#]"));
  }
  for (const ActivationSpec& activation : file.activations) {
    std::vector<std::string> names = activation.readers;
    if (activation.producer) {
      names.push_back(activation.producer->tensor);
      if (!activation.producer->bias.empty()) {
        names.push_back(activation.producer->bias);
      }
    }
    for (const std::string& name : names) {
      if (!forms.contains(form_of(name))) {
        fail(fmt::format("activation {}: {} is not in \"tensors\"", activation.name, name));
      }
    }
  }
  if (file.tied) {
    for (const std::string& name : {file.tied->kept, file.tied->dropped}) {
      if (!forms.contains(form_of(name))) {
        fail(fmt::format("tied: {} is not in \"tensors\"", name));
      }
    }
  }
}

void check_activation(const ActivationSpec& activation, const std::vector<std::string>& indices) {
  const std::string where = fmt::format("activation {}", activation.name);
  check_placeholders(activation.name, indices, where);
  const std::vector<std::string> own = placeholders(activation.name);
  for (const std::string& name : activation.statistics.value_or(std::vector<std::string>())) {
    check_placeholders(name, own, where);
  }
  if (activation.producer) {
    check_placeholders(activation.producer->tensor, own, where);
    check_placeholders(activation.producer->bias, own, where);
  }
  for (const std::string& reader : activation.readers) {
    check_placeholders(reader, indices, where);
  }
}

void check_all_placeholders(const ArchitectureFile& file) {
  std::vector<std::string> indices;
  for (const auto& [index, spec] : file.indices) {
    indices.push_back(index);
  }
  for (const TensorSpec& tensor : file.tensors) {
    check_tensor(tensor, indices);
  }
  for (const ActivationSpec& activation : file.activations) {
    check_activation(activation, indices);
  }
  for (const std::string& name : file.known_statistics) {
    check_placeholders(name, indices, "known_statistics");
  }
  for (const std::string& name : file.extra_exclude) {
    check_placeholders(name, indices, "extra_exclude");
  }
  for (const std::string& name : file.copied) {
    check_placeholders(name, indices, "copied");
  }
  for (const PartSpec& part : file.parts) {
    for (const std::string& layer : part.layers) {
      check_placeholders(layer, indices, "parts");
      const std::string number = layer.substr(std::min(layer.rfind('.') + 1, layer.size()));
      if (number != "*" && (number.empty() || number.front() != '{' || number.back() != '}')) {
        fail(fmt::format("parts: {} must end in a number of its own, a placeholder or *", layer));
      }
    }
  }
}

ArchitectureFile parse_extending(const std::string& json, int depth);

ArchitectureFile base_of(const ObjectReader& reader, int depth) {
  const std::string name = reader.text_or_empty("extends");
  if (name.empty()) {
    return {};
  }
  if (depth >= kMaxExtends) {
    fail(fmt::format("\"extends\" goes through more than {} files", kMaxExtends));
  }
  for (const BuiltinArchitecture& builtin : builtin_architectures()) {
    if (builtin.name == name) {
      return parse_extending(builtin.json, depth + 1);
    }
  }
  fail(fmt::format("\"extends\": there is no built-in architecture {}", name));
}

// Adds entries to those of the extended file; entries of a name that it has take its place.
template <typename Spec>
void merge(std::vector<Spec> own, std::vector<Spec>& all) {
  const auto has_name = [](const std::string& name) {
    return [&name](const Spec& spec) { return spec.name == name; };
  };
  std::vector<Spec> merged;
  std::set<std::string> placed;
  for (Spec& spec : all) {
    if (std::ranges::none_of(own, has_name(spec.name))) {
      merged.push_back(std::move(spec));
    } else if (placed.insert(spec.name).second) {
      std::ranges::copy_if(own, std::back_inserter(merged), has_name(spec.name));
    }
  }
  std::ranges::copy_if(own, std::back_inserter(merged), [&](const Spec& spec) {
    return !placed.contains(spec.name);
  });
  all = std::move(merged);
}

void read_expressions(const ObjectReader& reader,
                      std::string_view key,
                      std::map<std::string, std::string>& expressions) {
  if (reader.find(key) == nullptr) {
    return;
  }
  const JsonValue& object = reader.object(key);
  for (std::size_t i = 0; i < object.keys.size(); ++i) {
    if (object.items[i].kind != JsonValue::Kind::kString) {
      fail(fmt::format("{} {}: an expression (text) is wanted, found {}",
                       key,
                       object.keys[i],
                       describe_json(object.items[i])));
    }
    expressions[object.keys[i]] = object.items[i].text;
  }
}

void read_indices(const ObjectReader& reader, ArchitectureFile& file) {
  if (reader.find("indices") == nullptr) {
    return;
  }
  const JsonValue& object = reader.object("indices");
  for (std::size_t i = 0; i < object.keys.size(); ++i) {
    IndexSpec& index = file.indices[object.keys[i]];
    if (object.items[i].kind == JsonValue::Kind::kString) {
      index = {"", object.items[i].text};
      continue;
    }
    const ObjectReader range(
        object.items[i], fmt::format("index {}", object.keys[i]), {"start", "count"});
    index = {range.text("start"), range.text("count")};
  }
}

void read_lists(const ObjectReader& reader, ArchitectureFile& file) {
  if (reader.find("parameters") != nullptr) {
    std::vector<ParameterSpec> own;
    const JsonValue& parameters = reader.object("parameters");
    for (std::size_t i = 0; i < parameters.keys.size(); ++i) {
      own.push_back(read_parameter_spec(parameters.keys[i], parameters.items[i]));
    }
    merge(std::move(own), file.parameters);
  }
  read_expressions(reader, "conditions", file.conditions);
  read_indices(reader, file);
  if (reader.find("tensors") != nullptr) {
    std::vector<TensorSpec> own;
    for (const JsonValue& tensor : reader.items("tensors")) {
      own.push_back(read_tensor_spec(tensor));
    }
    merge(std::move(own), file.tensors);
  }
  if (reader.find("activations") != nullptr) {
    std::vector<ActivationSpec> own;
    for (const JsonValue& activation : reader.items("activations")) {
      own.push_back(read_activation_spec(activation));
    }
    merge(std::move(own), file.activations);
  }
}

// Takes away what the extended file has and this one does not.
void leave_out(const std::vector<std::string>& names, ArchitectureFile& file) {
  for (const std::string& name : names) {
    const auto has_name = [&](const auto& spec) { return spec.name == name; };
    if (std::erase_if(file.tensors, has_name) + std::erase_if(file.activations, has_name) == 0) {
      fail(
          fmt::format("\"without\": {} is no tensor and no activation of the extended file", name));
    }
  }
}

void read_settings(const ObjectReader& reader, ArchitectureFile& file) {
  file.name = reader.text("name");
  file.match = reader.texts_or_empty("match");
  for (const auto& [key, list] : {std::pair("config_sections", &file.config_sections),
                                  std::pair("prefixes", &file.prefixes),
                                  std::pair("copied", &file.copied),
                                  std::pair("extra_exclude", &file.extra_exclude),
                                  std::pair("known_statistics", &file.known_statistics)}) {
    if (reader.find(key) != nullptr) {
      *list = reader.texts_or_empty(key);
    }
  }
  if (reader.find("server_layer_offset") != nullptr) {
    file.server_layer_offset = reader.text("server_layer_offset");
  }
  if (reader.find("one_of") != nullptr) {
    file.one_of.clear();
    for (const JsonValue& item : reader.items("one_of")) {
      std::vector<std::string>& variants = file.one_of.emplace_back();
      for (const JsonValue& variant : item.items) {
        variants.push_back(variant.text);
      }
    }
  }
  if (reader.find("parts") != nullptr) {
    file.parts.clear();
    for (const JsonValue& item : reader.items("parts")) {
      const ObjectReader part(item, "parts", {"name", "layers"});
      file.parts.push_back({part.text("name"), part.texts_or_empty("layers")});
    }
  }
  if (const JsonValue* const tied = reader.find("tied")) {
    const ObjectReader pair(*tied, "tied", {"if", "tensors"});
    const std::vector<std::string> tensors = pair.texts_or_empty("tensors");
    if (tensors.size() != 2) {
      fail("tied: \"tensors\" must name two");
    }
    file.tied = TiedSpec{pair.text("if"), tensors[0], tensors[1]};
  }
}

ArchitectureFile parse_extending(const std::string& json, int depth) {
  const JsonValue root = parse_json(json, "architecture file", ErrorCode::kInput);
  const JsonValue* const name = root.find("name");
  const std::string where = fmt::format(
      "architecture {}", name != nullptr ? describe_json(*name) : "file without a name");
  return with_context(where, [&] {
    const ObjectReader reader(root,
                              "the file",
                              {"schema",
                               "name",
                               "extends",
                               "without",
                               "match",
                               "config_sections",
                               "prefixes",
                               "parameters",
                               "conditions",
                               "indices",
                               "server_layer_offset",
                               "tensors",
                               "activations",
                               "one_of",
                               "copied",
                               "parts",
                               "tied",
                               "extra_exclude",
                               "known_statistics"});
    if (reader.at("schema").as_unsigned() != kSchema) {
      fail(fmt::format(
          "\"schema\" must be {}, found {}", kSchema, describe_json(reader.at("schema"))));
    }
    ArchitectureFile file = base_of(reader, depth);
    leave_out(reader.texts_or_empty("without"), file);
    read_settings(reader, file);
    read_lists(reader, file);
    if (file.tensors.empty()) {
      fail("\"tensors\" is missing or empty");
    }
    check_all_placeholders(file);
    check_known_tensors(file);
    return file;
  });
}

}  // namespace

std::string module_of(std::string name) {
  name.resize(std::min(name.find('['), name.size()));
  const std::string_view suffix = ".weight";
  if (name.size() > suffix.size() && name.ends_with(suffix)) {
    name.resize(name.size() - suffix.size());
  }
  return name;
}

std::optional<std::string> lead_of(const std::string& layer, const std::string& name) {
  const std::string stem = name.substr(0, name.find("{layer}"));
  const std::string before = layer.substr(0, layer.rfind('.') + 1);
  if (stem.size() == name.size() || !before.ends_with(stem)) {
    return std::nullopt;
  }
  return before.substr(0, before.size() - stem.size());
}

ArchitectureFile parse_architecture_file(const std::string& json) {
  return parse_extending(json, 0);
}

}  // namespace quantmill
