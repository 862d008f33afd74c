#include "plan/architecture_file.h"

#include <algorithm>
#include <initializer_list>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "plan/json_text.h"
#include "plan/placeholders.h"

namespace quantmill {

namespace {

constexpr std::uint64_t kSchema = 1;
constexpr int kMaxExtends = 8;

[[noreturn]] void fail(const std::string& message) {
  throw Error(ErrorCode::kInput, message);
}

// An object whose keys are all known, read key by key. `where` says which object it is.
class Reader {
 public:
  Reader(const JsonValue& object, std::string where, std::initializer_list<std::string_view> known)
      : object_(object), where_(std::move(where)) {
    if (object.kind != JsonValue::Kind::kObject) {
      fail(fmt::format("{} must be an object, found {}", where_, describe_json(object)));
    }
    for (const std::string& key : object.keys) {
      if (std::find(known.begin(), known.end(), key) == known.end()) {
        fail(fmt::format(
            "{}: unknown key \"{}\"; known are {}", where_, key, fmt::join(known, ", ")));
      }
    }
  }

  [[nodiscard]] const JsonValue* find(std::string_view key) const { return object_.find(key); }

  [[nodiscard]] const JsonValue& at(std::string_view key) const {
    const JsonValue* const value = find(key);
    if (value == nullptr) {
      fail(fmt::format("{}: the key \"{}\" is missing", where_, key));
    }
    return *value;
  }

  [[nodiscard]] std::string text(std::string_view key) const { return text_of(at(key), key); }

  [[nodiscard]] std::string text_or_empty(std::string_view key) const {
    const JsonValue* const value = find(key);
    return value == nullptr ? std::string() : text_of(*value, key);
  }

  [[nodiscard]] bool flag(std::string_view key) const {
    const JsonValue* const value = find(key);
    if (value != nullptr && value->kind != JsonValue::Kind::kBoolean) {
      fail(fmt::format(
          "{}: \"{}\" must be true or false, found {}", where_, key, describe_json(*value)));
    }
    return value != nullptr && value->text == "true";
  }

  [[nodiscard]] std::vector<std::string> texts_or_empty(std::string_view key) const {
    std::vector<std::string> texts;
    const JsonValue* const value = find(key);
    if (value == nullptr) {
      return texts;
    }
    if (value->kind != JsonValue::Kind::kArray) {
      fail(fmt::format("{}: \"{}\" must be a list, found {}", where_, key, describe_json(*value)));
    }
    for (const JsonValue& item : value->items) {
      texts.push_back(text_of(item, key));
    }
    return texts;
  }

  [[nodiscard]] const std::string& where() const { return where_; }

 private:
  [[nodiscard]] std::string text_of(const JsonValue& value, std::string_view key) const {
    if (value.kind != JsonValue::Kind::kString) {
      fail(fmt::format("{}: \"{}\" must hold text, found {}", where_, key, describe_json(value)));
    }
    return value.text;
  }

