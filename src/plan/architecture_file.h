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

struct TensorSpec {
  std::string name;
  std::vector<std::string> aliases;  // other names for the same tensor
  std::optional<std::vector<std::string>>
      shape;  // one expression per dimension; nothing: any shape
  TensorRole role = TensorRole::kOther;
  bool optional = false;
  bool quantizable = false;
  std::string fused_group;
  std::string exclude_all;
  std::string exclude_layers;
};

struct ProducerSpec {
  ProducerKind kind = ProducerKind::kNorm;
  std::string tensor;
  std::string bias;  // empty: has none
};

struct ColumnSpec {
  std::string groups;
  std::string repeats;
  std::string size;
};

struct ActivationSpec {
  std::string name;
  std::optional<ProducerSpec> producer;
  std::vector<std::string> readers;
  std::string statistics;
  bool statistics_optional = false;
  Partition partition = Partition::kReplicated;
  std::optional<ColumnSpec> columns;
  std::string no_fold_reason;
};

struct ArchitectureFile {
  std::string name;
  std::vector<std::string> match;  // entries of config.json's "architectures"
  std::string optional_prefix;
  std::string
      server_layer_offset;  // expression; empty: servers number layers as the checkpoint does
  std::vector<ParameterSpec> parameters;
  std::map<std::string, std::string> indices;  // placeholder -> expression of how many
  std::vector<TensorSpec> tensors;
  std::vector<ActivationSpec> activations;
  std::vector<std::string> extra_exclude;
  std::vector<std::string> known_statistics;
};

// Errors, kInput, starting with the architecture's name: not JSON, an unknown, missing or ill-typed
// key (named with where it stands), another schema number, a placeholder that is no index,
// "extends" of something that is not built in.
ArchitectureFile parse_architecture_file(const std::string& json);

}  // namespace quantmill
