#include "base/file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_checkpoint.h"

namespace quantmill {
namespace {

using test::error_of;
using test::read_text;
using test::TemporaryFolder;
using test::write_text;
using testing::ElementsAre;
using testing::HasSubstr;

std::string read_at(const File& file, std::uint64_t offset, std::size_t count) {
  std::string text(count, '?');
  file.read_at(offset, std::as_writable_bytes(std::span(text)));
  return text;
}

// Pages of a file that are in memory.
std::size_t resident_pages(const std::filesystem::path& path) {
  const std::size_t size = std::filesystem::file_size(path);
  const int descriptor = ::open(path.c_str(), O_RDONLY);
  void* const address = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor, 0);
  ::close(descriptor);
  std::vector<unsigned char> pages((size + 4095) / 4096);
  EXPECT_EQ(::mincore(address, size, pages.data()), 0);
  ::munmap(address, size);
  return static_cast<std::size_t>(
      std::ranges::count_if(pages, [](unsigned char page) { return (page & 1U) != 0; }));
}

TEST(File, DroppedPagesLeaveMemoryOnceTheyAreOnTheDisk) {
  const TemporaryFolder folder;

  struct statfs status {};

  ASSERT_EQ(::statfs(folder.path().c_str(), &status), 0);
  if (status.f_type == TMPFS_MAGIC) {
    GTEST_SKIP() << "the temporary folder is memory itself (tmpfs): there is nothing to drop";
  }
  const std::filesystem::path path = folder.path() / "pages";
  constexpr std::size_t kPages = 64;
  const std::vector<std::byte> bytes(kPages * 4096, std::byte{7});
  const File file = File::open_to_write(path);
  file.write_at(0, bytes);
  EXPECT_EQ(resident_pages(path), kPages);
  file.begin_sync(0, bytes.size());
  file.wait_for_sync(0, bytes.size());
  file.drop_cached(0, bytes.size());
  EXPECT_EQ(resident_pages(path), 0U);
  EXPECT_EQ(read_at(File::open_to_read(path), bytes.size() - 3, 3), "\a\a\a");
  EXPECT_GT(resident_pages(path), 0U);
  file.drop_cached(0, 0);
  EXPECT_EQ(resident_pages(path), 0U);
}

TEST(File, ReadsAtAnOffset) {
  const TemporaryFolder folder;
  write_text(folder.path() / "a", "0123456789");
  EXPECT_EQ(read_at(File::open_to_read(folder.path() / "a"), 3, 4), "3456");
}

TEST(File, ReadingPastTheEndNamesFileAndOffset) {
  const TemporaryFolder folder;
  write_text(folder.path() / "short.bin", "0123456789");
  const File file = File::open_to_read(folder.path() / "short.bin");
  const Error error = error_of([&] { read_at(file, 8, 4); });
  EXPECT_EQ(error.code(), ErrorCode::kIo);
  EXPECT_THAT(error.message(), HasSubstr("short.bin ends at byte 10"));
}

TEST(File, AMissingFileIsNamed) {
  const Error error = error_of([] { File::open_to_read("/nonexistent/name"); });
  EXPECT_EQ(error.code(), ErrorCode::kIo);
  EXPECT_THAT(error.message(), HasSubstr("cannot open /nonexistent/name: No such file"));
}

TEST(File, AFolderIsNotRead) {
  const TemporaryFolder folder;
  EXPECT_THAT(error_of([&] { File::open_to_read(folder.path()); }).message(),
              HasSubstr("it is a folder"));
}

TEST(File, ANamedPipeIsRefusedWithoutWaitingForAWriter) {
  const TemporaryFolder folder;
  ASSERT_EQ(mkfifo((folder.path() / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(error_of([&] { File::open_to_read(folder.path() / "pipe"); }).message(),
              HasSubstr("pipe or device"));
}

TEST(File, WritesAtOffsetsInAnyOrderWithoutTruncating) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "out";
  const auto write = [&](std::uint64_t offset, std::string_view text) {
    File::open_to_write(path).write_at(offset, std::as_bytes(std::span(text)));
  };
  write(4, "efgh");
  write(0, "abcd");
  EXPECT_EQ(read_text(path), "abcdefgh");
}

TEST(File, ReserveSetsTheSizeUpAndDown) {
  const TemporaryFolder folder;
  const File file = File::open_to_write(folder.path() / "out");
  file.reserve(1'000'000);
  EXPECT_EQ(file.size_bytes(), 1'000'000U);
  file.reserve(10);
  EXPECT_EQ(file.size_bytes(), 10U);
  file.reserve(0);
  EXPECT_EQ(file.size_bytes(), 0U);
}

TEST(File, ReserveOfMoreThanTheDiskHasSaysHowMuch) {
  const TemporaryFolder folder;
  const File file = File::open_to_write(folder.path() / "out");
  const Error error = error_of([&] { file.reserve(std::uint64_t{1} << 62); });
  EXPECT_EQ(error.code(), ErrorCode::kIo);
  EXPECT_THAT(error.message(), HasSubstr("cannot reserve 4611686018427387904 bytes for"));
}

TEST(TextFile, WritingReplacesAndLeavesNothingElse) {
  const TemporaryFolder folder;
  write_text_file(folder.path() / "a.json", "a longer first text");
  write_text_file(folder.path() / "a.json", "second");
  EXPECT_EQ(read_text(folder.path() / "a.json"), "second");
  EXPECT_THAT(list_files(folder.path()), ElementsAre("a.json"));
}

TEST(TextFile, AFailedWriteLeavesTheOldFileAndNoLitter) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder.path() / "a.json" / "in the way");
  EXPECT_EQ(error_of([&] { write_text_file(folder.path() / "a.json", "x"); }).code(),
            ErrorCode::kIo);
  EXPECT_THAT(list_files(folder.path()), ElementsAre());
}

TEST(TextFile, WritesARelativeNameWithoutFolder) {
  const TemporaryFolder folder;
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  write_text_file("plain.txt", "x");
  std::filesystem::current_path(before);
  EXPECT_EQ(read_text(folder.path() / "plain.txt"), "x");
}

TEST(TextFile, MoreThanTheLimitIsRefused) {
  const TemporaryFolder folder;
  write_text(folder.path() / "big", "0123456789");
  EXPECT_EQ(read_text_file(folder.path() / "big", 10), "0123456789");
  const Error error = error_of([&] { read_text_file(folder.path() / "big", 9); });
  EXPECT_EQ(error.code(), ErrorCode::kInput);
  EXPECT_THAT(error.message(), HasSubstr("is 10 bytes long"));
}

TEST(CopyFile, CopiesWhatALinkPointsTo) {
  const TemporaryFolder folder;
  const std::string text(9'000'000, 'x');  // more than two chunks
  write_text(folder.path() / "blob", text);
  std::filesystem::create_symlink("blob", folder.path() / "link");
  copy_file_synced(folder.path() / "link", folder.path() / "copy");
  EXPECT_FALSE(std::filesystem::is_symlink(folder.path() / "copy"));
  EXPECT_EQ(read_text(folder.path() / "copy"), text);
}

TEST(CopyFile, AnEmptyFileIsCopied) {
  const TemporaryFolder folder;
  write_text(folder.path() / "empty", "");
  copy_file_synced(folder.path() / "empty", folder.path() / "copy");
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "copy"));
}

