#pragma once

// What one worker computes of the search block by block (block_search.h). It knows nothing of other
// workers.

#include <cstddef>
#include <span>
#include <vector>

#include "checkpoint/reader.h"
#include "device/context.h"
#include "pipeline/column_magnitudes.h"
#include "pipeline/finite_rows.h"
#include "pipeline/search_chunks.h"
#include "pipeline/weight_reader.h"
#include "plan/column_importance.h"
#include "plan/plan.h"
#include "quant/row_sample.h"
#include "stats/statistics.h"

namespace quantmill {

// Of a group's result: without scaling, as chosen. s of each channel follows them.
constexpr std::size_t kNumBlockErrors = 2;

// Adds what was measured of a chunk (ChunkSizes::magnitudes) to the table of its group.
void add_to_table(const Plan& plan,
                  const SearchChunk& chunk,
                  std::span<const double> magnitudes,
                  MagnitudeTable& table);

// Not thread-safe. Errors as FiniteRows::read.
class ChunkSearcher {
 public:
  // The arguments must outlive it. counted: counts_tokens.
  ChunkSearcher(const Context& context,
                const Checkpoint& checkpoint,
                const Plan& plan,
                const Statistics& statistics,
                bool counted,
                const ColumnImportance& importance);

  // Reads all rows of a chunk, and tells which are looked at: `magnitudes` and `row_weights` are
  // zeros, of ChunkSizes. A row's weight is RowSample's, 0 for one that is not in it.
  void measure(const SearchChunk& chunk,
               std::span<double> magnitudes,
               std::span<double> row_weights);

  // Adds the chunk's errors to `errors` (ChunkSizes), by unit and candidate: reader after reader,
  // then of activations that begin in it. `table`: of its whole group.
  void search(const SearchChunk& chunk,
              const MagnitudeTable& table,
              std::span<const double> row_weights,
              std::span<double> errors);

  // Fills `result` of a group: kNumBlockErrors errors, then s of every channel.
  void choose(std::size_t group,
              const MagnitudeTable& table,
              std::span<const double> errors,
              std::span<double> result);

  // All three, of a group that is one chunk.
  void search_whole(const SearchChunk& chunk, std::span<double> result);

 private:
  std::span<const float> column_importance(const Activation& activation);
  void make_candidates(std::size_t group, const MagnitudeTable& table);
  [[nodiscard]] std::span<double> errors_of_block(const ColumnMap& columns,
                                                  std::size_t block,
                                                  std::span<double> errors) const;
  void add_errors(const SearchChunk& chunk,
                  const MagnitudeTable& table,
                  std::span<const double> row_weights,
                  std::span<double> errors);
  void add_weight_errors(const SearchTask& task, const RowSample& sample, std::span<double> errors);
  void add_activation_errors(std::size_t index,
                             const MagnitudeTable& table,
                             std::span<double> errors);
  void pick(std::size_t group, std::span<const double> errors, std::span<double> result) const;

  const Context& context_;
  const Plan& plan_;
  const Statistics& statistics_;
  bool counted_;
  const ColumnImportance& importance_;
  MagnitudeMeter meter_;
  WeightReader reader_;
  FiniteRows rows_;
  std::vector<float> alike_;
  // Of the group that is worked on.
  std::vector<std::vector<float>> candidates_;  // s by channel
  SearchUnits units_;
  std::vector<double> block_sums_;  // [blocks of columns, candidates], of a reader
};

}  // namespace quantmill
