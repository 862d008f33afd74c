#include "checkpoint/reader.h"

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_checkpoint.h"

namespace quantmill {
namespace {

using test::error_of;
using test::golden;
using test::write_text;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

test::TinyTensor bytes_tensor(std::string name, const std::string& text) {
  test::TinyTensor tensor{std::move(name), "U8", {text.size()}, {}};
  tensor.bytes.resize(text.size());
  std::memcpy(tensor.bytes.data(), text.data(), text.size());
  return tensor;
}

std::string read_all(const Checkpoint& checkpoint, const std::string& name) {
  const SourceTensor& tensor = checkpoint.tensors()[checkpoint.find(name).value()];
  std::string text(tensor.entry.size_bytes(), '?');
  checkpoint.read(tensor, 0, std::as_writable_bytes(std::span(text)));
  return text;
}

class ReaderTest : public testing::Test {
 protected:
  [[nodiscard]] const std::filesystem::path& path() const { return folder_.path(); }

  void write(const std::string& file, const std::vector<test::TinyTensor>& tensors) const {
    test::write_tiny_safetensors(path() / file, tensors);
  }

  void write_index(const std::string& weight_map) const {
    write_text(path() / "model.safetensors.index.json", R"({"weight_map":{)" + weight_map + "}}");
  }

  // The message of opening the folder, which must be bad input.
  [[nodiscard]] std::string message() const {
    const Error error = error_of([&] { Checkpoint::open(path()); });
    EXPECT_EQ(error.code(), ErrorCode::kInput);
    return error.message();
  }

