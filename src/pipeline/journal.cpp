#include "pipeline/journal.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/hash.h"

namespace quantmill {
namespace {

constexpr std::string_view kMagic = "QMJRNL01";
constexpr std::string_view kPrefix = "journal.";
constexpr std::size_t kRecordHead = 16;  // phase, number of values, task

template <typename T>
void append(std::vector<std::byte>& bytes, const T& value) {
  const auto raw = std::as_bytes(std::span(&value, 1));
  bytes.insert(bytes.end(), raw.begin(), raw.end());
}

std::vector<std::filesystem::path> journal_files(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().filename().string().starts_with(kPrefix)) {
      files.push_back(entry.path());
    }
  }
  std::ranges::sort(files);
  return files;
}

// A batch has a checksum: what passes it was written so.
[[noreturn]] void fail_journal(std::string_view found) {
  throw Error(ErrorCode::kInput,
              fmt::format("the journal of the unfinished job can't be read: {}; start the job anew "
                          "with --restart",
                          found));
}

}  // namespace

JournalContents::JournalContents(std::span<const std::byte> payloads,
                                 std::size_t num_search_tasks,
                                 std::size_t num_write_tasks) {
  search_.tasks.resize(num_search_tasks);
  write_.tasks.resize(num_write_tasks);
  measure_.tasks.resize(num_write_tasks);
  while (!payloads.empty()) {
    if (payloads.size() < kRecordHead) {
      fail_journal("a record is cut short");
    }
    const auto phase = load_little_endian<std::uint32_t>(payloads);
    const std::size_t count = load_little_endian<std::uint32_t>(payloads.subspan(4));
    const auto task = load_little_endian<std::uint64_t>(payloads.subspan(8));
    payloads = payloads.subspan(kRecordHead);
    Phase* const found = find_phase(phase);
    if (found == nullptr) {
      fail_journal(fmt::format("a record of phase {}, which there is not", phase));
    }
    if (payloads.size() / sizeof(double) < count) {
      fail_journal("a record is cut short");
    }
    Phase& tasks = *found;
    if (task >= tasks.tasks.size()) {
      fail_journal(
          fmt::format("a record of task {}, but this job has {}", task, tasks.tasks.size()));
    }
    Place& place = tasks.tasks[task];
    tasks.num_finished += place.finished ? 0 : 1;
    place = {values_.size(), count, true};
    values_.resize(values_.size() + count);
    if (count > 0) {
      std::memcpy(values_.data() + place.begin, payloads.data(), count * sizeof(double));
    }
    payloads = payloads.subspan(count * sizeof(double));
  }
}

JournalContents::Phase* JournalContents::find_phase(std::uint32_t phase) {
  switch (static_cast<JournalPhase>(phase)) {
    case JournalPhase::kSearch:
      return &search_;
    case JournalPhase::kWrite:
      return &write_;
    case JournalPhase::kMeasure:
      return &measure_;
  }
  return nullptr;
}

const JournalContents::Phase& JournalContents::of(JournalPhase phase) const {
  return phase == JournalPhase::kSearch  ? search_
         : phase == JournalPhase::kWrite ? write_
                                         : measure_;
}

bool JournalContents::has(JournalPhase phase, std::uint64_t task) const {
  const std::vector<Place>& tasks = of(phase).tasks;
  return task < tasks.size() && tasks[task].finished;
}

std::optional<std::span<const double>> JournalContents::find(JournalPhase phase,
                                                             std::uint64_t task,
                                                             std::size_t num_values) const {
  if (!has(phase, task)) {
    return std::nullopt;
  }
  const Place& place = of(phase).tasks[task];
  if (place.count != num_values) {
    fail_journal(
        fmt::format("{} values of task {}, where this job has {}", place.count, task, num_values));
  }
  return std::span(values_).subspan(place.begin, place.count);
}

std::size_t JournalContents::num_tasks(JournalPhase phase) const {
  return of(phase).num_finished;
}

