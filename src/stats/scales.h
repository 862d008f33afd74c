#pragma once

// The scales that a job chose, in HDF5 beside its output: what `verify` needs to prove the folds.
// Schema 1: root attributes quantmill_kind = "scales", quantmill_schema = 1, quantmill_version;
// one group per fold group below /groups: dataset s f32 [channels]; dataset alphas f64 [A] and
// errors f64 [A] (empty without a search); attribute alpha f64 (NaN if the scales were not
// searched), reason (text, why s is neutral or ""). Where the output has scales of activations, one
// group per activation, where it has scales of the key-value cache one per layer's keys and values
// (layers.0.self_attn.k_cache), below /inputs: dataset absmax f64 [columns], the recorded max |x|.

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace quantmill {

struct GroupScales {
  std::vector<float> s;        // one per channel of the group; all 1 is neutral
  std::vector<double> alphas;  // candidates searched
  std::vector<double> errors;  // objective of each, summed over the group's quantized readers
  double alpha = 0;            // the chosen one
  std::string reason;          // why the group was left neutral; empty if it was searched or given
};

// Fold group name -> scales.
using ScaleTable = std::map<std::string, GroupScales>;

// Recorded max |x| of each column, by the activation's name.
using InputMaxima = std::map<std::string, std::vector<double>>;

// The same tables give the same bytes. kIo.
void write_scales(const std::filesystem::path& file,
                  const ScaleTable& scales,
                  const InputMaxima& inputs = {});

// kInput for anything that is not such a file.
ScaleTable read_scales(const std::filesystem::path& file);
InputMaxima read_input_maxima(const std::filesystem::path& file);

}  // namespace quantmill
