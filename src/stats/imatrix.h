#pragma once

// Importance matrices of llama.cpp (tools/imatrix): for each weight the sums of the squares of what
// it was multiplied by. Both forms: GGUF (general.type "imatrix": NAME.in_sum2, NAME.counts) and
// the older .dat.

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace quantmill {

// Of one weight as llama.cpp names it: one matrix, or one for each expert.
struct ImatrixEntry {
  std::size_t num_channels = 0;
  std::vector<float> sqmean;  // E[x^2], [matrices, channels]; 0 where no token came
  // By matrix; not there in .dat files, which count chunks of text instead.
  std::optional<std::vector<std::uint64_t>> tokens;

  [[nodiscard]] std::size_t num_matrices() const { return sqmean.size() / num_channels; }
};

// "blk.3.ffn_down_exps.weight" -> entry.
using Imatrix = std::map<std::string, ImatrixEntry>;

// Errors, kInput naming the file and the weight: a GGUF that is no imatrix, sums without counts or
// of another number of matrices, values that are negative or not finite, a file that is cut short
// or has bytes left over, no entries.
Imatrix read_imatrix(const std::filesystem::path& path);

}  // namespace quantmill
