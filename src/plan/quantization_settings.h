#pragma once

// What the quantization_config of a checkpoint says of things that names and shapes leave open.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace quantmill {

// How some modules' weights are coded.
struct CodeSettings {
  std::string element;  // the first "dtype" that names a format of six bits
  std::string integer;  // the first "dtype" that names integers: int4, uint4
  std::optional<std::uint64_t> num_bits;
  std::vector<std::uint64_t> block_size;  // rows, cols
  bool is_symmetric = false;              // Quark: its zero points are 0
};

struct QuantizationSettings {
  std::string method;                       // "quant_method"; empty without a quantization_config
  std::optional<std::uint64_t> bits;        // AutoAWQ, GPTQ
  std::optional<std::uint64_t> group_size;  // of them; none: all columns
  bool reorders_columns = false;            // GPTQ's "desc_act"
  bool is_symmetric = false;                // GPTQ's "sym"
  std::string checkpoint_format;            // of GPTQ, or AutoAWQ's "version"
  std::string pack_method;                  // of Quark

  // Of some modules, by name: compressed-tensors' groups with patterns for targets, Quark's
  // layer_quant_config. The first that matches counts.
  struct Group {
    std::vector<std::function<bool(const std::string&)>> matchers;
    CodeSettings codes;
  };

  std::vector<Group> groups;
  CodeSettings others;  // of all modules that no group names

  // Of a module by its name in the checkpoint. kInput: a pattern that can't be matched.
  [[nodiscard]] const CodeSettings& codes_of(const std::string& module) const;
};

// kInput if `config_json` is no JSON, or has a pattern that is none.
QuantizationSettings read_quantization_settings(const std::string& config_json);

}  // namespace quantmill
