#include "stats/torch_archive.h"

#include <algorithm>
#include <cmath>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "stats/merge.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_checkpoint.h"

namespace quantmill {
namespace {

using testing::HasSubstr;

Partition partition_of(const std::string& name) {
  return name.ends_with("o_proj") || name.ends_with("down_proj") ? Partition::kRow
                                                                 : Partition::kReplicated;
}

Statistics read_merged(const std::vector<std::filesystem::path>& files) {
  std::vector<Statistics> parts;
  for (const auto& file : files) {
    parts.push_back(read_torch_statistics(file));
  }
  return merge_tensor_parallel(parts, partition_of);
}

Statistics read_calib(const std::string& form) {
  return read_merged(find_tensor_parallel_files(test::golden("dflash2-tiny/calib/" + form)));
}

// Rank 1's file is the good one where there is no other.
Statistics read_hostile(const std::string& name) {
  const auto folder = test::golden("dflash2-tiny/hostile");
  const auto second = folder / (name + ".tp1.pt");
  return read_merged({folder / (name + ".tp0.pt"),
                      std::filesystem::exists(second) ? second : folder / "good.tp1.pt"});
}

std::string refusal(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInput) << error.what();
    return error.message();
  }
  ADD_FAILURE() << "nothing was refused";
  return "";
}

double largest_difference(const nlohmann::json& wanted, const std::vector<double>& found) {
  double largest = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const double value = wanted.at(i).get<double>();
    largest = std::max(largest, std::abs(found[i] - value) / std::max(std::abs(value), 1e-300));
  }
  return largest;
}

// Relative rounding error of each form: half a step of its mantissa.
struct Form {
  std::string name;
  std::size_t num_parts;
  double tolerance;
  bool has_squares;
};

class TorchArchiveForm : public testing::TestWithParam<Form> {};

TEST_P(TorchArchiveForm, MergesToTheRecordedValues) {
  std::ifstream file(test::golden("dflash2-tiny/calib/expected_f64.json"));
  const nlohmann::json expected = nlohmann::json::parse(file);

  const auto files =
      find_tensor_parallel_files(test::golden("dflash2-tiny/calib/" + GetParam().name));
  const Statistics found = read_merged(files);

  EXPECT_EQ(files.size(), GetParam().num_parts);
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, input] : found) {
    const auto& wanted = expected.at(name);
    ASSERT_EQ(input.absmean.size(), wanted.at("absmean").size()) << name;
    EXPECT_LE(largest_difference(wanted.at("absmean"), input.absmean), GetParam().tolerance);
    EXPECT_EQ(input.sqmean.empty(), !GetParam().has_squares);
    EXPECT_LE(largest_difference(wanted.at("sqmean"), input.sqmean), GetParam().tolerance);
    EXPECT_LE(largest_difference(wanted.at("absmax"), input.absmax), GetParam().tolerance);
    EXPECT_TRUE(input.has_count);
    EXPECT_EQ(input.count, wanted.at("count").get<std::uint64_t>());
  }
}

INSTANTIATE_TEST_SUITE_P(Golden,
                         TorchArchiveForm,
                         testing::Values(Form{"calib", 2, 0x1p-24, true},
                                         Form{"calib1", 1, 0x1p-24, true},
                                         Form{"calib4", 4, 0x1p-24, true},
                                         Form{"calib_f64", 2, 0, true},
                                         Form{"calib_bf16", 2, 0x1p-8, true},
                                         Form{"calib_f16", 2, 0x1p-11, false},
                                         Form{"calib_views", 2, 0x1p-24, true},
                                         Form{"calib_proto4", 2, 0x1p-24, true},
                                         Form{"calib_ordered_prefixed", 2, 0x1p-24, false}),
                         [](const auto& param) { return param.param.name; });

TEST(TorchArchive, AnyNumberOfPartsGivesTheSame) {
  const Statistics two = read_calib("calib");
  for (const std::string form : {"calib1", "calib4"}) {
    const Statistics other = read_calib(form);
    ASSERT_EQ(other.size(), two.size());
    for (const auto& [name, input] : two) {
      EXPECT_EQ(other.at(name).absmean, input.absmean) << form << ' ' << name;
      EXPECT_EQ(other.at(name).sqmean, input.sqmean) << form << ' ' << name;
      EXPECT_EQ(other.at(name).absmax, input.absmax) << form << ' ' << name;
      EXPECT_EQ(other.at(name).count, input.count) << form << ' ' << name;
    }
  }
}

