#include "pipeline/node_spans.h"

#include <algorithm>
#include <numeric>

namespace quantmill {
namespace {

std::size_t shard_of(const Plan& plan, const WriteTask& task) {
  return plan.tensors[task.tensor].parts.front().shard;
}

}  // namespace

std::vector<std::size_t> cut_into_spans(std::span<const std::uint64_t> costs,
                                        std::span<const int> node_ranks) {
  const auto total =
      static_cast<double>(std::accumulate(costs.begin(), costs.end(), std::uint64_t{0}));
  const auto ranks =
      static_cast<double>(std::accumulate(node_ranks.begin(), node_ranks.end(), std::uint64_t{0}));
  std::vector<std::size_t> node_of;
  std::size_t node = 0;
  auto ranks_so_far = static_cast<double>(node_ranks.front());
  double begin = 0;
  for (const std::uint64_t cost : costs) {
    // An item belongs to the node that its middle falls to.
    const double middle = begin + static_cast<double>(cost) / 2;
    while (node + 1 < node_ranks.size() && middle * ranks >= total * ranks_so_far) {
      ++node;
      ranks_so_far += static_cast<double>(node_ranks[node]);
    }
    node_of.push_back(node);
    begin += static_cast<double>(cost);
  }
  return node_of;
}

std::vector<std::size_t> nodes_of_write_tasks(const Plan& plan, std::span<const int> node_ranks) {
  std::vector<std::size_t> order(plan.write_tasks.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(
      order, {}, [&](std::size_t task) { return shard_of(plan, plan.write_tasks[task]); });
  std::vector<std::uint64_t> costs;
  costs.reserve(order.size());
  for (const std::size_t task : order) {
    costs.push_back(plan.write_tasks[task].cost);
  }
  const std::vector<std::size_t> spans = cut_into_spans(costs, node_ranks);
  std::vector<std::size_t> node_of(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    node_of[order[i]] = spans[i];
  }
  return node_of;
}

std::vector<std::size_t> nodes_of_shards(const Plan& plan,
                                         std::span<const std::size_t> node_of_task) {
  // The node of its last task: the first may belong to one that writes most of the shard before.
  std::vector<std::size_t> node_of(plan.shards.size(), 0);
  for (std::size_t task = 0; task < plan.write_tasks.size(); ++task) {
    std::size_t& node = node_of[shard_of(plan, plan.write_tasks[task])];
    node = std::max(node, node_of_task[task]);
  }
  return node_of;
}

}  // namespace quantmill
