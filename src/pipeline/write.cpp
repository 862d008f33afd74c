#include "pipeline/write.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <optional>

#include <fmt/format.h>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/parallel.h"
#include "pipeline/node_spans.h"

namespace quantmill {
namespace {

// This node's tasks that are still to do, largest first, or those together that share a factor of
// `feedback`.
std::vector<std::size_t> own_tasks(const Team& team,
                                   const Plan& plan,
                                   const std::vector<std::size_t>& node_of_task,
                                   FeedbackFactors* feedback,
                                   const JobJournal& journal) {
  std::vector<std::size_t> tasks;
  for (std::size_t task = 0; task < plan.write_tasks.size(); ++task) {
    if (node_of_task[task] == team.node_index && !journal.has(JournalPhase::kWrite, task)) {
      tasks.push_back(task);
    }
  }
  std::ranges::stable_sort(tasks, [&](std::size_t a, std::size_t b) {
    return plan.write_tasks[a].cost > plan.write_tasks[b].cost;
  });
  if (feedback != nullptr) {
    std::vector<std::vector<std::size_t>> keys(plan.write_tasks.size());
    for (const std::size_t task : tasks) {
      keys[task] = feedback->key(plan.tensors[plan.write_tasks[task].tensor]);
    }
    // What takes none comes last: it is quick.
    std::ranges::stable_sort(
        tasks, std::ranges::greater(), [&](std::size_t task) { return keys[task]; });
  }
  return tasks;
}

std::vector<File> open_shards(const Plan& plan, const std::filesystem::path& folder) {
  std::vector<File> files;
  for (const OutputShard& shard : plan.shards) {
    files.push_back(File::open_to_write(folder / shard.file_name));
  }
  return files;
}

// A file that an earlier run of the job wrote to must still be there.
void check_earlier_file(const std::filesystem::path& path, std::uint64_t size_bytes) {
  std::error_code failure;
  if (std::filesystem::file_size(path, failure) != size_bytes || failure) {
    throw Error(ErrorCode::kIo,
                fmt::format("{}: the unfinished job wrote to this file, but it is gone or no "
                            "longer {} bytes; put it back, or start anew with --restart",
                            path.string(),
                            size_bytes));
  }
}

// Creates this rank's share of all shards: reserved at full size, with header, durable.
void create_shards(const Team& team,
                   const Plan& plan,
                   const std::filesystem::path& folder,
                   bool resumed) {
  for (std::size_t shard = 0; shard < plan.shards.size(); ++shard) {
    if (shard % static_cast<std::size_t>(team.world.size()) !=
        static_cast<std::size_t>(team.world.rank())) {
      continue;
    }
    const std::filesystem::path path = folder / plan.shards[shard].file_name;
    if (resumed) {
      check_earlier_file(path, plan.shards[shard].size_bytes());
      continue;
    }
    std::filesystem::create_directories(path.parent_path());
    const File file = File::open_to_write(path);
    file.reserve(plan.shards[shard].size_bytes());
    file.write_at(0, std::as_bytes(std::span(plan.shards[shard].header)));
    file.sync();
    for (std::filesystem::path holder = path.parent_path();; holder = holder.parent_path()) {
      sync_folder(holder);
      if (holder == folder) {
        break;
      }
    }
  }
}

// Drops what one worker writes from the page cache, each piece when the next is written: by then
// there is little to wait for. Through a file of its own, so that no failure is lost on those that
// are synced.
class DropBehind {
 public:
  void wrote(const File& file, std::uint64_t offset, std::uint64_t size_bytes) {
    if (file_) {
      file_->wait_for_sync(offset_, size_bytes_);
      file_->drop_cached(offset_, size_bytes_);
    }
    if (!file_ || file_->path() != file.path()) {
      file_ = File::open_to_write(file.path());
    }
    offset_ = offset;
    size_bytes_ = size_bytes;
  }

