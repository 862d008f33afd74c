#include "pipeline/journal.h"

#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_checkpoint.h"

namespace quantmill {
namespace {

using test::error_of;
using test::read_text;
using test::write_text;
using testing::ElementsAre;

class JournalTest : public testing::Test {
 protected:
  [[nodiscard]] const std::filesystem::path& path() const { return folder_.path(); }

  [[nodiscard]] JournalContents contents() const {
    return JournalContents(read_journals(path()), 10, 10);
  }

  // Three batches of one record each.
  void write_three(std::uint64_t run, int rank) const {
    JournalWriter writer(path(), run, rank, std::chrono::milliseconds(0));
    writer.add(JournalPhase::kSearch, 3, std::vector<double>{0.5, -1.25});
    writer.add(JournalPhase::kSearch, 0, std::vector<double>{});
    writer.add(JournalPhase::kWrite, 9, std::vector<double>{7.0});
  }

 private:
  test::TemporaryFolder folder_;
};

TEST_F(JournalTest, GivesBackWhatWasNoted) {
  write_three(0, 0);
  const JournalContents journal = contents();
  EXPECT_THAT(journal.find(JournalPhase::kSearch, 3, 2).value(), ElementsAre(0.5, -1.25));
  EXPECT_TRUE(journal.find(JournalPhase::kSearch, 0, 0).value().empty());
  EXPECT_THAT(journal.find(JournalPhase::kWrite, 9, 1).value(), ElementsAre(7.0));
  EXPECT_FALSE(journal.has(JournalPhase::kWrite, 3));
  EXPECT_FALSE(journal.has(JournalPhase::kSearch, 9));
  EXPECT_FALSE(journal.has(JournalPhase::kWrite, 10));
  EXPECT_EQ(journal.num_tasks(JournalPhase::kSearch), 2U);
  EXPECT_EQ(journal.num_tasks(JournalPhase::kWrite), 1U);
}

TEST_F(JournalTest, IsTheBytesThatTheHeaderSays) {
  {
    JournalWriter writer(path(), 4, 2, std::chrono::hours(1));
    writer.add(JournalPhase::kWrite, 258, std::vector<double>{1.0});
    EXPECT_EQ(read_text(path() / "journal.4.2"), "QMJRNL01");
    writer.flush();
  }
  const std::string batch = read_text(path() / "journal.4.2").substr(8);
  const std::string record("\x02\0\0\0\x01\0\0\0\x02\x01\0\0\0\0\0\0\0\0\0\0\0\0\xf0\x3f", 24);
  ASSERT_EQ(batch.size(), 4 + record.size() + 8);
  EXPECT_EQ(batch.substr(0, 4), std::string("\x18\0\0\0", 4));
  EXPECT_EQ(batch.substr(4, record.size()), record);
}

TEST_F(JournalTest, AllFilesOfAllRunsCount) {
  write_three(0, 0);
  EXPECT_EQ(next_journal_run(path()), 1U);
  JournalWriter(path(), 11, 1, std::chrono::milliseconds(0))
      .add(JournalPhase::kWrite, 1, std::vector<double>{2.0});
  EXPECT_EQ(next_journal_run(path()), 12U);
  EXPECT_EQ(contents().num_tasks(JournalPhase::kWrite), 2U);
}

TEST_F(JournalTest, ATaskThatWasNotedTwiceCountsOnce) {
  write_three(0, 0);
  write_three(1, 0);
  EXPECT_EQ(contents().num_tasks(JournalPhase::kSearch), 2U);
  EXPECT_THAT(contents().find(JournalPhase::kSearch, 3, 2).value(), ElementsAre(0.5, -1.25));
}

TEST_F(JournalTest, EveryTornTailIsDropped) {
  write_three(0, 0);
  const std::string whole = read_text(path() / "journal.0.0");
  const std::size_t first = 8 + 4 + 32 + 8;  // bytes with the first batch
  const std::size_t second = first + 4 + 16 + 8;
  ASSERT_EQ(whole.size(), second + 4 + 24 + 8);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    write_text(path() / "journal.0.0", whole.substr(0, size));
    const std::size_t batches = (size >= first ? 1U : 0U) + (size >= second ? 1U : 0U);
    EXPECT_EQ(contents().num_tasks(JournalPhase::kSearch), batches) << size;
    EXPECT_EQ(contents().num_tasks(JournalPhase::kWrite), 0U) << size;
  }
}

TEST_F(JournalTest, WhatFollowsADamagedBatchIsNotTrusted) {
  write_three(0, 0);
  const std::string whole = read_text(path() / "journal.0.0");
  for (std::size_t place = 8 + 4 + 32 + 8; place < 8 + 4 + 32 + 8 + 28; ++place) {
    std::string damaged = whole;
    damaged[place] = static_cast<char>(damaged[place] ^ 0x10);
    write_text(path() / "journal.0.0", damaged);
    EXPECT_EQ(contents().num_tasks(JournalPhase::kSearch), 1U) << place;
    EXPECT_EQ(contents().num_tasks(JournalPhase::kWrite), 0U) << place;
  }
}

TEST_F(JournalTest, AJournalOfAnotherJobIsRefused) {
  write_three(0, 0);
  const std::vector<std::byte> payloads = read_journals(path());
  EXPECT_EQ(error_of([&] { JournalContents(payloads, 10, 9); }).code(), ErrorCode::kInput);
  EXPECT_EQ(error_of([&] { JournalContents(std::span(payloads).first(20), 10, 10); }).code(),
            ErrorCode::kInput);
  EXPECT_EQ(error_of([&] { (void)contents().find(JournalPhase::kSearch, 3, 1); }).code(),
            ErrorCode::kInput);
}

TEST_F(JournalTest, NothingIsNotedOnceDataWasLost) {
  JournalWriter writer(path(), 0, 0, std::chrono::hours(1));
  writer.add(JournalPhase::kWrite, 1, std::vector<double>{1.0});
  int syncs = 0;
  writer.set_data_sync([&] {
    ++syncs;
    throw Error(ErrorCode::kIo, "the disk lost a write");
  });
  EXPECT_EQ(error_of([&] { writer.flush(); }).code(), ErrorCode::kIo);
  writer.flush();
  EXPECT_EQ(syncs, 1);
  EXPECT_EQ(contents().num_tasks(JournalPhase::kWrite), 0U);
}

}  // namespace
}  // namespace quantmill