TEST(ListFiles, ListsBelowSorted) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder.path() / "b" / "c");
  write_text(folder.path() / "z", "");
  write_text(folder.path() / "b" / "c" / "x", "");
  write_text(folder.path() / "a", "");
  EXPECT_THAT(list_files(folder.path()), ElementsAre("a", "b/c/x", "z"));
}

TEST(ListFiles, FollowsLinksButNotInCircles) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder.path() / "blobs");
  std::filesystem::create_directories(folder.path() / "snapshot" / "sub");
  write_text(folder.path() / "blobs" / "123", "");
  std::filesystem::create_symlink("../blobs/123", folder.path() / "snapshot" / "config.json");
  std::filesystem::create_directory_symlink("../blobs", folder.path() / "snapshot" / "linked");
  std::filesystem::create_directory_symlink("..", folder.path() / "snapshot" / "sub" / "up");
  EXPECT_THAT(list_files(folder.path() / "snapshot"), ElementsAre("config.json", "linked/123"));
}

TEST(ListFiles, ListsALinkThatLeadsNowhere) {
  const TemporaryFolder folder;
  std::filesystem::create_symlink("gone", folder.path() / "tokenizer.json");
  EXPECT_THAT(list_files(folder.path()), ElementsAre("tokenizer.json"));
}

TEST(ListFiles, ALinkToItselfIsListedNotFollowed) {
  const TemporaryFolder folder;
  std::filesystem::create_symlink("self", folder.path() / "self");
  EXPECT_THAT(list_files(folder.path()), ElementsAre("self"));
}

TEST(ListFiles, NoFolderIsBadInput) {
  EXPECT_EQ(error_of([] { list_files("/nonexistent"); }).code(), ErrorCode::kInput);
}

}  // namespace
}  // namespace quantmill
