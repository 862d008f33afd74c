#include "pipeline/heartbeat.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "base/error.h"
#include "base/terminal.h"

#include "base/file.h"
#include "base/hash.h"

namespace quantmill {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::nanoseconds;

// What each rank leaves in its node's memory. Times are of the steady clock, which the processes of
// a machine share.
enum SignWord : std::size_t {
  kHasWork,
  kFinishedAt,
  kSignAt,
  kNumTasks,
  kNumBytes,
  kNumTensors,  // in millionths
  kNumSigns
};

// A node's file: token, sequence, the signs of its ranks with ages in place of times, XXH3-64 of
// all that.
constexpr std::size_t kFileHead = 2;
constexpr std::size_t kSignsPerInterval = 4;
constexpr double kMillionths = 1e6;
constexpr nanoseconds kLiveInterval = std::chrono::milliseconds(200);

// What the ranks tell each other when a watch begins.
struct Introduction {
  std::uint64_t token = 0;  // rank 0's
  std::uint64_t node = 0;
  std::uint64_t num_tasks = 0;  // of the node, from its first rank
  std::uint64_t num_bytes = 0;
  std::uint64_t num_tensors = 0;
  std::array<char, 64> host{};
};

std::uint64_t now() {
  return static_cast<std::uint64_t>(nanoseconds(Clock::now().time_since_epoch()).count());
}

// Another rank's stamp may be a little later than this one's look at the clock.
std::uint64_t age(std::uint64_t stamp) {
  const std::uint64_t time = now();
  return time > stamp ? time - stamp : 0;
}

nanoseconds to_duration(std::uint64_t count) {
  return nanoseconds(static_cast<std::int64_t>(count));
}

double to_seconds(nanoseconds duration) {
  return std::chrono::duration<double>(duration).count();
}

std::string describe_return(const std::string& name, nanoseconds idle) {
  return fmt::format("{} goes on, after {:.1f} s or more", name, to_seconds(idle));
}

std::uint64_t to_millionths(double share) {
  return static_cast<std::uint64_t>(std::llround(share * kMillionths));
}

std::vector<Introduction> introduce(const Team& team, const TaskList& list) {
  Introduction mine;
  mine.token = now() ^ (static_cast<std::uint64_t>(::getpid()) << 48);
  mine.node = team.node_index;
  if (team.node.rank() == 0) {
    mine.num_tasks = list.tasks.size();
    for (const std::size_t task : list.tasks) {
      mine.num_bytes += list.bytes(task);
      mine.num_tensors += list.tensors ? to_millionths(list.tensors(task)) : 0;
    }
  }
  ::gethostname(mine.host.data(), mine.host.size() - 1);
  std::vector<Introduction> all;
  for (const auto& bytes : team.world.gather_all(std::as_bytes(std::span(&mine, 1)))) {
    std::memcpy(&all.emplace_back(), bytes.data(), sizeof(Introduction));
  }
  return all;
}

}  // namespace

RankWatch::RankWatch(std::vector<std::string> names, nanoseconds interval) : interval_(interval) {
  for (std::string& name : names) {
    ranks_.push_back({std::move(name), interval});
  }
}

std::vector<std::string> RankWatch::look(std::span<const RankSigns> signs) {
  std::vector<std::string> lines;
  for (std::size_t index = 0; index < ranks_.size(); ++index) {
    Rank& rank = ranks_[index];
    const RankSigns& sign = signs[index];
    const bool is_silent = sign.silent >= interval_;
    const nanoseconds idle = std::max(sign.has_work ? sign.unfinished : nanoseconds(0),
                                      is_silent ? sign.silent : nanoseconds(0));
    if (idle >= rank.next) {
      lines.push_back(fmt::format(
          "{} {} for {:.1f} s",
          rank.name,
          is_silent ? "has given no sign of life (stopped, lost, or its machine overloaded)"
                    : "has work but has finished nothing",
          to_seconds(idle)));
      rank.told_last = idle;
      rank.next = 2 * idle;
    } else if (rank.told_last.count() > 0 && idle < interval_) {
      lines.push_back(describe_return(rank.name, rank.told_last));
      rank.told_last = nanoseconds(0);
      rank.next = interval_;
    }
  }
  return lines;
}

std::vector<std::string> RankWatch::finish() {
  std::vector<std::string> lines;
  for (const Rank& rank : ranks_) {
    if (rank.told_last.count() > 0) {
      lines.push_back(describe_return(rank.name, rank.told_last));
    }
  }
  return lines;
}

