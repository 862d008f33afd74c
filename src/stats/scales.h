#pragma once

// The scales that a job chose, in HDF5 beside its output: what `verify` needs to prove the folds.
// Schema 2: root attributes quantmill_kind = "scales", quantmill_schema = 2, quantmill_version, and
// three tables. A table is a group with a dataset names, text [rows] in ascending order; where rows
// differ in length, the values of all stand one after the other in one dataset, and those of row i
// are [offsets[i], offsets[i + 1]) of it, offsets being u64 [rows + 1].
//   /groups      one row per fold group: s f32, by s_offsets; alphas, betas and errors f64, by
//                candidate_offsets (no candidates without a search); alpha and beta f64 [rows] (NaN
//                if the scales were not searched); reasons text [rows] (why s is neutral or "")
//   /inputs      absmax f64, by offsets: the recorded max |x| of each column, where the output has
//                scales of activations a row for each, where it has scales of the key-value cache
//                one for each layer's keys and values (layers.0.self_attn.k_cache)
//   /importance  values f32, by offsets: where block scales were searched with the help of
//                statistics, what the columns of an activation's readers were weighed by, before
//                folding
// /inputs and /importance are there if they have a row. Schema 1, which is read too, has a group of
// HDF5 for each row, "/" in its name as "%2F" and "%" as "%25": a fifth of a millisecond each.

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace quantmill {

struct GroupScales {
  std::vector<float> s;        // one per channel of the group; all 1 is neutral
  std::vector<double> alphas;  // candidates searched: exponents of mean |x| …
  std::vector<double> betas;   // … and of 1 / |w|
  std::vector<double> errors;  // objective of each, summed over the group's quantized readers
  double alpha = 0;            // the chosen one
  double beta = 0;
  std::string reason;  // why the group was left neutral; empty if it was searched or given
};

// Fold group name -> scales.
using ScaleTable = std::map<std::string, GroupScales>;

// Recorded max |x| of each column, by the activation's name.
using InputMaxima = std::map<std::string, std::vector<double>>;
// Activation name -> one value per column of its readers.
using ImportanceTable = std::map<std::string, std::vector<float>>;

// The same tables give the same bytes. kIo.
void write_scales(const std::filesystem::path& file,
                  const ScaleTable& scales,
                  const InputMaxima& inputs = {},
                  const ImportanceTable& importance = {});

// kInput for anything that is not such a file.
ScaleTable read_scales(const std::filesystem::path& file);
InputMaxima read_input_maxima(const std::filesystem::path& file);

// The same file's importance; empty if it has none. kInput also for a value that is not finite and
// above 0.
ImportanceTable read_importance(const std::filesystem::path& file);

}  // namespace quantmill
