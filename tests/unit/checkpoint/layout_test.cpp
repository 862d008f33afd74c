#include "checkpoint/layout.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/index.h"
#include "checkpoint/reader.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_checkpoint.h"

namespace quantmill {
namespace {

using test::error_of;
using test::golden;
using testing::ElementsAre;
using testing::HasSubstr;

// The checkpoint must outlive them.
std::vector<TensorToPlace> tensors_of(const Checkpoint& checkpoint) {
  std::vector<TensorToPlace> result;
  for (const SourceTensor& tensor : checkpoint.tensors()) {
    result.push_back({tensor.entry.name,
                      tensor.entry.dtype,
                      tensor.entry.shape,
                      checkpoint.shards()[tensor.shard].file_name});
  }
  return result;
}

std::vector<std::string> names_of(const OutputShard& shard) {
  std::vector<std::string> names;
  for (const TensorEntry& tensor : shard.tensors()) {
    names.push_back(tensor.name);
  }
  return names;
}

// Written by the safetensors library; BF16 and U8 tensors.
TEST(PlaceTensors, ReproducesTheHeaderOfAFileOfTheLibrary) {
  const Checkpoint written = Checkpoint::open_file(golden("seed/as-written/model.safetensors"));
  std::vector<TensorToPlace> tensors = tensors_of(written);
  std::reverse(tensors.begin(), tensors.end());
  const std::vector<OutputShard> shards = place_tensors(tensors, 0).shards;
  ASSERT_EQ(shards.size(), 1U);
  const std::string file = test::read_text(golden("seed/as-written/model.safetensors"));
  EXPECT_EQ(shards[0].header, file.substr(0, shards[0].header.size()));
  EXPECT_EQ(shards[0].size_bytes(), file.size());
}

// The order in which safetensors 0.8.0 wrote one tensor of each dtype.
TEST(PlaceTensors, OrdersDtypesAsTheLibraryDoes) {
  const std::vector<DType> wanted = {DType::kU64,
                                     DType::kI64,
                                     DType::kF64,
                                     DType::kC64,
                                     DType::kF32,
                                     DType::kU32,
                                     DType::kI32,
                                     DType::kBf16,
                                     DType::kF16,
                                     DType::kU16,
                                     DType::kI16,
                                     DType::kF8E8m0,
                                     DType::kF8E4m3,
                                     DType::kF8E5m2,
                                     DType::kI8,
                                     DType::kU8,
                                     DType::kF4,
                                     DType::kBool};
  std::vector<TensorToPlace> tensors;
  for (const DType dtype : wanted) {
    tensors.insert(tensors.begin(), {std::string(dtype_name(dtype)), dtype, {8}, "x.safetensors"});
  }
  const std::vector<OutputShard> shards = place_tensors(tensors, 0).shards;
  std::vector<DType> found;
  for (const TensorEntry& tensor : shards.at(0).tensors()) {
    found.push_back(tensor.dtype);
  }
  EXPECT_EQ(found, wanted);
}

TEST(PlaceTensors, KeepsEachTensorInItsFile) {
  const std::vector<OutputShard> shards = place_tensors({{"b", DType::kU8, {1}, "2.safetensors"},
                                                         {"a", DType::kU8, {1}, "1.safetensors"},
                                                         {"c", DType::kF32, {1}, "2.safetensors"}},
                                                        0)
                                              .shards;
  ASSERT_EQ(shards.size(), 2U);
  EXPECT_EQ(shards[0].file_name, "2.safetensors");
  EXPECT_THAT(names_of(shards[0]), ElementsAre("c", "b"));
  EXPECT_THAT(names_of(shards[1]), ElementsAre("a"));
}

TEST(PlaceTensors, FillsShardsUpToTheLimit) {
  const std::vector<OutputShard> shards = place_tensors({{"a", DType::kU8, {4}, ""},
                                                         {"b", DType::kU8, {6}, ""},
                                                         {"c", DType::kU8, {1}, ""},
                                                         {"d", DType::kU8, {50}, ""},
                                                         {"e", DType::kU8, {1}, ""}},
                                                        10)
                                              .shards;
  ASSERT_EQ(shards.size(), 4U);
  EXPECT_THAT(names_of(shards[0]), ElementsAre("a", "b"));
  EXPECT_THAT(names_of(shards[1]), ElementsAre("c"));
  EXPECT_THAT(names_of(shards[2]), ElementsAre("d"));
  EXPECT_THAT(names_of(shards[3]), ElementsAre("e"));
  EXPECT_EQ(shards[0].file_name, "model-00001-of-00004.safetensors");
  EXPECT_EQ(shards[3].file_name, "model-00004-of-00004.safetensors");
}

TEST(PlaceTensors, OneShardIsCalledModel) {
  EXPECT_EQ(place_tensors({{"a", DType::kU8, {4}, "x"}}, 10).shards.at(0).file_name,
            "model.safetensors");
}

TEST(PlaceTensors, WhatStaysWithThePreviousTensorIsNeverCutOff) {
  const std::vector<OutputShard> shards = place_tensors({{"a", DType::kU8, {6}, ""},
                                                         {"b", DType::kU8, {3}, ""},
                                                         {"b_scale", DType::kU8, {2}, "", true}},
                                                        10)
                                              .shards;
  ASSERT_EQ(shards.size(), 2U);
  EXPECT_EQ(shards[0].tensors().size(), 1U);
  EXPECT_EQ(shards[1].tensors().size(), 2U);
}

TEST(PlaceTensors, TwoTensorsOfOneNameAreRefused) {
  const Error error = error_of([] {
    place_tensors({{"a", DType::kU8, {4}, "x"}, {"a", DType::kU8, {4}, "y"}}, 0);
  });
  EXPECT_EQ(error.code(), ErrorCode::kInput);
  EXPECT_THAT(error.message(), HasSubstr("'a'"));
}

TEST(PlaceTensors, ASizeThatOverflowsIsRefused) {
  constexpr std::uint64_t kHuge = std::uint64_t{1} << 60;
  std::vector<TensorToPlace> tensors;
  for (int i = 0; i < 17; ++i) {
    tensors.push_back({std::to_string(i), DType::kU8, {kHuge}, "x"});
  }
  EXPECT_EQ(error_of([&] { place_tensors(tensors, 0); }).code(), ErrorCode::kInput);
  EXPECT_EQ(error_of([&] { place_tensors(tensors, UINT64_MAX); }).code(), ErrorCode::kInput);
}

// Python's json.dumps wrote that file; the final newline is what save_pretrained adds.
TEST(PrintIndex, ReproducesAnIndexOfHuggingFacesLibraries) {
  const Checkpoint checkpoint = Checkpoint::open(golden("dflash2-tiny/sharded"));
  EXPECT_EQ(print_index(place_tensors(tensors_of(checkpoint), 0).shards),
            test::read_text(golden("dflash2-tiny/sharded/model.safetensors.index.json")) + "\n");
}

TEST(PrintIndex, IsReadBack) {
  const CheckpointIndex index = parse_checkpoint_index(
      print_index(place_tensors({{"\u00e9", DType::kU8, {1}, "1.safetensors"}}, 0).shards));
  EXPECT_THAT(index.weight_map, ElementsAre(testing::Pair("\u00e9", "1.safetensors")));
}

}  // namespace
}  // namespace quantmill
