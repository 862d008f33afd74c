#pragma once

// Activation statistics: what was recorded, per input channel, at the input of each linear while
// the model ran.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace quantmill {

// How an input was split over tensor-parallel ranks when it was recorded.
enum class Partition {
  kReplicated,  // every rank saw all channels
  kRow,         // each rank saw its own range of channels (the input of a row-parallel linear)
};

// One recorded input. Vectors have one value per channel; those that were not recorded are empty.
struct InputStatistics {
  std::vector<double> absmean;  // mean |x|; always there
  std::vector<double> sqmean;   // mean x^2
  std::vector<double> absmax;   // max |x|
  std::uint64_t count = 0;      // tokens; 0 with has_count: no token was seen
  bool has_count = false;
  // That the Gram matrix was recorded on which lies beside this in the file (gram.h); 0: none does.
  std::uint64_t gram_tokens = 0;
  Partition partition = Partition::kReplicated;
  std::vector<std::uint64_t> part_channels;  // kRow: channels of each rank's part, in rank order
  std::string source;                        // files it was read from
};

// Name as recorded ("layers.0.self_attn.qkv_proj") -> statistics, sorted by name.
using Statistics = std::map<std::string, InputStatistics>;

// Refuses (kInput, naming input, channel and value) NaN, infinite or negative values and vectors of
// different lengths.
void check_statistics(const Statistics& statistics);

}  // namespace quantmill