 private:
  std::optional<File> file_;
  std::uint64_t offset_ = 0;
  std::uint64_t size_bytes_ = 0;
};

// Syncs and hashes the shards that this node finishes, shared among its ranks; `hashes` gets 32
// characters a shard. What other nodes wrote to them is synced.
void finish_shards(const Team& team,
                   const Plan& plan,
                   const std::vector<std::size_t>& node_of_shard,
                   const std::filesystem::path& folder,
                   const PageDrops& drops,
                   std::string& hashes) {
  int turn = 0;
  for (std::size_t shard = 0; shard < plan.shards.size(); ++shard) {
    if (node_of_shard[shard] != team.node_index) {
      continue;
    }
    if (turn++ % team.node.size() == team.node.rank()) {
      const std::filesystem::path path = folder / plan.shards[shard].file_name;
      hashes.replace(shard * 32, 32, hash_file(path, drops.output_at_once));
      const File file = File::open_to_write(path);
      file.sync();
      if (drops.when_done) {
        file.drop_cached(0, 0);
      }
    }
  }
}

// Each shard's hash from the rank that made it.
std::vector<ManifestFile> gather_files(const Team& team,
                                       const Plan& plan,
                                       const std::string& hashes) {
  const auto all = team.world.gather_all(std::as_bytes(std::span(hashes)));
  std::vector<ManifestFile> files;
  for (std::size_t shard = 0; shard < plan.shards.size(); ++shard) {
    files.push_back({plan.shards[shard].file_name, plan.shards[shard].size_bytes(), {}});
    for (const auto& bytes : all) {
      const std::string text(reinterpret_cast<const char*>(bytes.data()) + shard * 32, 32);
      if (text.front() != ' ') {
        files.back().xxh128 = text;
      }
    }
  }
  return files;
}

// Of each task: errors and norms, plain and weighted.
constexpr std::size_t kNumSums = 4;

// How much of its tensor a task is.
double part_of_tensor(const Plan& plan, std::size_t task) {
  const WriteTask& write = plan.write_tasks[task];
  const TensorWork& work = plan.tensors[write.tensor];
  const std::uint64_t all = work.action == Action::kCopy ? work.output_bytes() : work.rows;
  return std::min(1.0,
                  static_cast<double>(write.end - write.begin) /
                      static_cast<double>(std::max<std::uint64_t>(1, all)));
}

// One rank brings in what earlier runs found.
std::vector<double> earlier_sums(const Team& team, const Plan& plan, const JobJournal& journal) {
  std::vector<double> sums(kNumSums * plan.write_tasks.size(), 0.0);
  for (std::size_t task = 0; task < plan.write_tasks.size(); ++task) {
    const auto earlier = journal.find(JournalPhase::kWrite, task, kNumSums);
    if (team.is_leader() && earlier) {
      std::ranges::copy(*earlier, sums.begin() + static_cast<std::ptrdiff_t>(kNumSums * task));
    }
  }
  return sums;
}

std::vector<TensorError> tensor_errors(const Plan& plan, std::span<const double> sums) {
  std::vector<WorkErrors> by_tensor(plan.tensors.size());
  for (std::size_t task = 0; task < plan.write_tasks.size(); ++task) {
    WorkErrors& tensor = by_tensor[plan.write_tasks[task].tensor];
    const std::span<const double> found = sums.subspan(kNumSums * task, kNumSums);
    tensor.plain.squared_error += found[0];
    tensor.plain.squared_norm += found[1];
    tensor.weighted.squared_error += found[2];
    tensor.weighted.squared_norm += found[3];
  }
  std::vector<TensorError> errors;
  for (std::size_t tensor = 0; tensor < plan.tensors.size(); ++tensor) {
    if (plan.tensors[tensor].is_quantized()) {
      const WorkErrors& found = by_tensor[tensor];
      errors.push_back({plan.tensors[tensor].name,
                        std::string(plan.tensors[tensor].stored_name()),
                        found.plain.relative(),
                        found.weighted.squared_norm > 0 ? std::optional(found.weighted.relative())
                                                        : std::nullopt});
    }
  }
  return errors;
}

}  // namespace

WrittenShards write_shards(const Team& team,
                           const Context& context,
                           const Checkpoint& checkpoint,
                           const Plan& plan,
                           const std::vector<ActivationFold>& folds,
                           const TensorRanges& ranges,
                           const ColumnImportance& importance,
                           FeedbackFactors* feedback,
                           const std::filesystem::path& folder,
                           std::uint64_t buffer_bytes,
                           const PageDrops& drops,
                           JobJournal& journal) {
  const std::vector<std::size_t> node_of_task = nodes_of_write_tasks(plan, team.node_ranks);
  const bool resumed = journal.num_tasks(JournalPhase::kWrite) > 0;
  std::vector<File> files;
  team.world.collectively([&] { create_shards(team, plan, folder, resumed); });
  team.world.collectively([&] { files = open_shards(plan, folder); });
  auto workers = make_workers<RowProducer>(team.num_threads,
                                           context,
                                           checkpoint,
                                           plan,
                                           folds,
                                           ranges,
                                           importance,
                                           feedback,
                                           buffer_bytes);
  // Shards with bytes that are not synced yet. Set after the bytes are written and before their
  // task is noted.
  std::vector<std::atomic<bool>> touched(plan.shards.size());
  const auto sync_touched = [&] {
    for (std::size_t shard = 0; shard < touched.size(); ++shard) {
      if (touched[shard].exchange(false)) {
        files[shard].sync();
      }
    }
  };
  journal.set_data_sync(sync_touched);
  std::vector<DropBehind> behind(workers.size());
  const auto write_of = [&](std::size_t worker) -> Emit {
    return [&, worker](std::size_t shard, std::uint64_t offset, std::span<const std::byte> bytes) {
      files[shard].write_at(offset, bytes);
      files[shard].begin_sync(offset, bytes.size());
      touched[shard] = true;
      if (drops.output_at_once) {
        behind[worker].wrote(files[shard], offset, bytes.size());
      }
    };
  };
  std::vector<double> sums = earlier_sums(team, plan, journal);
  run_tasks(
      team,
      {"write",
       own_tasks(team, plan, node_of_task, feedback, journal),
       [&](std::size_t task) { return plan.write_tasks[task].cost; },
       Work::kEncode,
       [&](std::size_t task, int worker) {
         workers[static_cast<std::size_t>(worker)].expect(plan.write_tasks[task]);
       },
       [&](std::size_t task) { return part_of_tensor(plan, task); }},
      [&](std::size_t task, int worker) {
        WorkErrors errors;
        const auto index = static_cast<std::size_t>(worker);
        workers[index].produce(plan.write_tasks[task], write_of(index), errors);
        const std::span<double> found = std::span(sums).subspan(kNumSums * task, kNumSums);
        found[0] = errors.plain.squared_error;
        found[1] = errors.plain.squared_norm;
        found[2] = errors.weighted.squared_error;
        found[3] = errors.weighted.squared_norm;
        journal.add(JournalPhase::kWrite, task, found);
      },
      [&] {
        journal.flush();
        journal.set_data_sync({});
        if (team.node_ranks.size() > 1) {
          sync_touched();  // another node may read them, to finish the shard
        }
        files.clear();
      });
  std::string hashes(plan.shards.size() * 32, ' ');
  const std::vector<std::size_t> node_of_shard = nodes_of_shards(plan, node_of_task);
  team.world.collectively([&] { finish_shards(team, plan, node_of_shard, folder, drops, hashes); });
  team.world.sum_disjoint(sums);
  return {gather_files(team, plan, hashes), tensor_errors(plan, sums)};
}

}  // namespace quantmill
