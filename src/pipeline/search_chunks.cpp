#include "pipeline/search_chunks.h"

#include <algorithm>

#include "kernels/mx.h"
#include "pipeline/node_spans.h"
#include "pipeline/team.h"

namespace quantmill {
namespace {

std::uint64_t weights_of(const Plan& plan, const SearchTask& task) {
  return (task.end - task.begin) * plan.architecture.tensors[task.tensor].in_features();
}

// Adds the chunks of the group whose tasks are [first, last).
void cut_group(const Plan& plan,
               std::size_t first,
               std::size_t last,
               const ChunkLimits& limits,
               std::vector<SearchChunk>& chunks) {
  std::vector<std::uint64_t> weights;
  std::uint64_t all = 0;
  for (std::size_t task = first; task < last; ++task) {
    weights.push_back(weights_of(plan, plan.search_tasks[task]));
    all += weights.back();
  }
  const std::uint64_t count = std::clamp<std::uint64_t>(all / limits.weights, 1, limits.most);
  const std::vector<std::size_t> chunk_of = cut_into_spans(weights, std::vector<int>(count, 1));
  const std::size_t before = chunks.size();
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const SearchTask& task = plan.search_tasks[first + i];
    if (i == 0 || chunk_of[i] != chunk_of[i - 1]) {
      chunks.push_back({task.group, first + i, first + i, false, 0, 0, 0});
    }
    SearchChunk& chunk = chunks.back();
    chunk.last = first + i + 1;
    chunk.measure_cost += weights[i];
    chunk.search_cost += task.cost - weights[i];
    chunk.cost += task.cost;
  }
  chunks.back().is_whole = chunks.size() == before + 1;
}

std::size_t num_magnitudes(const Plan& plan, std::size_t activation) {
  return 2 * plan.architecture.activations[activation].columns.num_columns();
}

std::uint64_t bytes_of(std::size_t num_values) {
  return sizeof(double) * num_values;
}

}  // namespace

std::vector<SearchChunk> cut_into_chunks(const Plan& plan, const ChunkLimits& limits) {
  std::vector<SearchChunk> chunks;
  const std::vector<SearchTask>& tasks = plan.search_tasks;
  for (std::size_t first = 0; first < tasks.size();) {
    std::size_t last = first;
    while (last < tasks.size() && tasks[last].group == tasks[first].group) {
      ++last;
    }
    cut_group(plan, first, last, limits, chunks);
    first = last;
  }
  return chunks;
}

std::vector<std::size_t> activations_of(const Plan& plan, const SearchChunk& chunk) {
  std::vector<std::size_t> activations;
  for (std::size_t task = chunk.first; task < chunk.last; ++task) {
    const std::size_t activation = plan.search_tasks[task].activation;
    if (activations.empty() || activations.back() != activation) {
      activations.push_back(activation);
    }
  }
  return activations;
}

std::vector<std::size_t> begun_activations(const Plan& plan, const SearchChunk& chunk) {
  std::vector<std::size_t> activations = activations_of(plan, chunk);
  if (chunk.first > 0 && plan.search_tasks[chunk.first - 1].activation == activations.front()) {
    activations.erase(activations.begin());
  }
  return activations;
}

SearchUnits units_of(const Plan& plan, std::size_t group) {
  const FoldGroup& fold_group = plan.architecture.fold_groups[group];
  const bool by_blocks = std::ranges::all_of(fold_group.activations, [&](std::size_t index) {
    return plan.architecture.activations[index].columns.size % kMxBlock == 0;
  });
  return {by_blocks, by_blocks ? fold_group.num_channels / kMxBlock : 1};
}

bool has_half_steps(const Recipe& recipe) {
  return recipe.fold_scales != FoldScales::kPow2 && !divides_by_shares(recipe);
}