TEST(TorchArchive, RecordsHowInputsWereSplit) {
  const Statistics merged = read_calib("calib4");
  EXPECT_EQ(merged.at("layers.0.mlp.down_proj").partition, Partition::kRow);
  EXPECT_EQ(merged.at("layers.0.mlp.down_proj").part_channels,
            (std::vector<std::uint64_t>{64, 64, 64, 64}));
  EXPECT_EQ(merged.at("layers.0.mlp.gate_up_proj").partition, Partition::kReplicated);
  EXPECT_EQ(merged.at("layers.0.mlp.gate_up_proj").source,
            "calib4.tp0.pt, calib4.tp1.pt, calib4.tp2.pt, calib4.tp3.pt");
}

TEST(TorchArchive, RefusesTheOldFormat) {
  EXPECT_THAT(refusal([] { read_calib("calib_legacy"); }),
              testing::AllOf(HasSubstr("calib_legacy.tp0.pt"), HasSubstr("torch's old format")));
}

TEST(TorchArchive, ReadsGoodStatistics) {
  EXPECT_EQ(read_hostile("good").size(), 6U);
}

TEST(TorchArchive, ReadsChannelsThatAreZero) {
  EXPECT_EQ(read_hostile("zero_channel").size(), 6U);
}

TEST(TorchArchive, ReadsInputsWithoutTokens) {
  const Statistics statistics = read_hostile("count_zero");
  EXPECT_TRUE(statistics.at("layers.1.mlp.down_proj").has_count);
  EXPECT_EQ(statistics.at("layers.1.mlp.down_proj").count, 0U);
}

struct Refused {
  std::string name;
  std::vector<std::string> words;  // in the message
};

class TorchArchiveHostile : public testing::TestWithParam<Refused> {};

TEST_P(TorchArchiveHostile, IsRefusedAndNotExecuted) {
  const std::string message = refusal([] { read_hostile(GetParam().name); });
  for (const std::string& word : GetParam().words) {
    EXPECT_THAT(message, HasSubstr(word));
  }
  EXPECT_FALSE(std::filesystem::exists("PICKLE_WAS_EXECUTED"));
}

INSTANTIATE_TEST_SUITE_P(
    Golden,
    TorchArchiveHostile,
    testing::Values(
        Refused{"evil_os_system_zip", {"evil_os_system_zip.tp0.pt", "system", "refused"}},
        Refused{"evil_os_system_legacy", {"evil_os_system_legacy.tp0.pt", "bare pickle"}},
        Refused{"evil_os_system_plain_pickle", {"plain_pickle.tp0.pt", "bare pickle"}},
        Refused{"evil_builtins_eval", {"__builtin__.eval is refused"}},
        Refused{"evil_inst_opcode", {"opcode STRING is refused"}},
        Refused{"evil_stack_global", {"evil_stack_global.tp0.pt", "system is refused"}},
        Refused{"truncated_zip", {"truncated_zip.tp0.pt", "cut short"}},
        Refused{"empty_file", {"empty_file.tp0.pt", "the file is empty"}},
        Refused{"not_a_pt", {"not_a_pt.tp0.pt", "not a zip archive"}},
        Refused{"no_pickle", {"no_pickle.tp0.pt", "data.pkl"}},
        Refused{"storage_missing", {"storage_missing.tp0.pt", "layers.", "is missing"}},
        Refused{"storage_short", {"storage_short.tp0.pt", "layers.", "bytes"}},
        Refused{"storage_long", {"storage_long.tp0.pt", "layers.", "bytes"}},
        Refused{"view_out_of_bounds", {"view_out_of_bounds.tp0.pt", "outside its storage"}},
        Refused{"crc_mismatch", {"crc_mismatch.tp0.pt", "CRC"}},
        Refused{"big_endian_mark", {"big_endian_mark.tp0.pt", "byte order"}},
        Refused{"pickle_deep_nesting", {"pickle_deep_nesting.tp0.pt", "pickle"}},
        Refused{"pickle_huge_binunicode", {"2147483647 bytes are wanted, 4 are left"}},
        Refused{"pickle_memo_bomb", {"pickle_memo_bomb.tp0.pt", "pickle"}},
        Refused{"missing_layer_one_rank", {"layers.1", "rank 1 does not"}},
        Refused{"no_absmean", {"no_absmean.tp0.pt", "layers.", "absmean is missing"}},
        Refused{"replicated_differs", {"qkv_proj", "channel 0", "rank 1"}},
        Refused{"nan", {"nan.tp0.pt", "layers.", "channel", "nan"}},
        Refused{"inf_sharded", {"inf_sharded.tp", "down_proj", "channel", "inf"}},
        Refused{"negative", {"negative.tp0.pt", "layers.", "channel", "is -"}},
        Refused{"two_dims", {"two_dims.tp0.pt", "[2, 48]"}},
        Refused{"integer_dtype", {"integer_dtype.tp0.pt", "int32"}}),
    [](const auto& param) { return param.param.name; });