  const JsonValue& object_;
  std::string where_;
};

ParameterSpec read_parameter_spec(const std::string& name, const JsonValue& value) {
  ParameterSpec spec;
  spec.name = name;
  if (value.kind == JsonValue::Kind::kString) {
    spec.config_keys = {value.text};
    return spec;
  }
  const Reader reader(
      value, fmt::format("parameter {}", name), {"config", "count", "default", "optional"});
  spec.config_keys = reader.texts_or_empty("config");
  spec.count = reader.flag("count");
  spec.fallback = reader.text_or_empty("default");
  spec.optional = reader.flag("optional");
  if (spec.config_keys.empty()) {
    fail(fmt::format("{}: \"config\" must list at least one key", reader.where()));
  }
  return spec;
}

TensorRole role_from_name(const std::string& name, const std::string& where) {
  if (name == "linear") {
    return TensorRole::kLinear;
  }
  if (name == "norm") {
    return TensorRole::kNorm;
  }
  if (name.empty() || name == "other") {
    return TensorRole::kOther;
  }
  fail(fmt::format("{}: \"role\" is linear, norm or other, not {}", where, name));
}

TensorSpec read_tensor_spec(const JsonValue& value) {
  const JsonValue* const name = value.find("name");
  const Reader reader(value,
                      name == nullptr ? "a tensor" : fmt::format("tensor {}", name->text),
                      {"name",
                       "aliases",
                       "shape",
                       "role",
                       "optional",
                       "quantize",
                       "fused",
                       "exclude",
                       "exclude_layers"});
  TensorSpec spec;
  spec.name = reader.text("name");
  spec.aliases = reader.texts_or_empty("aliases");
  if (reader.find("shape") != nullptr) {
    spec.shape = reader.texts_or_empty("shape");
  }
  spec.role = role_from_name(reader.text_or_empty("role"), reader.where());
  spec.optional = reader.flag("optional");
  spec.quantizable = reader.flag("quantize");
  spec.fused_group = reader.text_or_empty("fused");
  spec.exclude_all = reader.text_or_empty("exclude");
  spec.exclude_layers = reader.text_or_empty("exclude_layers");
  if (spec.quantizable && spec.role != TensorRole::kLinear) {
    fail(fmt::format("{}: only a linear can have \"quantize\"", reader.where()));
  }
  return spec;
}

ProducerSpec read_producer(const JsonValue& value, const std::string& where) {
  const Reader reader(
      value, fmt::format("{}, producer", where), {"norm", "norm_plus_one", "rows", "bias"});
  ProducerSpec spec;
  int kinds = 0;
  for (const auto& [key, kind] : {std::pair("norm", ProducerKind::kNorm),
                                  std::pair("norm_plus_one", ProducerKind::kNormPlusOne),
                                  std::pair("rows", ProducerKind::kLinearRows)}) {
    if (reader.find(key) != nullptr) {
      spec.kind = kind;
      spec.tensor = reader.text(key);
      ++kinds;
    }
  }
  if (kinds != 1) {
    fail(fmt::format("{}: exactly one of norm, norm_plus_one and rows is wanted", reader.where()));
  }
  spec.bias = reader.text_or_empty("bias");
  if (!spec.bias.empty() && spec.kind != ProducerKind::kLinearRows) {
    fail(fmt::format("{}: only \"rows\" can have a bias", reader.where()));
  }
  return spec;
}

ActivationSpec read_activation_spec(const JsonValue& value) {
  const JsonValue* const name = value.find("name");
  const Reader reader(value,
                      name == nullptr ? "an activation" : fmt::format("activation {}", name->text),
                      {"name",
                       "producer",
                       "readers",
                       "statistics",
                       "statistics_optional",
                       "tensor_parallel",
                       "columns",
                       "no_fold"});
  ActivationSpec spec;
  spec.name = reader.text("name");
  if (const JsonValue* const producer = reader.find("producer")) {
    spec.producer = read_producer(*producer, reader.where());
  }
  spec.readers = reader.texts_or_empty("readers");
  spec.statistics = reader.text_or_empty("statistics");
  spec.statistics_optional = reader.flag("statistics_optional");
  if (const JsonValue* const columns = reader.find("columns")) {
    const Reader map(*columns, reader.where() + ", columns", {"groups", "repeats", "size"});
    spec.columns = ColumnSpec{map.text("groups"), map.text("repeats"), map.text("size")};
  }
  spec.no_fold_reason = reader.text_or_empty("no_fold");
  const std::string parallel = reader.text_or_empty("tensor_parallel");
  if (!parallel.empty() && parallel != "row") {
    fail(fmt::format("{}: \"tensor_parallel\" is row or absent, not {}", reader.where(), parallel));
  }
  spec.partition = parallel.empty() ? Partition::kReplicated : Partition::kRow;
  if (spec.readers.empty()) {
    fail(fmt::format("{}: \"readers\" must name at least one tensor", reader.where()));
  }
  if (!spec.producer && spec.no_fold_reason.empty()) {
    fail(
        fmt::format("{}: without a \"producer\" it needs \"no_fold\", the reason", reader.where()));
  }
  return spec;
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

void check_all_placeholders(const ArchitectureFile& file) {
  std::vector<std::string> indices;
  for (const auto& [index, expression] : file.indices) {
    indices.push_back(index);
  }
  for (const TensorSpec& tensor : file.tensors) {
    const std::string where = fmt::format("tensor {}", tensor.name);
    check_placeholders(tensor.name, indices, where);
    const std::vector<std::string> own = placeholders(tensor.name);
    check_placeholders(tensor.fused_group, own, where);
    for (const std::string& alias : tensor.aliases) {
      check_placeholders(alias, own, where);
    }
  }
  for (const ActivationSpec& activation : file.activations) {
    const std::string where = fmt::format("activation {}", activation.name);
    check_placeholders(activation.name, indices, where);
    const std::vector<std::string> own = placeholders(activation.name);
    check_placeholders(activation.statistics, own, where);
    if (activation.producer) {
      check_placeholders(activation.producer->tensor, own, where);
      check_placeholders(activation.producer->bias, own, where);
    }
    for (const std::string& reader : activation.readers) {
      check_placeholders(reader, indices, where);
    }
  }
  for (const std::string& name : file.known_statistics) {
    check_placeholders(name, indices, "known_statistics");
  }
}

const std::vector<JsonValue>& items_of(const Reader& reader, std::string_view key) {
  const JsonValue& list = reader.at(key);
  if (list.kind != JsonValue::Kind::kArray) {
    fail(fmt::format("\"{}\" must be a list, found {}", key, describe_json(list)));
  }
  return list.items;
}

const JsonValue& object_at(const Reader& reader, std::string_view key) {
  const JsonValue& value = reader.at(key);
  if (value.kind != JsonValue::Kind::kObject) {
    fail(fmt::format("\"{}\" must be an object, found {}", key, describe_json(value)));
  }
  return value;
}

ArchitectureFile parse_extending(const std::string& json, int depth);

ArchitectureFile base_of(const Reader& reader, int depth) {
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

void read_lists(const Reader& reader, ArchitectureFile& file) {
  if (reader.find("parameters") != nullptr) {
    const JsonValue& parameters = object_at(reader, "parameters");
    for (std::size_t i = 0; i < parameters.keys.size(); ++i) {
      file.parameters.push_back(read_parameter_spec(parameters.keys[i], parameters.items[i]));
    }
  }
  if (reader.find("indices") != nullptr) {
    const JsonValue& indices = object_at(reader, "indices");
    for (std::size_t i = 0; i < indices.keys.size(); ++i) {
      if (indices.items[i].kind != JsonValue::Kind::kString) {
        fail(fmt::format("index {}: an expression (text) is wanted, found {}",
                         indices.keys[i],
                         describe_json(indices.items[i])));
      }
      file.indices[indices.keys[i]] = indices.items[i].text;
    }
  }
  if (reader.find("tensors") != nullptr) {
    for (const JsonValue& tensor : items_of(reader, "tensors")) {
      file.tensors.push_back(read_tensor_spec(tensor));
    }
  }
  if (reader.find("activations") != nullptr) {
    file.activations.clear();
    for (const JsonValue& activation : items_of(reader, "activations")) {
      file.activations.push_back(read_activation_spec(activation));
    }
  }
}

ArchitectureFile parse_extending(const std::string& json, int depth) {
  const JsonValue root = parse_json(json, "architecture file", ErrorCode::kInput);
  const JsonValue* const name = root.find("name");
  const std::string where = fmt::format(
      "architecture {}", name != nullptr ? describe_json(*name) : "file without a name");
  return with_context(where, [&] {
    const Reader reader(root,
                        "the file",
                        {"schema",
                         "name",
                         "extends",
                         "match",
                         "optional_prefix",
                         "parameters",
                         "indices",
                         "server_layer_offset",
                         "tensors",
                         "activations",
                         "extra_exclude",
                         "known_statistics"});
    if (reader.at("schema").as_unsigned() != kSchema) {
      fail(fmt::format(
          "\"schema\" must be {}, found {}", kSchema, describe_json(reader.at("schema"))));
    }
    ArchitectureFile file = base_of(reader, depth);
    file.name = reader.text("name");
    file.match = reader.texts_or_empty("match");
    if (reader.find("optional_prefix") != nullptr) {
      file.optional_prefix = reader.text("optional_prefix");
    }
    if (reader.find("server_layer_offset") != nullptr) {
      file.server_layer_offset = reader.text("server_layer_offset");
    }
    if (reader.find("extra_exclude") != nullptr) {
      file.extra_exclude = reader.texts_or_empty("extra_exclude");
    }
    if (reader.find("known_statistics") != nullptr) {
      file.known_statistics = reader.texts_or_empty("known_statistics");
    }
    read_lists(reader, file);
    if (file.tensors.empty()) {
      fail("\"tensors\" is missing or empty");
    }
    check_all_placeholders(file);
    return file;
  });
}

}  // namespace

ArchitectureFile parse_architecture_file(const std::string& json) {
  return parse_extending(json, 0);
}

}  // namespace quantmill
