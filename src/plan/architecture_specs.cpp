#include "plan/architecture_specs.h"

#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "plan/object_reader.h"

namespace quantmill {

namespace {

[[noreturn]] void fail(const std::string& message) {
  throw Error(ErrorCode::kInput, message);
}

Value::Kind kind_from_name(const std::string& name, const std::string& where) {
  if (name.empty() || name == "number") {
    return Value::Kind::kNumber;
  }
  if (name == "text") {
    return Value::Kind::kText;
  }
  if (name == "list") {
    return Value::Kind::kList;
  }
  fail(fmt::format("{}: \"kind\" is number, text or list, not {}", where, name));
}

RangeSpec read_range(const JsonValue& value, const std::string& where) {
  const ObjectReader reader(value, where + ", range", {"start", "groups", "stride", "size"});
  RangeSpec range{reader.text_or_empty("start"),
                  reader.text_or_empty("groups"),
                  reader.text_or_empty("stride"),
                  reader.text("size")};
  if (range.groups.empty() != range.stride.empty()) {
    fail(fmt::format(R"({}: "groups" and "stride" come together)", reader.where()));
  }
  return range;
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

ProducerSpec read_producer(const JsonValue& value, const std::string& where) {
  const ObjectReader reader(value,
                            fmt::format("{}, producer", where),
                            {"norm", "norm_plus_one", "rows", "bias", "range"});
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
  if (const JsonValue* const range = reader.find("range")) {
    spec.range = read_range(*range, reader.where());
  }
  if (spec.range && spec.kind != ProducerKind::kLinearRows) {
    fail(fmt::format("{}: only \"rows\" can have a range", reader.where()));
  }
  return spec;
}

}  // namespace

ParameterSpec read_parameter_spec(const std::string& name, const JsonValue& value) {
  ParameterSpec spec;
  spec.name = name;
  if (value.kind == JsonValue::Kind::kString) {
    spec.config_keys = {value.text};
    return spec;
  }
  const ObjectReader reader(
      value, fmt::format("parameter {}", name), {"config", "kind", "count", "default", "optional"});
  spec.config_keys = reader.texts_or_empty("config");
  spec.kind = kind_from_name(reader.text_or_empty("kind"), reader.where());
  spec.count = reader.flag("count");
  spec.fallback = reader.text_or_empty("default");
  spec.optional = reader.flag("optional");
  if (spec.config_keys.empty()) {
    fail(fmt::format("{}: \"config\" must list at least one key", reader.where()));
  }
  return spec;
}

TensorSpec read_tensor_spec(const JsonValue& value) {
  const JsonValue* const name = value.find("name");
  const ObjectReader reader(value,
                            name == nullptr ? "a tensor" : fmt::format("tensor {}", name->text),
                            {"name",
                             "aliases",
                             "if",
                             "variant",
                             "optional",
                             "shape",
                             "role",
                             "slices",
                             "transposed",
                             "written_as",
                             "quantize",
                             "replicated",
                             "part",
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
  spec.condition = reader.text_or_empty("if");
  spec.variant = reader.text_or_empty("variant");
  spec.optional = reader.flag("optional");
  spec.slices = reader.text_or_empty("slices");
  spec.transposed = reader.flag("transposed");
  if (reader.find("written_as") != nullptr) {
    for (const JsonValue& item : reader.items("written_as")) {
      const ObjectReader written(item, reader.where() + ", written_as", {"name", "rows"});
      spec.written_as.push_back(
          {written.text("name"), read_range(written.at("rows"), written.where())});
    }
  }
  spec.quantizable = reader.flag("quantize");
  spec.replicated = reader.flag("replicated");
  spec.part = reader.text_or_empty("part");
  spec.fused_group = reader.text_or_empty("fused");
  spec.exclude_all = reader.text_or_empty("exclude");
  spec.exclude_layers = reader.text_or_empty("exclude_layers");
  if ((spec.quantizable || spec.transposed) && spec.role != TensorRole::kLinear) {
    fail(fmt::format(R"({}: only a linear can have "quantize" or "transposed")", reader.where()));
  }
  if (!spec.written_as.empty() && spec.slices.empty()) {
    fail(fmt::format(R"({}: only "slices" can have "written_as")", reader.where()));
  }
  if (spec.optional && !spec.variant.empty()) {
    fail(fmt::format(R"({}: "optional" or "variant", not both)", reader.where()));
  }
  return spec;
}

ActivationSpec read_activation_spec(const JsonValue& value) {
  const JsonValue* const name = value.find("name");
  const ObjectReader reader(
      value,
      name == nullptr ? "an activation" : fmt::format("activation {}", name->text),
      {"name",
       "if",
       "producer",
       "readers",
       "statistics",
       "statistics_optional",
       "tensor_parallel",
       "columns",
       "no_fold"});
  ActivationSpec spec;
  spec.name = reader.text("name");
  spec.condition = reader.text_or_empty("if");
  if (const JsonValue* const producer = reader.find("producer")) {
    spec.producer = read_producer(*producer, reader.where());
  }
  spec.readers = reader.texts_or_empty("readers");
  if (const JsonValue* const statistics = reader.find("statistics")) {
    spec.statistics = statistics->kind == JsonValue::Kind::kString
                          ? std::vector<std::string>{statistics->text}
                          : reader.texts_or_empty("statistics");
  }
  spec.statistics_optional = reader.flag("statistics_optional");
  if (const JsonValue* const columns = reader.find("columns")) {
    const ObjectReader map(
        *columns, reader.where() + ", columns", {"start", "groups", "repeats", "size"});
    spec.columns = ColumnSpec{map.text_or_empty("start"),
                              map.text_or_empty("groups"),
                              map.text_or_empty("repeats"),
                              map.text("size")};
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
    fail(fmt::format(R"({}: without a "producer" it needs "no_fold", the reason)", reader.where()));
  }
  return spec;
}

}  // namespace quantmill
