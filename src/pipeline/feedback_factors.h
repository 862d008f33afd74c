#pragma once

// How rounding errors of each weight are fed back (GPTQ): made from the statistics' Gram matrices
// when a weight is worked on, and kept while others with the same input follow.

#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "pipeline/fold_table.h"
#include "plan/plan.h"
#include "quant/gptq.h"
#include "stats/gram.h"
#include "stats/statistics.h"

namespace quantmill {

// Thread-safe.
class FeedbackFactors {
 public:
  // Of a plan whose recipe rounds by gptq, its statistics and the file that they are of. `plan`
  // and `statistics` must outlive it. Errors: kUsage: `file` is not an HDF5 file, which alone holds
  // Gram matrices; kInput: no weight has what it needs.
  FeedbackFactors(const Plan& plan,
                  const Statistics& statistics,
                  const std::filesystem::path& file);

  // Whether the work is rounded with feedback: its scheme takes it (takes_feedback), its codes are
  // not just copied, and there is a Gram matrix of all that it reads. Others are rounded to the
  // nearest.
  [[nodiscard]] bool takes(const TensorWork& work) const;

  // Of a work that takes it; null if the matrix gives none. One is made at a time, others wait.
  // Errors: what GramFile refuses.
  std::shared_ptr<const ErrorFeedback> of(const TensorWork& work,
                                          const std::vector<ActivationFold>& folds);

  // Works of equal keys share a factor: they should follow each other. Empty: the work takes none.
  [[nodiscard]] std::vector<std::size_t> key(const TensorWork& work) const;

  // Of samples of the Gram matrices that the weights' inputs have (GramFile::sample), all of which
  // may be too much to read: what tells a file of other contents from this one, 32 hexadecimal
  // digits. Errors: what GramFile refuses.
  [[nodiscard]] std::string hash() const;

  // That are held while factors are made and used by so many threads, for the widest weight.
  [[nodiscard]] std::uint64_t needed_bytes(int num_threads) const;

  // "gptq: 210 of 212 quantized tensors; the others' inputs have no Gram matrix"
  [[nodiscard]] std::string describe() const;

 private:
  [[nodiscard]] bool knows_inputs(std::size_t tensor) const;
  [[nodiscard]] std::shared_ptr<const ErrorFeedback> make(
      const TensorWork& work, const std::vector<ActivationFold>& folds) const;

  const Plan& plan_;
  const Statistics& statistics_;
  std::vector<std::vector<std::size_t>> activations_of_;  // that a tensor reads
  std::vector<bool> is_known_;  // tensors, of all of whose inputs there is a Gram matrix
  GramFile file_;
  std::mutex mutex_;
  // Latest first; few.
  std::deque<std::pair<std::vector<std::size_t>, std::shared_ptr<const ErrorFeedback>>> kept_;
};

}  // namespace quantmill
