#pragma once

// How the search block by block is cut and shared out. Pure: no rank computes or sends anything.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "plan/plan.h"

namespace quantmill {

struct ChunkLimits {
  // Chunks of so many weights, as long as a group has no more of them than `most`: what chunks give
  // is added up, and each is sent to all ranks.
  std::uint64_t weights = std::uint64_t{64} << 20;
  std::size_t most = 64;
  // What a rank holds of a wave.
  std::uint64_t wave_bytes = std::uint64_t{128} << 20;
};

// Some readers of a fold group, one after the other: the plan's search tasks [first, last).
struct SearchChunk {
  std::size_t group = 0;
  std::size_t first = 0;
  std::size_t last = 0;
  bool is_whole = false;           // all of its group
  std::uint64_t measure_cost = 0;  // elements read to measure columns and choose rows
  std::uint64_t search_cost = 0;   // elements read to try candidates
  std::uint64_t cost = 0;          // both
};

// In the order of the plan's tasks, of a plan with Scaling::kBlockGrid. They depend on the plan
// alone, as the sums that are taken chunk by chunk do. A reader is not cut.
std::vector<SearchChunk> cut_into_chunks(const Plan& plan, const ChunkLimits& limits = {});

// The activations that a chunk has readers of, in the order of its tasks.
std::vector<std::size_t> activations_of(const Plan& plan, const SearchChunk& chunk);

// Those of them whose first reader it has.
std::vector<std::size_t> begun_activations(const Plan& plan, const SearchChunk& chunk);

// What is chosen together: a block of channels, or the whole group.
struct SearchUnits {
  bool by_blocks = true;
  std::size_t count = 0;
};

SearchUnits units_of(const Plan& plan, std::size_t group);

// Whether each of tried_exponents is tried times the root of 2 too: half a step of the blocks'
// exponents. By shares it gains nothing.
bool has_half_steps(const Recipe& recipe);

// Numbers that are known of a chunk: ColumnMagnitudes of each of its activations, squares before
// shares; one weight for each row of its readers; one error for each unit and candidate of the
// group.
struct ChunkSizes {
  std::size_t magnitudes = 0;
  std::size_t row_weights = 0;
  std::size_t errors = 0;
};

ChunkSizes sizes_of(const Plan& plan, const SearchChunk& chunk);

// What is searched at a time. First the chunks of groups that were cut are measured, then, with
// what was found, they are searched. Groups that are whole fill the time in which others wait.
struct SearchWave {
  std::vector<std::size_t> cut;  // indices of chunks: all of their groups
  std::vector<std::size_t> whole;
};

// Waves of the chunks whose groups are wanted (by index of the group), none of which takes a rank
// more than limits.wave_bytes unless it has but one group.
std::vector<SearchWave> make_waves(const Plan& plan,
                                   std::span<const SearchChunk> chunks,
                                   const std::vector<bool>& is_wanted,
                                   std::size_t num_nodes,
                                   const ChunkLimits& limits = {});

// Bytes that a rank holds of a wave: results of its node's chunks, about, and sums of all.
std::uint64_t held_bytes(const Plan& plan,
                         std::span<const SearchChunk> chunks,
                         const SearchWave& wave,
                         std::size_t num_nodes);

// The most that held_bytes says of a job on one node, where a rank holds more than on several.
std::uint64_t largest_wave_bytes(const Plan& plan);

// What one node does of a wave: the same cut chunks in both rounds, so that what the first finds
// stays on the node; indices of chunks, largest first.
struct WaveShare {
  std::vector<std::size_t> measured;  // and some that are whole
  std::vector<std::size_t> searched;  // and the others that are whole
};

WaveShare share_of_node(std::span<const SearchChunk> chunks,
                        const SearchWave& wave,
                        std::span<const int> node_ranks,
                        std::size_t node);

}  // namespace quantmill