ChunkSizes sizes_of(const Plan& plan, const SearchChunk& chunk) {
  ChunkSizes sizes;
  for (const std::size_t activation : activations_of(plan, chunk)) {
    sizes.magnitudes += num_magnitudes(plan, activation);
  }
  for (std::size_t task = chunk.first; task < chunk.last; ++task) {
    sizes.row_weights += plan.search_tasks[task].end;
  }
  sizes.errors = units_of(plan, chunk.group).count * tried_exponents(plan.recipe).size() *
                 (has_half_steps(plan.recipe) ? 2 : 1);
  return sizes;
}

std::vector<SearchWave> make_waves(const Plan& plan,
                                   std::span<const SearchChunk> chunks,
                                   const std::vector<bool>& is_wanted,
                                   std::size_t num_nodes,
                                   const ChunkLimits& limits) {
  std::vector<SearchWave> waves(1);
  std::uint64_t held = 0;  // of the last wave
  std::vector<std::size_t> whole;
  for (std::size_t first = 0, last = 0; first < chunks.size(); first = last) {
    SearchWave group;
    for (; last < chunks.size() && chunks[last].group == chunks[first].group; ++last) {
      group.cut.push_back(last);
    }
    if (!is_wanted[chunks[first].group]) {
      continue;
    }
    if (chunks[first].is_whole) {
      whole.push_back(first);
      continue;
    }
    const std::uint64_t bytes = held_bytes(plan, chunks, group, num_nodes);
    if (held > 0 && held + bytes > limits.wave_bytes) {
      waves.emplace_back();
      held = 0;
    }
    held += bytes;
    waves.back().cut.insert(waves.back().cut.end(), group.cut.begin(), group.cut.end());
  }
  for (std::size_t i = 0; i < whole.size(); ++i) {
    waves[i % waves.size()].whole.push_back(whole[i]);
  }
  return waves;
}

std::uint64_t held_bytes(const Plan& plan,
                         std::span<const SearchChunk> chunks,
                         const SearchWave& wave,
                         std::size_t num_nodes) {
  std::uint64_t of_nodes = 0;
  std::uint64_t of_all = 0;
  for (const std::size_t index : wave.cut) {
    const ChunkSizes sizes = sizes_of(plan, chunks[index]);
    of_nodes += bytes_of(sizes.magnitudes + sizes.row_weights + sizes.errors);
    for (const std::size_t activation : begun_activations(plan, chunks[index])) {
      of_all += bytes_of(num_magnitudes(plan, activation));
    }
  }
  return of_nodes / num_nodes + of_all;
}

std::uint64_t largest_wave_bytes(const Plan& plan) {
  constexpr std::size_t kOneNode = 1;
  const std::vector<SearchChunk> chunks = cut_into_chunks(plan);
  std::uint64_t largest = 0;
  for (const SearchWave& wave :
       make_waves(plan, chunks, std::vector<bool>(plan.groups.size(), true), kOneNode)) {
    largest = std::max(largest, held_bytes(plan, chunks, wave, kOneNode));
  }
  return largest;
}

WaveShare share_of_node(std::span<const SearchChunk> chunks,
                        const SearchWave& wave,
                        std::span<const int> node_ranks,
                        std::size_t node) {
  std::vector<std::size_t> all = wave.cut;
  all.insert(all.end(), wave.whole.begin(), wave.whole.end());
  std::vector<std::uint64_t> costs(all.size());
  std::ranges::transform(all, costs.begin(), [&](std::size_t chunk) { return chunks[chunk].cost; });
  const std::vector<std::size_t> node_of = assign_to_nodes(costs, node_ranks);
  std::vector<std::size_t> mine;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (node_of[i] == node) {
      mine.push_back(all[i]);
    }
  }
  std::ranges::stable_sort(
      mine, [&](std::size_t a, std::size_t b) { return chunks[a].cost > chunks[b].cost; });
  WaveShare share;
  bool is_next_measured = true;
  for (const std::size_t chunk : mine) {
    if (!chunks[chunk].is_whole) {
      share.measured.push_back(chunk);
      share.searched.push_back(chunk);
      continue;
    }
    const bool now = is_next_measured && !wave.cut.empty();
    (now ? share.measured : share.searched).push_back(chunk);
    is_next_measured = !is_next_measured;
  }
  return share;
}

}  // namespace quantmill
