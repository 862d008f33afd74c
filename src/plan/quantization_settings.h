#pragma once

// What the quantization_config of a checkpoint says of things that names and shapes leave open.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace quantmill {

struct QuantizationSettings {
  std::string method;   // "quant_method"; empty without a quantization_config
  std::string element;  // the first "dtype" that names a format of six bits
  std::string integer;  // the first "dtype" that names integers: int4, uint4
  std::optional<std::uint64_t> num_bits;
  std::vector<std::uint64_t> block_size;    // rows, cols
  std::optional<std::uint64_t> bits;        // AutoAWQ, GPTQ
  std::optional<std::uint64_t> group_size;  // of them; none: all columns
  bool reorders_columns = false;            // GPTQ's "desc_act"
  std::string checkpoint_format;            // of GPTQ, or AutoAWQ's "version"
  std::string pack_method;                  // of Quark
};

// kInput if `config_json` is no JSON.
QuantizationSettings read_quantization_settings(const std::string& config_json);

}  // namespace quantmill