Heartbeat::Heartbeat(const Team& team, const TaskList& list)
    : team_(team),
      settings_(*team.heartbeat),
      phase_(list.phase),
      words_(team.node, static_cast<std::size_t>(team.node.size()) * kNumSigns),
      begun_(Clock::now()),
      nodes_(team.node_ranks.size()),
      next_progress_(Clock::now() + settings_.interval) {
  const auto mine = static_cast<std::size_t>(team.node.rank()) * kNumSigns;
  words_.at(mine + kHasWork).store(1);
  words_.at(mine + kFinishedAt).store(now());
  words_.at(mine + kSignAt).store(now());
  std::vector<std::string> names;
  for (const Introduction& rank : introduce(team, list)) {
    num_tasks_ += rank.num_tasks;
    num_bytes_ += rank.num_bytes;
    num_tensors_ += rank.num_tensors;
    token_ = members_.empty() ? rank.token : token_;
    NodeFile& node = nodes_[rank.node];
    node.seen_at = now();
    members_.push_back({rank.node, node.words.size() / kNumSigns});
    node.words.resize(node.words.size() + kNumSigns);
    names.push_back(fmt::format("rank {} on {}", names.size(), rank.host.data()));
  }
  names_ = names;
  const int rank = team.world.rank();
  if (rank == 1) {
    // Rank 0's log is out of reach while that rank is stopped.
    settings_.log = Log::open({LogLevel::kWarning, {}});
    names.resize(1);
  }
  if (rank < 2) {
    rank_watch_.emplace(std::move(names), settings_.interval);
  }
  thread_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
}

Heartbeat::~Heartbeat() {
  thread_.request_stop();
  if (thread_.joinable()) {
    thread_.join();
  }
  settings_.log.show("");
}

void Heartbeat::finished_task(std::uint64_t bytes, double tensors) noexcept {
  const auto mine = static_cast<std::size_t>(team_.node.rank()) * kNumSigns;
  words_.at(mine + kNumTasks).fetch_add(1);
  words_.at(mine + kNumBytes).fetch_add(bytes);
  words_.at(mine + kNumTensors).fetch_add(to_millionths(tensors));
  words_.at(mine + kFinishedAt).store(now());
}

void Heartbeat::finished_all() noexcept {
  words_.at(static_cast<std::size_t>(team_.node.rank()) * kNumSigns + kHasWork).store(0);
}

void Heartbeat::end() {
  thread_.request_stop();
  thread_.join();
  settings_.log.show("");
  if (rank_watch_) {
    warn(rank_watch_->finish());
  }
}

void Heartbeat::watch(const std::stop_token& stop) {
  const auto mine = static_cast<std::size_t>(team_.node.rank()) * kNumSigns;
  const bool has_other_nodes = nodes_.size() > 1;
  const bool is_live = settings_.log.is_live() && settings_.tells_progress;
  const nanoseconds sign_interval = settings_.interval / kSignsPerInterval;
  Clock::time_point next_sign = Clock::now() + sign_interval;
  std::unique_lock lock(mutex_);
  while (!stopping_.wait_for(
      lock, stop, is_live ? std::min(sign_interval, kLiveInterval) : sign_interval, [&] {
        return stop.stop_requested();
      })) {
    if (is_live) {
      settings_.log.show(progress_line(progress(), terminal_columns() - 1));
      if (Clock::now() < next_sign) {
        continue;
      }
      next_sign += sign_interval;
    }
    words_.at(mine + kSignAt).store(now());
    try {
      if (has_other_nodes && team_.node.rank() == 0) {
        pass_on();
      }
      if (has_other_nodes && rank_watch_) {
        read_other_nodes();
      }
      if (rank_watch_) {
        tell_of_ranks();
      }
      if (team_.is_leader() && Clock::now() >= next_progress_) {
        if (settings_.tells_progress) {
          tell_progress();
        }
        next_progress_ += settings_.interval;
      }
    } catch (const std::exception&) {  // a full disk or full memory stops the job where it matters
    }
  }
}

void Heartbeat::pass_on() {
  const auto ranks = static_cast<std::size_t>(team_.node.size());
  std::vector<std::uint64_t> words = {token_, ++sequence_};
  for (std::size_t word = 0; word < ranks * kNumSigns; ++word) {
    const bool is_time = word % kNumSigns == kFinishedAt || word % kNumSigns == kSignAt;
    const std::uint64_t value = words_.at(word).load();
    words.push_back(is_time ? age(value) : value);
  }
  words.push_back(hash_bytes(std::as_bytes(std::span(words))));
  // Opened anew each time: network file systems pass on what was written when a file is closed.
  File::open_to_write(file_of(team_.node_index)).write_at(0, std::as_bytes(std::span(words)));
}