void read_journal(std::span<const std::byte> bytes, std::vector<std::byte>& payloads) {
  if (bytes.size() < kMagic.size() ||
      std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0) {
    return;
  }
  bytes = bytes.subspan(kMagic.size());
  while (bytes.size() >= sizeof(std::uint32_t)) {
    const std::size_t size = load_little_endian<std::uint32_t>(bytes);
    if (bytes.size() - sizeof(std::uint32_t) < size + sizeof(std::uint64_t)) {
      return;
    }
    const auto payload = bytes.subspan(sizeof(std::uint32_t), size);
    const auto stored =
        load_little_endian<std::uint64_t>(bytes.subspan(sizeof(std::uint32_t) + size));
    if (stored != hash_bytes(payload)) {
      return;
    }
    payloads.insert(payloads.end(), payload.begin(), payload.end());
    bytes = bytes.subspan(sizeof(std::uint32_t) + size + sizeof(std::uint64_t));
  }
}

std::vector<std::byte> read_journals(const std::filesystem::path& folder) {
  std::vector<std::byte> payloads;
  for (const std::filesystem::path& path : journal_files(folder)) {
    const File file = File::open_to_read(path);
    std::vector<std::byte> bytes(file.size_bytes());
    file.read_at(0, bytes);
    read_journal(bytes, payloads);
  }
  return payloads;
}

std::uint64_t next_journal_run(const std::filesystem::path& folder) {
  std::uint64_t next = 0;
  for (const std::filesystem::path& path : journal_files(folder)) {
    const std::string name = path.filename().string();
    std::uint64_t run = 0;
    std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), run);
    next = std::max(next, run + 1);
  }
  return next;
}

JournalWriter::JournalWriter(const std::filesystem::path& folder,
                             std::uint64_t run,
                             int rank,
                             std::chrono::milliseconds interval)
    : file_(File::open_to_write(
          folder / (std::string(kPrefix) + std::to_string(run) + "." + std::to_string(rank)))),
      end_(kMagic.size()),
      interval_(interval),
      last_flush_(std::chrono::steady_clock::now()) {
  file_.write_at(0, std::as_bytes(std::span(kMagic)));
  file_.sync();
  sync_folder(folder);
}

void JournalWriter::add(JournalPhase phase, std::uint64_t task, std::span<const double> values) {
  const std::lock_guard lock(mutex_);
  append(pending_, static_cast<std::uint32_t>(phase));
  append(pending_, narrow<std::uint32_t>(values.size()));
  append(pending_, task);
  const auto raw = std::as_bytes(values);
  pending_.insert(pending_.end(), raw.begin(), raw.end());
  if (std::chrono::steady_clock::now() - last_flush_ >= interval_) {
    flush_locked();
  }
}

void JournalWriter::set_data_sync(std::function<void()> sync) {
  const std::lock_guard lock(mutex_);
  sync_data_ = std::move(sync);
}

void JournalWriter::flush() {
  const std::lock_guard lock(mutex_);
  flush_locked();
}

void JournalWriter::flush_locked() {
  last_flush_ = std::chrono::steady_clock::now();
  if (pending_.empty() || data_lost_) {
    return;
  }
  if (sync_data_) {
    data_lost_ = true;
    sync_data_();
    data_lost_ = false;
  }
  std::vector<std::byte> batch;
  append(batch, narrow<std::uint32_t>(pending_.size()));
  batch.insert(batch.end(), pending_.begin(), pending_.end());
  append(batch, hash_bytes(pending_));
  file_.write_at(end_, batch);
  file_.sync();
  end_ += batch.size();
  pending_.clear();
  last_flush_ = std::chrono::steady_clock::now();
}

JobJournal::JobJournal(JournalContents earlier, std::unique_ptr<JournalWriter> writer)
    : earlier_(std::move(earlier)), writer_(std::move(writer)) {}

bool JobJournal::has(JournalPhase phase, std::uint64_t task) const {
  return earlier_.has(phase, task);
}

std::optional<std::span<const double>> JobJournal::find(JournalPhase phase,
                                                        std::uint64_t task,
                                                        std::size_t num_values) const {
  return earlier_.find(phase, task, num_values);
}

std::size_t JobJournal::num_tasks(JournalPhase phase) const {
  return earlier_.num_tasks(phase);
}

void JobJournal::add(JournalPhase phase, std::uint64_t task, std::span<const double> values) {
  if (writer_) {
    writer_->add(phase, task, values);
  }
}

void JobJournal::set_data_sync(std::function<void()> sync) {
  if (writer_) {
    writer_->set_data_sync(std::move(sync));
  }
}

void JobJournal::flush() {
  if (writer_) {
    writer_->flush();
  }
}

}  // namespace quantmill
