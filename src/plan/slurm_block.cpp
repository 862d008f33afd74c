#include "plan/slurm_block.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/byte_size.h"
#include "base/checked.h"

namespace quantmill {
namespace {

constexpr std::uint64_t kWantedSeconds = 1800;
constexpr std::uint64_t kCoresPerNode = 16;
// What a process holds beside --memory: its libraries, MPI's buffers, pages of files.
constexpr std::uint64_t kBesideMemoryMib = 512;
constexpr std::uint64_t kStartMinutes = 10;
constexpr std::uint64_t kRoundMinutes = 5;

// As sbatch takes it: HH:MM:SS, with days before it if there are any.
std::string format_limit(std::uint64_t minutes) {
  const std::uint64_t days = minutes / (std::uint64_t{24} * 60);
  const std::string time = fmt::format("{:02}:{:02}:00", minutes / 60 % 24, minutes % 60);
  return days > 0 ? fmt::format("{}-{}", days, time) : time;
}

}  // namespace

SlurmBlock suggest_slurm_block(const Plan& plan,
                               std::uint64_t memory_bytes,
                               int num_threads,
                               std::uint64_t assumed_rate,
                               bool is_measured) {
  SlurmBlock block;
  block.is_measured = is_measured;
  block.source_bytes = plan.source_bytes;
  block.assumed_rate = assumed_rate > 0            ? assumed_rate
                       : plan.search_tasks.empty() ? kAssumedRateWithoutSearch
                                                   : kAssumedRateWithSearch;
  block.cpus_per_task = static_cast<std::uint64_t>(std::max(1, num_threads));
  const std::uint64_t core_seconds = divide_up(plan.source_bytes, block.assumed_rate);
  const std::uint64_t ranks =
      std::max<std::uint64_t>(1, divide_up(core_seconds, kWantedSeconds * block.cpus_per_task));
  const std::uint64_t ranks_of_a_node =
      std::max<std::uint64_t>(1, kCoresPerNode / block.cpus_per_task);
  block.nodes = std::clamp<std::uint64_t>(
      divide_up(ranks, ranks_of_a_node), 1, std::max<std::size_t>(1, plan.shards.size()));
  block.tasks_per_node = std::min(ranks_of_a_node, divide_up(ranks, block.nodes));
  const std::uint64_t mib = std::uint64_t{1} << 20;
  block.memory_mib = block.tasks_per_node * (divide_up(memory_bytes, mib) + kBesideMemoryMib);
  block.estimated_seconds =
      divide_up(core_seconds, block.nodes * block.tasks_per_node * block.cpus_per_task);
  block.limit_minutes =
      kRoundMinutes *
      divide_up(divide_up(2 * block.estimated_seconds, 60) + kStartMinutes, kRoundMinutes);
  return block;
}

std::string print_slurm_block(const SlurmBlock& block) {
  return fmt::format(
      "#SBATCH --job-name=quantmill\n"
      "#SBATCH --nodes={}\n"
      "#SBATCH --ntasks-per-node={}\n"
      "#SBATCH --cpus-per-task={}\n"
      "#SBATCH --mem={}M\n"
      "#SBATCH --time={}\n"
      "#SBATCH --output=quantmill-%j.log\n"
      "#SBATCH --open-mode=append\n"
      "#SBATCH --requeue\n"
      "#SBATCH --signal=USR1@120\n",
      block.nodes,
      block.tasks_per_node,
      block.cpus_per_task,
      block.memory_mib,
      format_limit(block.limit_minutes));
}

std::string describe_slurm_block(const SlurmBlock& block) {
  const std::uint64_t cores = block.nodes * block.tasks_per_node * block.cpus_per_task;
  return fmt::format(
      "under Slurm: {} of source at {} {}/s a core take {} min on {} cores, if the file "
      "system delivers{};\nto paste over the #SBATCH lines of "
      "jobs/slurm/quantize.sbatch:\n{}",
      format_size(block.source_bytes),
      block.is_measured ? "the measured" : "an assumed",
      format_size(block.assumed_rate),
      divide_up(block.estimated_seconds, 60),
      cores,
      block.is_measured ? "" : " (--assume rate=SIZE changes it)",
      print_slurm_block(block));
}

}  // namespace quantmill