// Which inputs there must be, and how long, only the model can say.
TEST(TorchArchive, LeavesShapesToTheModel) {
  EXPECT_EQ(read_hostile("missing_layer").size(), 5U);
  EXPECT_EQ(read_hostile("wrong_length").size(), 6U);
  EXPECT_EQ(read_hostile("wrong_length_shard").size(), 6U);
}

TEST(TorchArchive, EveryCutOfAFileIsRefused) {
  const std::string whole = test::read_text(test::golden("dflash2-tiny/hostile/good.tp0.pt"));
  const auto bytes = std::as_bytes(std::span(whole));
  EXPECT_EQ(parse_torch_statistics(bytes, "").size(), 6U);
  for (std::size_t size = 0; size < bytes.size(); size += 7) {
    refusal([&] { parse_torch_statistics(bytes.first(size), ""); });
  }
}

class FindFiles : public testing::Test {
 protected:
  void touch(const std::string& name) { test::write_text(folder_.path() / name, ""); }

  std::vector<std::string> find() {
    std::vector<std::string> names;
    for (const auto& file : find_tensor_parallel_files(folder_.path() / "calib")) {
      names.push_back(file.filename().string());
    }
    return names;
  }

 private:
  test::TemporaryFolder folder_;
};

TEST_F(FindFiles, OrdersByNumber) {
  std::vector<std::string> wanted;
  for (int rank = 0; rank < 12; ++rank) {
    wanted.push_back("calib.tp" + std::to_string(rank) + ".pt");
  }
  for (const std::string& name : wanted) {
    touch(name);
  }
  EXPECT_EQ(find(), wanted);
}

TEST_F(FindFiles, PassesOverOtherFiles) {
  touch("calib.tp0.pt");
  touch("calib.tp1.pt.bak");
  touch("calib.tpx.pt");
  touch("other.tp1.pt");
  EXPECT_EQ(find(), std::vector<std::string>{"calib.tp0.pt"});
}

TEST_F(FindFiles, FindsNothingWhereNothingIs) {
  EXPECT_TRUE(find().empty());
}

TEST_F(FindFiles, RefusesAGap) {
  touch("calib.tp0.pt");
  touch("calib.tp2.pt");
  EXPECT_THAT(refusal([&] { find(); }), HasSubstr("calib.tp1.pt\" is missing"));
}

TEST_F(FindFiles, RefusesAMissingFirstPart) {
  touch("calib.tp1.pt");
  EXPECT_THAT(refusal([&] { find(); }), HasSubstr("calib.tp0.pt\" is missing"));
}

TEST_F(FindFiles, RefusesTwoFilesForOneRank) {
  touch("calib.tp0.pt");
  touch("calib.tp1.pt");
  touch("calib.tp01.pt");
  EXPECT_THAT(refusal([&] { find(); }), HasSubstr("two files are for rank 1"));
}

}  // namespace
}  // namespace quantmill
