#pragma once

// Puts together what tensor-parallel ranks, or several runs, recorded.

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "stats/statistics.h"

namespace quantmill {

// How the input of this name is split; given by an architecture.
using PartitionOf = std::function<Partition(const std::string& name)>;

// Parts in rank order -> whole inputs: row-parallel ones are concatenated, replicated ones must
// agree and rank 0's values are kept. Agree: each channel's absmean within 1 % of the larger one,
// which is one step of bfloat16, or within 1e-6 of the input's largest absmean: ranks may have
// summed in another order. A single part has all the channels of its row-parallel inputs. Errors,
// kInput, naming input and rank: no parts, an input that a rank lacks, replicated values or lengths
// that disagree, counts that disagree, vectors of different kinds.
Statistics merge_tensor_parallel(const std::vector<Statistics>& parts,
                                 const PartitionOf& partition_of);

// Several runs of the same model -> one: means weighted by token count, maxima by max, counts
// added; a Gram matrix is there (gram_tokens) if all runs have one. An input that only some runs
// have keeps theirs. Runs that were recorded on different numbers of ranks give a single part.
// Errors, kInput, naming input and run: no runs, different numbers of channels, partitions or kinds
// of vectors, an input without a count in one of several runs, more tokens than 64 bits can count.
// Holds what is merged and one run, however many there are.
class RunMerger {
 public:
  void add(Statistics&& run);  // which it takes apart

  // Of all that were added; the last call.
  Statistics finish();

 private:
  struct Origin {
    std::size_t first_run = 0;
    std::vector<std::string> sources;  // of each run that has the input
  };

  Statistics merged_;
  std::map<std::string, Origin> origins_;
  std::size_t num_runs_ = 0;
};

}  // namespace quantmill
