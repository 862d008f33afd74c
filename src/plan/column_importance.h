#pragma once

// How much each column of a weight matters to what comes out: the root mean square of what it is
// multiplied by while the model runs. Weighs errors when scales and exponents are searched.

#include <cstdint>
#include <vector>

#include "plan/architecture.h"
#include "stats/scales.h"
#include "stats/statistics.h"

namespace quantmill {

// Whether every record says how many tokens it saw.
bool counts_tokens(const Statistics& statistics);

// Of the activations whose input was recorded (match_statistics has been called) and that
// min_tokens tokens reached: sqrt(n E[x^2]) where x^2 was recorded, sqrt(n) E|x| otherwise, where n
// is the token count if every record has one (counts_tokens), and 1 otherwise: a tensor that reads
// several activations sees the tokens of all. A channel that was silent in the recording may not be
// so for ever: E[x^2] counts as at least a millionth of its mean over the channels. kInput: a
// record of another length than the columns of its readers.
ImportanceTable make_importance(const ResolvedArchitecture& architecture,
                                const Statistics& statistics,
                                std::uint64_t min_tokens);

// The table by tensors. `architecture` must outlive it.
class ColumnImportance {
 public:
  // kInput naming the activation if the table is of another model.
  ColumnImportance(const ResolvedArchitecture& architecture, ImportanceTable table);

  // One value per in feature of a linear: the root of the sum of squares over the activations that
  // it reads there; 1 where nothing is known, and empty if nothing is known at all.
  [[nodiscard]] std::vector<float> of(std::size_t tensor) const;

  [[nodiscard]] const ImportanceTable& table() const { return table_; }

 private:
  const ResolvedArchitecture* architecture_;
  ImportanceTable table_;
  std::vector<std::vector<std::size_t>> activations_of_;  // with importance, by tensor
};

}  // namespace quantmill
