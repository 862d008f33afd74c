#pragma once

// The typed form of an architecture file (src/architectures/README.md), before it meets a
// checkpoint. Names may hold placeholders: "layers.{layer}.mlp.up_proj.weight".

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "plan/architecture.h"
#include "plan/parameters.h"
#include "stats/statistics.h"

namespace quantmill {

// RowRange as expressions; an empty one stands for its default.
struct RangeSpec {
  std::string start;
  std::string groups;
  std::string stride;
  std::string size;
};

struct WrittenSpec {
  std::string name;
  RangeSpec rows;
};

struct TensorSpec {
  std::string name;
  std::vector<std::string> aliases;  // other names for the same tensor
  std::optional<std::vector<std::string>>
      shape;  // one expression per dimension; nothing: any shape
  TensorRole role = TensorRole::kOther;
  std::string condition;  // empty: always
  std::string variant;
  bool optional = false;
  std::string slices;  // index that counts the first dimension; empty: not sliced
  bool transposed = false;
  std::vector<WrittenSpec> written_as;
  bool quantizable = false;
  bool replicated = false;
  SharedText part;  // as the two below: tensors by the ten thousand have it
  std::string fused_group;
  SharedText exclude_all;
  SharedText exclude_layers;
};

struct ProducerSpec {
  ProducerKind kind = ProducerKind::kNorm;
  std::string tensor;
  std::string bias;  // empty: has none
  std::optional<RangeSpec> range;
};

struct ColumnSpec {
  std::string start;
  std::string groups;
  std::string repeats;
  std::string size;
};

struct ActivationSpec {
  std::string name;
  std::string condition;  // empty: always
  std::optional<ProducerSpec> producer;
  std::vector<std::string> readers;
  std::optional<std::vector<std::string>> statistics;  // an empty list: there are none
  bool statistics_optional = false;
  Partition partition = Partition::kReplicated;
  std::optional<ColumnSpec> columns;
  std::string no_fold_reason;
};

// Expressions; an empty start is 0.
struct IndexSpec {
  std::string start;
  std::string count;
};

// What of the copied parts is quantized on request: layers that are like the model's own.
struct PartSpec {
  std::string name;
  // What stands in their names where the model's have "layers.{layer}": "layers.{mtp_layer}",
  // "mtp.layers.*" with any number.
  std::vector<std::string> layers;
};

struct TiedSpec {
  std::string condition;
  std::string kept;
  std::string dropped;
};

struct ArchitectureFile {
  std::string name;
  std::vector<std::string> match;  // entries of config.json's "architectures", or model types
  std::vector<std::string> config_sections;
  std::vector<std::string> prefixes;
  std::string
      server_layer_offset;  // expression; empty: servers number layers as the checkpoint does
  std::vector<ParameterSpec> parameters;
  std::map<std::string, std::string> conditions;  // name -> expression
  std::map<std::string, IndexSpec> indices;       // by placeholder
  std::vector<TensorSpec> tensors;
  std::vector<ActivationSpec> activations;
  std::vector<std::vector<std::string>> one_of;  // variants
  std::vector<std::string> copied;               // patterns
  std::vector<PartSpec> parts;
  std::optional<TiedSpec> tied;
  std::vector<std::string> extra_exclude;
  std::vector<std::string> known_statistics;
};

// Of a tensor's or slice's name without ".weight" and "[…]": what recorders and configs call it.
std::string module_of(std::string name);

// What comes before a name of the model's layers ("layers.{layer}.x") if it stands in a layer that
// is called `layer` ("layers.61", "mtp.layers.*") and not "layers.{layer}": "" or "mtp." here.
// Nothing if the name has no {layer}, or something else before it.
std::optional<std::string> lead_of(const std::string& layer, const std::string& name);

// Errors, kInput, starting with the architecture's name: not JSON, an unknown, missing or ill-typed
// key (named with where it stands), another schema number, a placeholder that is no index,
// "extends" of something that is not built in.
ArchitectureFile parse_architecture_file(const std::string& json);

}  // namespace quantmill
