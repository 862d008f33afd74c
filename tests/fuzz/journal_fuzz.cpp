// Any bytes as a journal: what is sound in it is read, the rest is left or refused. The first
// byte's lowest bit tells whether the rest is a file or the payload of a sound batch.

#include "pipeline/journal.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/hash.h"
#include "fuzz.h"

namespace quantmill {
namespace {

constexpr std::size_t kSearchTasks = 5;
constexpr std::size_t kWriteTasks = 9;
constexpr std::size_t kValues = 4;

template <typename T>
void append(std::vector<std::byte>& bytes, const T& value) {
  const auto raw = std::as_bytes(std::span(&value, 1));
  bytes.insert(bytes.end(), raw.begin(), raw.end());
}

std::vector<std::byte> file_of(std::span<const std::byte> payload) {
  constexpr std::string_view kMagic = "QMJRNL01";
  std::vector<std::byte> bytes(kMagic.size());
  std::memcpy(bytes.data(), kMagic.data(), kMagic.size());
  append(bytes, static_cast<std::uint32_t>(payload.size()));
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  append(bytes, hash_bytes(payload));
  return bytes;
}

void check_contents(std::span<const std::byte> payloads) {
  const JournalContents contents(payloads, kSearchTasks, kWriteTasks);
  std::size_t found = 0;
  for (std::size_t task = 0; task < 2 * kWriteTasks; ++task) {
    for (const JournalPhase phase :
         {JournalPhase::kSearch, JournalPhase::kWrite, JournalPhase::kMeasure}) {
      found += contents.has(phase, task) ? 1U : 0U;
      fuzz::only_input_errors([&] {
        const auto values = contents.find(phase, task, kValues);
        fuzz::require(!values || values->size() == kValues, "as many values as asked for");
        fuzz::require(values.has_value() == contents.has(phase, task), "a finished task is found");
      });
    }
  }
  fuzz::require(found == contents.num_tasks(JournalPhase::kSearch) +
                             contents.num_tasks(JournalPhase::kWrite) +
                             contents.num_tasks(JournalPhase::kMeasure),
                "finished tasks are counted once");
}

}  // namespace
}  // namespace quantmill

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quantmill;
  if (size == 0) {
    return 0;
  }
  const auto input = std::as_bytes(std::span(data, size)).subspan(1);
  std::vector<std::byte> payloads;
  if ((data[0] & 1) == 0) {
    read_journal(input, payloads);
    fuzz::require(payloads.size() <= input.size(), "payloads are parts of the file");
  } else {
    read_journal(file_of(input), payloads);
    fuzz::require(std::ranges::equal(payloads, input), "a sound batch is read");
  }
  fuzz::only_input_errors([&] { check_contents(payloads); });
  return 0;
}