void Heartbeat::read_other_nodes() {
  for (std::size_t node = 0; node < nodes_.size(); ++node) {
    if (node == team_.node_index || (!team_.is_leader() && node > 0)) {
      continue;
    }
    NodeFile& known = nodes_[node];
    std::vector<std::uint64_t> words(kFileHead + known.words.size() + 1);
    try {
      File::open_to_read(file_of(node)).read_at(0, std::as_writable_bytes(std::span(words)));
    } catch (const Error&) {  // not there yet, or just being written
      continue;
    }
    const std::uint64_t stored = words.back();
    words.pop_back();
    if (words[0] == token_ && words[1] != known.sequence &&
        stored == hash_bytes(std::as_bytes(std::span(words)))) {
      known.sequence = words[1];
      known.seen_at = now();
      std::copy(words.begin() + kFileHead, words.end(), known.words.begin());
    }
  }
}

std::uint64_t Heartbeat::word_of(const Member& member, std::size_t word) const {
  const std::size_t index = member.place * kNumSigns + word;
  return member.node == team_.node_index ? words_.at(index).load()
                                         : nodes_[member.node].words[index];
}

RankSigns Heartbeat::signs_of(const Member& member) const {
  const bool has_work = word_of(member, kHasWork) != 0;
  const std::uint64_t finished = word_of(member, kFinishedAt);
  const std::uint64_t sign = word_of(member, kSignAt);
  if (member.node == team_.node_index) {
    return {has_work, to_duration(age(finished)), to_duration(age(sign))};
  }
  // Nothing new of a node says something of the rank alone that writes for it.
  const NodeFile& node = nodes_[member.node];
  const std::uint64_t since = age(node.seen_at);
  if (node.sequence == 0) {
    return {false, {}, to_duration(member.place == 0 ? since : 0)};
  }
  return member.place == 0 ? RankSigns{has_work, to_duration(finished), to_duration(sign + since)}
                           : RankSigns{has_work, to_duration(finished), to_duration(sign)};
}

void Heartbeat::tell_of_ranks() {
  std::vector<RankSigns> signs;
  if (team_.is_leader()) {
    for (const Member& member : members_) {
      signs.push_back(signs_of(member));
    }
  } else {  // what rank 0 does is for rank 0 to tell, as long as it runs
    signs.push_back({false, {}, signs_of(members_.front()).silent});
  }
  warn(rank_watch_->look(signs));
}

void Heartbeat::warn(std::span<const std::string> lines) const {
  for (const std::string& line : lines) {
    settings_.log.warn(fmt::format("{}: {}", phase_, line));
  }
}

Progress Heartbeat::progress() const {
  Progress progress;
  progress.phase = phase_;
  progress.seconds = to_seconds(Clock::now() - begun_);
  progress.tasks.all = num_tasks_;
  progress.bytes.all = num_bytes_;
  std::uint64_t least = 0;
  std::uint64_t tensors = 0;
  for (std::size_t rank = 0; rank < members_.size(); ++rank) {
    const std::uint64_t bytes = word_of(members_[rank], kNumBytes);
    progress.tasks.done += word_of(members_[rank], kNumTasks);
    progress.bytes.done += bytes;
    tensors += word_of(members_[rank], kNumTensors);
    if (members_.size() > 1 && (rank == 0 || bytes < least)) {
      least = bytes;
      progress.slowest = names_[rank];
    }
  }
  progress.slowest_rate = static_cast<double>(least) / std::max(progress.seconds, 1e-9);
  progress.tensors = {
      static_cast<std::uint64_t>(static_cast<double>(tensors) / kMillionths),
      static_cast<std::uint64_t>(std::llround(static_cast<double>(num_tensors_) / kMillionths))};
  return progress;
}

void Heartbeat::tell_progress() {
  const Progress so_far = progress();
  settings_.log.progress(fmt::format("{}: {:.2f} of {:.2f} GB, {} of {} tasks",
                                     phase_,
                                     static_cast<double>(so_far.bytes.done) / 1e9,
                                     static_cast<double>(so_far.bytes.all) / 1e9,
                                     so_far.tasks.done,
                                     so_far.tasks.all));
}

std::filesystem::path Heartbeat::file_of(std::size_t node) const {
  return settings_.folder / fmt::format("heartbeat.{}", node);
}

}  // namespace quantmill