 private:
  test::TemporaryFolder folder_;
};

TEST_F(ReaderTest, ReadsOneFile) {
  const Checkpoint checkpoint = Checkpoint::open(golden("dflash2-tiny"));
  EXPECT_EQ(checkpoint.shards().size(), 1U);
  EXPECT_EQ(checkpoint.tensors().size(), 36U);
  EXPECT_THAT(checkpoint.config_text(), HasSubstr("\"architectures\""));
  EXPECT_FALSE(checkpoint.find("no such tensor").has_value());
}

TEST_F(ReaderTest, ShardsHoldTheSameTensorsAsOneFile) {
  const Checkpoint whole = Checkpoint::open(golden("dflash2-tiny"));
  const Checkpoint sharded = Checkpoint::open(golden("dflash2-tiny/sharded"));
  EXPECT_EQ(sharded.shards().size(), 3U);
  ASSERT_EQ(sharded.tensors().size(), whole.tensors().size());
  for (const SourceTensor& tensor : whole.tensors()) {
    EXPECT_EQ(read_all(sharded, tensor.entry.name), read_all(whole, tensor.entry.name));
  }
}

TEST_F(ReaderTest, ReadsAByteRangeOfATensor) {
  write("model.safetensors", {bytes_tensor("a", "0123"), bytes_tensor("b", "456789")});
  const Checkpoint checkpoint = Checkpoint::open(path());
  std::string text(3, '?');
  checkpoint.read(
      checkpoint.tensors()[*checkpoint.find("b")], 2, std::as_writable_bytes(std::span(text)));
  EXPECT_EQ(text, "678");
}

TEST_F(ReaderTest, AReadOutsideATensorIsOurOwnFault) {
  write("model.safetensors", {bytes_tensor("a", "0123"), bytes_tensor("b", "456789")});
  const Checkpoint checkpoint = Checkpoint::open(path());
  std::string text(3, '?');
  const std::span<std::byte> out = std::as_writable_bytes(std::span(text));
  EXPECT_EQ(error_of([&] { checkpoint.read(checkpoint.tensors()[0], 2, out); }).code(),
            ErrorCode::kInternal);
  EXPECT_EQ(error_of([&] { checkpoint.read(checkpoint.tensors()[0], UINT64_MAX, out); }).code(),
            ErrorCode::kInternal);
}

TEST_F(ReaderTest, ThreadsReadAtOnce) {
  const Checkpoint checkpoint = Checkpoint::open(golden("dflash2-tiny"));
  const std::string wanted = read_all(checkpoint, "fc.weight");
  std::vector<std::string> found(4);
  {
    std::vector<std::jthread> threads;
    for (std::string& text : found) {
      threads.emplace_back([&] { text = read_all(checkpoint, "fc.weight"); });
    }
  }
  EXPECT_THAT(found, testing::Each(wanted));
}

TEST_F(ReaderTest, AFileThatShrankIsAnIoErrorWithTheTensorsName) {
  write("model.safetensors", {bytes_tensor("a", "0123")});
  const Checkpoint checkpoint = Checkpoint::open(path());
  std::filesystem::resize_file(path() / "model.safetensors", 20);
  const Error error = error_of([&] { read_all(checkpoint, "a"); });
  EXPECT_EQ(error.code(), ErrorCode::kIo);
  EXPECT_THAT(error.message(), AllOf(HasSubstr("tensor 'a'"), HasSubstr("model.safetensors")));
}

TEST_F(ReaderTest, SizesAndTimesAreThoseOfTheFileThatIsRead) {
  write("model.safetensors", {bytes_tensor("a", "old")});
  std::filesystem::last_write_time(path() / "model.safetensors",
                                   std::filesystem::file_time_type::clock::from_sys(
                                       std::chrono::sys_seconds(std::chrono::seconds(1234))));
  const Checkpoint checkpoint = Checkpoint::open(path());
  const std::string header = checkpoint.stored_header(0);
  write("other", {bytes_tensor("a", "newer")});
  std::filesystem::rename(path() / "other", path() / "model.safetensors");
  EXPECT_EQ(checkpoint.shards()[0].changed_ns, 1'234'000'000'000);
  EXPECT_EQ(checkpoint.shards()[0].size_bytes, header.size() + 3);
  EXPECT_EQ(checkpoint.stored_header(0), header);
  EXPECT_EQ(read_all(checkpoint, "a"), "old");
}

TEST_F(ReaderTest, ReadsShardsWithoutAnIndex) {
  write("b.safetensors", {bytes_tensor("b", "b")});
  write("a.safetensors", {bytes_tensor("a", "a")});
  write("consolidated.safetensors", {bytes_tensor("a", "a")});
  write("adapter_model.safetensors", {bytes_tensor("a", "a")});
  const Checkpoint checkpoint = Checkpoint::open(path());
  ASSERT_EQ(checkpoint.shards().size(), 2U);
  EXPECT_EQ(checkpoint.shards()[0].file_name, "a.safetensors");
  EXPECT_EQ(checkpoint.shards()[1].file_name, "b.safetensors");
  EXPECT_THAT(checkpoint.ignored_files(),
              ElementsAre("adapter_model.safetensors", "consolidated.safetensors"));
}

// snapshots/<revision>/NAME -> ../../blobs/<hash>, and a link to the snapshot as folder.
TEST_F(ReaderTest, ReadsALinkedDownloadCache) {
  std::filesystem::create_directories(path() / "blobs");
  std::filesystem::create_directories(path() / "snapshots" / "abc");
  write("blobs/1111", {bytes_tensor("a", "0123")});
  write_text(path() / "blobs" / "2222",
             R"({"weight_map":{"a":"model-00001-of-00001.safetensors"}})");
  write_text(path() / "blobs" / "3333", "{}");
  const auto link = [&](const char* blob, const char* name) {
    std::filesystem::create_symlink(std::string("../../blobs/") + blob,
                                    path() / "snapshots" / "abc" / name);
  };
  link("1111", "model-00001-of-00001.safetensors");
  link("2222", "model.safetensors.index.json");
  link("3333", "config.json");
  std::filesystem::create_directory_symlink("snapshots/abc", path() / "current");
  const Checkpoint checkpoint = Checkpoint::open(path() / "current");
  EXPECT_EQ(read_all(checkpoint, "a"), "0123");
  EXPECT_EQ(checkpoint.config_text(), "{}");
  EXPECT_THAT(checkpoint.other_files(), ElementsAre("config.json"));
}

TEST_F(ReaderTest, OneFileOfAnyNameOpensAlone) {
  write("x.safetensors", {bytes_tensor("a", "0123")});
  write("y.safetensors", {bytes_tensor("a", "4567")});
  EXPECT_EQ(read_all(Checkpoint::open_file(path() / "y.safetensors"), "a"), "4567");
}

TEST_F(ReaderTest, OtherFilesAreAllButWeightsAndHiddenOnes) {
  std::filesystem::create_directories(path() / "sub" / ".cache");
  std::filesystem::create_directories(path() / ".git");
  write("model.safetensors", {bytes_tensor("a", "0123")});
  for (const char* name : {"config.json",
                           "tokenizer.model",
                           "sub/extra.py",
                           "sub/.cache/x",
                           ".git/config",
                           ".gitattributes",
                           "pytorch_model.bin",
                           "pytorch_model.bin.index.json",
                           "sub/model.gguf"}) {
    write_text(path() / name, "");
  }
  const Checkpoint checkpoint = Checkpoint::open(path());
  EXPECT_THAT(checkpoint.other_files(),
              ElementsAre("config.json", "sub/extra.py", "tokenizer.model"));
  EXPECT_THAT(checkpoint.ignored_files(),
              ElementsAre("pytorch_model.bin", "pytorch_model.bin.index.json", "sub/model.gguf"));
}

TEST_F(ReaderTest, WithAnIndexOtherSafetensorsAreLeftBehind) {
  write("1.safetensors", {bytes_tensor("a", "0")});
  write("model.safetensors", {bytes_tensor("a", "0")});
  write_index(R"("a":"1.safetensors")");
  const Checkpoint checkpoint = Checkpoint::open(path());
  EXPECT_EQ(checkpoint.shards().size(), 1U);
  EXPECT_THAT(checkpoint.ignored_files(), ElementsAre("model.safetensors"));
  EXPECT_THAT(checkpoint.other_files(), IsEmpty());
}

TEST_F(ReaderTest, NoFolderIsRefused) {
  const Error error = error_of([] { Checkpoint::open("/nonexistent"); });
  EXPECT_EQ(error.code(), ErrorCode::kInput);
  EXPECT_THAT(error.message(), HasSubstr("/nonexistent does not exist"));
}

TEST_F(ReaderTest, AFileIsNotAFolder) {
  write_text(path() / "x", "");
  EXPECT_THAT(error_of([&] { Checkpoint::open(path() / "x"); }).message(),
              HasSubstr("is not a folder"));
}

TEST_F(ReaderTest, AnEmptyFolderIsRefused) {
  EXPECT_THAT(message(), HasSubstr("no *.safetensors file"));
}

TEST_F(ReaderTest, OnlyBinFilesAreRefusedByName) {
  write_text(path() / "pytorch_model-00001-of-00002.bin", "");
  write_text(path() / "pytorch_model-00002-of-00002.bin", "");
  EXPECT_THAT(message(),
              AllOf(HasSubstr("only 'pytorch_model-00001-of-00002.bin', 'pytorch_model-00002"),
                    HasSubstr("convert")));
}

TEST_F(ReaderTest, AllMissingShardsAreCountedAndSomeNamed) {
  std::string weight_map = R"("a":"1.safetensors")";
  for (int i = 2; i <= 9; ++i) {
    weight_map += ",\"t" + std::to_string(i) + "\":\"" + std::to_string(i) + ".safetensors\"";
  }
  write("1.safetensors", {bytes_tensor("a", "0")});
  write_index(weight_map);
  EXPECT_THAT(message(),
              HasSubstr("8 of the 9 shards that model.safetensors.index.json names are missing: "
                        "'2.safetensors', '3.safetensors', '4.safetensors', '5.safetensors', "
                        "'6.safetensors' and 3 more"));
}

TEST_F(ReaderTest, ALinkToAMissingBlobIsAMissingShard) {
  std::filesystem::create_symlink("../../blobs/gone", path() / "1.safetensors");
  write_index(R"("a":"1.safetensors")");
  EXPECT_THAT(message(), HasSubstr("1 of the 1 shards"));
}

TEST_F(ReaderTest, AMissingNumberIsAMissingShardWithoutAnIndex) {
  write("model-00001-of-00003.safetensors", {bytes_tensor("a", "0")});
  write("model-00003-of-00003.safetensors", {bytes_tensor("b", "0")});
  EXPECT_THAT(message(), HasSubstr("missing: 'model-00002-of-00003.safetensors'"));
}

TEST_F(ReaderTest, ATensorOfTheIndexThatItsShardLacksIsNamed) {
  write("1.safetensors", {bytes_tensor("a", "0")});
  write("2.safetensors", {bytes_tensor("b", "0")});
  write_index(R"("a":"2.safetensors","b":"2.safetensors","c":"1.safetensors")");
  EXPECT_THAT(message(),
              HasSubstr("places 2 tensors where they are not: 'a in 2.safetensors', 'c in 1.s"));
}

TEST_F(ReaderTest, ATensorThatTheIndexLacksIsNamed) {
  write("1.safetensors", {bytes_tensor("a", "0"), bytes_tensor("b", "0")});
  write_index(R"("a":"1.safetensors")");
  EXPECT_THAT(message(), HasSubstr("1 tensors that its shards hold: 'b in 1.safetensors'"));
}

TEST_F(ReaderTest, ANameInTwoShardsIsRefused) {
  write("1.safetensors", {bytes_tensor("a", "0")});
  write("2.safetensors", {bytes_tensor("a", "0")});
  EXPECT_THAT(message(), HasSubstr("tensor 'a' is in both 1.safetensors and 2.safetensors"));
}

TEST_F(ReaderTest, ANameOfEndlessLengthIsRefusedInAShortMessage) {
  write("1.safetensors", {bytes_tensor(std::string(4097, 'a'), "0")});
  EXPECT_THAT(message(), HasSubstr("has 4097 bytes; names of up to 4096 are read"));
  EXPECT_LT(message().size(), 400U);
}

TEST_F(ReaderTest, ADamagedIndexIsNamed) {
  write("1.safetensors", {bytes_tensor("a", "0")});
  write_text(path() / "model.safetensors.index.json", "{");
  EXPECT_THAT(message(), HasSubstr("model.safetensors.index.json: not JSON"));
}

TEST_F(ReaderTest, AnIndexThatLeavesTheFolderIsRefused) {
  write_index(R"("a":"../1.safetensors")");
  EXPECT_THAT(message(), HasSubstr("'../1.safetensors'"));
}

TEST_F(ReaderTest, ATruncatedShardIsNamed) {
  write("model.safetensors", {bytes_tensor("a", "0123")});
  std::filesystem::resize_file(path() / "model.safetensors",
                               std::filesystem::file_size(path() / "model.safetensors") - 1);
  EXPECT_THAT(
      message(),
      AllOf(HasSubstr("/model.safetensors: tensor 'a' ends at byte 4"), HasSubstr("only 3")));
}

TEST_F(ReaderTest, AFileShorterThanItsHeaderIsRefused) {
  write("model.safetensors", {bytes_tensor("a", "0123")});
  std::filesystem::resize_file(path() / "model.safetensors", 40);
  EXPECT_THAT(message(), HasSubstr("but the file has only 40"));
}

TEST_F(ReaderTest, AFileShorterThanALengthIsRefused) {
  write_text(path() / "model.safetensors", "1234567");
  EXPECT_THAT(message(), HasSubstr("the file has 7 bytes, too few"));
}

TEST_F(ReaderTest, AHugeHeaderIsRefusedBeforeItIsRead) {
  write_text(path() / "model.safetensors", std::string("\x01\xe1\xf5\x05\0\0\0\0", 8));
  std::filesystem::resize_file(path() / "model.safetensors", 200'000'000);  // sparse
  EXPECT_THAT(message(),
              HasSubstr("said to have 100000001 bytes, but the format allows 100000000"));
}

TEST_F(ReaderTest, AGitLfsPointerIsExplained) {
  write_text(path() / "model.safetensors",
             "version https://git-lfs.github.com/spec/v1\noid sha256:0\n");
  EXPECT_THAT(message(), HasSubstr("git lfs pull"));
}

TEST_F(ReaderTest, NoConfigIsRefusedWhenAsked) {
  write("model.safetensors", {bytes_tensor("a", "0123")});
  EXPECT_THAT(error_of([&] { (void)Checkpoint::open(path()).config_text(); }).message(),
              HasSubstr("has no config.json"));
}

}  // namespace
}  // namespace quantmill
