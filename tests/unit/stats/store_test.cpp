#include "stats/store.h"

#include <hdf5.h>

#include <array>
#include <chrono>
#include <ctime>
#include <functional>
#include <limits>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "stats/h5_library.h"
#include "stats/h5_reader.h"
#include "stats/h5_writer.h"
#include "stats/scales.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_checkpoint.h"

namespace quantmill {
namespace {

using testing::AllOf;
using testing::HasSubstr;

static_assert(!std::is_copy_constructible_v<h5::GroupWriter>);
static_assert(std::is_nothrow_move_constructible_v<h5::Identifier>);

Statistics example() {
  InputStatistics row;
  row.absmean = {0.25, 0.5, 0};
  row.sqmean = {1, 2, 3};
  row.absmax = {4, 5, 6};
  row.count = 480;
  row.has_count = true;
  row.partition = Partition::kRow;
  row.part_channels = {2, 1};
  row.source = "calib.tp0.pt, calib.tp1.pt";
  InputStatistics plain;
  plain.absmean = {1e-300, 0x1.fffffffffffffp+1023};
  return {{"layers.0.mlp.down_proj", row}, {"plain", plain}};
}

void expect_equal(const InputStatistics& found, const InputStatistics& wanted) {
  EXPECT_EQ(found.absmean, wanted.absmean);
  EXPECT_EQ(found.sqmean, wanted.sqmean);
  EXPECT_EQ(found.absmax, wanted.absmax);
  EXPECT_EQ(found.count, wanted.count);
  EXPECT_EQ(found.has_count, wanted.has_count);
  EXPECT_EQ(found.gram_tokens, wanted.gram_tokens);
  EXPECT_EQ(found.partition, wanted.partition);
  EXPECT_EQ(found.part_channels, wanted.part_channels);
  EXPECT_EQ(found.source, wanted.source);
}

class Store : public testing::Test {
 protected:
  // Reads the file; it must be refused, and HDF5 must print nothing.
  template <typename Read>
  std::string refusal_of(Read read) {
    testing::internal::CaptureStderr();
    std::string message = "nothing was refused";
    try {
      read(file_);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInput) << error.what();
      message = error.message();
    }
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
    EXPECT_THAT(message, HasSubstr(file_.string()));
    return message;
  }

  std::string refusal() { return refusal_of(read_statistics); }

  // Writes the example and changes it with the C library itself.
  void write_edited(const std::function<void(hid_t file)>& edit) {
    write_statistics(file_, example());
    const hid_t file = H5Fopen(file_.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
    ASSERT_GE(file, 0);
    edit(file);
    ASSERT_GE(H5Fclose(file), 0);
  }

  // Replaces an object by a dataset of that type, shape and storage.
  static void replace(hid_t file,
                      const char* path,
                      hid_t type,
                      const std::vector<hsize_t>& shape,
                      hid_t properties = H5P_DEFAULT) {
    ASSERT_GE(H5Ldelete(file, path, H5P_DEFAULT), 0);
    const hid_t space = H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr);
    const hid_t dataset = H5Dcreate2(file, path, type, space, H5P_DEFAULT, properties, H5P_DEFAULT);
    ASSERT_GE(dataset, 0);
    const std::vector<double> values(64, 1.0);
    ASSERT_GE(H5Dwrite(dataset, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()),
              0);
    H5Dclose(dataset);
    H5Sclose(space);
  }

  test::TemporaryFolder folder_;
  std::filesystem::path file_ = folder_.path() / "calib.h5";
};

constexpr const char* kAbsmean = "/inputs/plain/absmean";

TEST_F(Store, GramMatricesAreReadOneByOne) {
  Statistics statistics = example();
  statistics["layers.0.mlp.down_proj"].gram_tokens = 40;
  const std::filesystem::path file = folder_.path() / "gram.h5";
  write_statistics(file, statistics, [](const std::string& name) {
    EXPECT_EQ(name, "layers.0.mlp.down_proj");
    return LowerTriangle{1, 2, 3, 4, 5, 6};
  });
  const Statistics found = read_statistics(file);
  EXPECT_EQ(found.at("layers.0.mlp.down_proj").gram_tokens, 40);
  EXPECT_EQ(found.at("plain").gram_tokens, 0);
  EXPECT_THAT(GramFile(file).read("layers.0.mlp.down_proj", 3),
              testing::ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(GramFile(file).sample("layers.0.mlp.down_proj", 3),
              testing::ElementsAre(2, 3, 4, 5, 6));
  const auto sample_of_four = [](const std::filesystem::path& written) {
    (void)GramFile(written).sample("layers.0.mlp.down_proj", 4);
  };
  EXPECT_THROW(sample_of_four(file), Error);
}

TEST_F(Store, GramMatricesOfSeveralRunsAreWeightedByTokens) {
  const auto write = [&](const std::string& name, std::uint64_t tokens, float value) {
    Statistics statistics = example();
    statistics["plain"].gram_tokens = tokens;
    write_statistics(folder_.path() / name, statistics, [value](const std::string&) {
      return LowerTriangle{value, -value, 2 * value};
    });
    return GramFile(folder_.path() / name);
  };
  const GramFile first = write("first.h5", 300, 1);
  const GramFile second = write("second.h5", 100, 5);
  EXPECT_THAT(merge_grams({{&first, 300}, {&second, 100}}, "plain", 2),
              testing::ElementsAre(2, -2, 4));
}

TEST_F(Store, DamagedGramMatricesAreRefused) {
  const auto refusal = [&](LowerTriangle gram) {
    Statistics statistics = example();
    statistics["plain"].gram_tokens = 9;
    write_statistics(file_, statistics, [&](const std::string&) { return gram; });
    return refusal_of(
        [](const std::filesystem::path& file) { (void)GramFile(file).read("plain", 2); });
  };
  EXPECT_THAT(refusal({1, 2}), AllOf(HasSubstr("/inputs/plain/gram"), HasSubstr("has 2 values")));
  EXPECT_THAT(refusal({1, std::numeric_limits<float>::quiet_NaN(), 1}),
              HasSubstr("channels 1 and 0 have nan"));
  EXPECT_THAT(refusal({1, -1, -1}), HasSubstr("channels 1 and 1 have -1"));
}

TEST_F(Store, ReadsWhatWasWritten) {
  write_statistics(file_, example());
  const Statistics found = read_statistics(file_);
  ASSERT_EQ(found.size(), 2U);
  for (const auto& [name, input] : example()) {
    expect_equal(found.at(name), input);
  }
}

TEST_F(Store, KeepsNamesThatHdf5WouldTakeForPaths) {
  Statistics statistics;
  for (const std::string name : {"a/b", "a%2Fb", ".", "..", "./x", "%", "caf\xc3\xa9 100%"}) {
    statistics[name].absmean = {1};
    statistics[name].source = name;
  }
  write_statistics(file_, statistics);
  const Statistics found = read_statistics(file_);
  ASSERT_EQ(found.size(), statistics.size());
  for (const auto& [name, input] : found) {
    EXPECT_EQ(input.source, name);
  }
}

TEST_F(Store, FollowsTheDocumentedSchema) {
  write_statistics(file_, example());
  const hid_t file = H5Fopen(file_.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  const h5::Identifier close(file);
  char kind[11] = {};
  const h5::Identifier attribute(H5Aopen(file, "quantmill_kind", H5P_DEFAULT));
  const h5::Identifier type(H5Aget_type(attribute.get()));
  EXPECT_EQ(H5Tget_size(type.get()), 10U);
  ASSERT_GE(H5Aread(attribute.get(), type.get(), kind), 0);
  EXPECT_STREQ(kind, "statistics");
  double absmean[3] = {};
  const h5::Identifier dataset(
      H5Dopen2(file, "/inputs/layers.0.mlp.down_proj/absmean", H5P_DEFAULT));
  ASSERT_GE(H5Dread(dataset.get(), H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, absmean), 0);
  EXPECT_EQ(absmean[1], 0.5);
}

TEST_F(Store, GivesTheSameBytesAtAnyTime) {
  write_statistics(file_, example());
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));  // HDF5's times are whole seconds
  write_statistics(folder_.path() / "again.h5", example());
  EXPECT_EQ(test::read_text(file_), test::read_text(folder_.path() / "again.h5"));
}

TEST_F(Store, HoldsThousandsOfInputs) {
  Statistics statistics;
  for (int i = 0; i < 3000; ++i) {
    InputStatistics& input = statistics["layers." + std::to_string(i) + ".mlp.down_proj"];
    input.absmean = {static_cast<double>(i), 1};
    input.source = "calib";
  }
  write_statistics(file_, statistics);
  const Statistics found = read_statistics(file_);
  ASSERT_EQ(found.size(), statistics.size());
  EXPECT_EQ(found.at("layers.2999.mlp.down_proj").absmean, (std::vector<double>{2999, 1}));
}

TEST_F(Store, HoldsLongTexts) {
  Statistics statistics = example();
  statistics["plain"].source = std::string(100'000, 'x');  // more than a plain HDF5 attribute
  write_statistics(file_, statistics);
  EXPECT_EQ(read_statistics(file_).at("plain").source, std::string(100'000, 'x'));
}

// As programs before schema 2 wrote scales: a group for each.
void write_scales_of_schema_1(const std::filesystem::path& file) {
  h5::Writer writer(file);
  {
    const h5::GroupWriter root = writer.root();
    root.write_text("quantmill_kind", "scales");
    root.write_attribute("quantmill_schema", std::int64_t{1});
    root.write_text("quantmill_version", "1.0");
    const h5::GroupWriter groups = root.create_group("groups");
    for (const auto& [name, s] :
         {std::pair("qkv", std::vector<float>{1, 2}), {"layers.0%2Fodd", std::vector<float>{3}}}) {
      const h5::GroupWriter group = groups.create_group(name);
      group.write_dataset("s", s);
      group.write_dataset("alphas", std::vector<double>{0, 0.5});
      group.write_dataset("errors", std::vector<double>{2, 1});
      group.write_attribute("alpha", 0.5);
      group.write_text("reason", "before");
    }
    const std::vector<double> maxima = {4, 0};
    root.create_group("inputs").create_group("a%2Fb").write_dataset("absmax", maxima);
    root.create_group("importance").write_dataset("a%2Fb", std::vector<float>{0.5F});
  }
  writer.commit();
}

// h5py writes a str as text of variable length, UTF-8.
TEST_F(Store, ReadsTextOfVariableLength) {
  const auto write_variable = [](hid_t at, const char* attribute, const char* value) {
    ASSERT_GE(H5Adelete(at, attribute), 0);
    const h5::Identifier type(H5Tcopy(H5T_C_S1));
    H5Tset_size(type.get(), H5T_VARIABLE);
    H5Tset_cset(type.get(), H5T_CSET_UTF8);
    const h5::Identifier scalar(H5Screate(H5S_SCALAR));
    const h5::Identifier created(
        H5Acreate2(at, attribute, type.get(), scalar.get(), H5P_DEFAULT, H5P_DEFAULT));
    ASSERT_GE(H5Awrite(created.get(), type.get(), &value), 0);
  };
  write_scales_of_schema_1(file_);
  const hid_t file = H5Fopen(file_.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  write_variable(file, "quantmill_kind", "scales");
  write_variable(file, "quantmill_version", "1.0");
  for (const auto& [group, reason] :
       {std::pair("/groups/qkv", "caf\xc3\xa9"), {"/groups/layers.0%2Fodd", ""}}) {
    const h5::Identifier opened(H5Gopen2(file, group, H5P_DEFAULT));
    write_variable(opened.get(), "reason", reason);
  }
  ASSERT_GE(H5Fclose(file), 0);
  const ScaleTable found = read_scales(file_);
  EXPECT_EQ(found.at("qkv").reason, "caf\xc3\xa9");
  EXPECT_EQ(found.at("qkv").s, (std::vector<float>{1, 2}));
  EXPECT_EQ(found.at("layers.0/odd").reason, "");
}

TEST_F(Store, RefusesAnAttributeThatIsNoText) {
  write_edited([](hid_t file) {
    H5Adelete(file, "quantmill_kind");
    const h5::Identifier scalar(H5Screate(H5S_SCALAR));
    H5Aclose(
        H5Acreate2(file, "quantmill_kind", H5T_STD_I64LE, scalar.get(), H5P_DEFAULT, H5P_DEFAULT));
  });
  EXPECT_THAT(refusal(), HasSubstr("quantmill_kind: is not text"));
}

TEST_F(Store, LeavesNothingBesideTheFile) {
  write_statistics(file_, example());
  const auto entries = std::filesystem::directory_iterator(folder_.path());
  EXPECT_EQ(std::distance(begin(entries), end(entries)), 1);
}

TEST_F(Store, AWriterThatIsDroppedLeavesNothing) {
  test::write_text(file_, "before");
  { const h5::Writer writer(file_); }
  EXPECT_EQ(test::read_text(file_), "before");
  const auto entries = std::filesystem::directory_iterator(folder_.path());
  EXPECT_EQ(std::distance(begin(entries), end(entries)), 1);
}

TEST_F(Store, AFolderThatIsMissingIsAnIoError) {
  try {
    write_statistics(folder_.path() / "none" / "calib.h5", example());
    FAIL() << "nothing was refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    EXPECT_THAT(error.message(), AllOf(HasSubstr("none/calib.h5"), HasSubstr("No such file")));
  }
}

TEST_F(Store, RefusesToWriteWhatItWouldNotRead) {
  Statistics statistics = example();
  statistics["plain"].absmean[1] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW(write_statistics(file_, statistics), Error);
  EXPECT_FALSE(std::filesystem::exists(file_));
}

TEST_F(Store, RefusesOtherFiles) {
  test::write_text(file_, "not HDF5 at all");
  EXPECT_THAT(refusal(), HasSubstr("is not an HDF5 file"));
}

TEST_F(Store, RefusesAnEmptyFile) {
  test::write_text(file_, "");
  EXPECT_THAT(refusal(), HasSubstr("is not an HDF5 file"));
}

TEST_F(Store, RefusesEveryCutOfAFile) {
  write_statistics(file_, example());
  const std::string whole = test::read_text(file_);
  for (std::size_t size = 0; size < whole.size(); size += 97) {
    test::write_text(file_, whole.substr(0, size));
    EXPECT_THAT(refusal(), HasSubstr("cut short")) << size;
  }
}

TEST_F(Store, RefusesHdf5OfSomeoneElse) {
  write_edited([](hid_t file) { H5Adelete(file, "quantmill_kind"); });
  EXPECT_THAT(refusal(), HasSubstr("quantmill_kind is missing"));
}

TEST_F(Store, RefusesAFileOfAnotherKind) {
  write_scales(file_, {});
  EXPECT_THAT(refusal(), HasSubstr("kind is \"scales\"; \"statistics\" is wanted"));
}

TEST_F(Store, RefusesANewerSchema) {
  write_edited([](hid_t file) {
    const h5::Identifier attribute(H5Aopen(file, "quantmill_schema", H5P_DEFAULT));
    const std::int64_t schema = 2;
    H5Awrite(attribute.get(), H5T_NATIVE_INT64, &schema);
  });
  EXPECT_THAT(refusal(), HasSubstr("schema 2; this program reads schema 1"));
}

TEST_F(Store, RefusesAMissingDataset) {
  write_edited([](hid_t file) { H5Ldelete(file, kAbsmean, H5P_DEFAULT); });
  EXPECT_THAT(refusal(), HasSubstr("/inputs/plain/absmean: the dataset is missing"));
}

TEST_F(Store, RefusesAMissingGroup) {
  write_edited([](hid_t file) { H5Ldelete(file, "/inputs", H5P_DEFAULT); });
  EXPECT_THAT(refusal(), HasSubstr("/inputs: the group is missing"));
}

TEST_F(Store, RefusesAMissingAttribute) {
  write_edited(
      [](hid_t file) { H5Adelete_by_name(file, "/inputs/plain", "partition", H5P_DEFAULT); });
  EXPECT_THAT(refusal(), HasSubstr("/inputs/plain/partition: the attribute is missing"));
}

TEST_F(Store, RefusesAGroupInPlaceOfADataset) {
  write_edited([](hid_t file) {
    H5Ldelete(file, kAbsmean, H5P_DEFAULT);
    H5Gclose(H5Gcreate2(file, kAbsmean, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  });
  EXPECT_THAT(refusal(), HasSubstr("/inputs/plain/absmean: is not a readable dataset"));
}

TEST_F(Store, RefusesADatasetInPlaceOfAGroup) {
  write_edited([](hid_t file) { replace(file, "/inputs/plain", H5T_IEEE_F64LE, {2}); });
  EXPECT_THAT(refusal(), HasSubstr("/inputs/plain: is not a readable group"));
}

TEST_F(Store, RefusesAnotherType) {
  write_edited([](hid_t file) { replace(file, kAbsmean, H5T_IEEE_F32LE, {2}); });
  EXPECT_THAT(refusal(), HasSubstr("absmean: its values are not of type 64-bit float"));
}

TEST_F(Store, RefusesAnotherRank) {
  write_edited([](hid_t file) { replace(file, kAbsmean, H5T_IEEE_F64LE, {2, 3}); });
  EXPECT_THAT(refusal(), HasSubstr("absmean: has 2 dimensions"));
}

TEST_F(Store, RefusesAnotherLength) {
  write_edited([](hid_t file) {
    replace(file, "/inputs/layers.0.mlp.down_proj/sqmean", H5T_IEEE_F64LE, {2});
  });
  EXPECT_THAT(refusal(), HasSubstr("layers.0.mlp.down_proj: sqmean has 2 channels, absmean has 3"));
}

TEST_F(Store, RefusesPartsThatDoNotAddUp) {
  write_edited([](hid_t file) {
    replace(file, "/inputs/layers.0.mlp.down_proj/absmean", H5T_IEEE_F64LE, {4});
    H5Ldelete(file, "/inputs/layers.0.mlp.down_proj/sqmean", H5P_DEFAULT);
    H5Ldelete(file, "/inputs/layers.0.mlp.down_proj/absmax", H5P_DEFAULT);
  });
  EXPECT_THAT(refusal(), HasSubstr("parts do not add up to its 4 channels"));
}

TEST_F(Store, RefusesAnEmptyInput) {
  write_edited([](hid_t file) { replace(file, kAbsmean, H5T_IEEE_F64LE, {0}); });
  EXPECT_THAT(refusal(), HasSubstr("plain: absmean has no channels"));
}

TEST_F(Store, RefusesCompressedData) {
  write_edited([](hid_t file) {
    const h5::Identifier properties(H5Pcreate(H5P_DATASET_CREATE));
    const hsize_t chunk = 2;
    H5Pset_chunk(properties.get(), 1, &chunk);
    H5Pset_deflate(properties.get(), 1);
    replace(file, kAbsmean, H5T_IEEE_F64LE, {2}, properties.get());
  });
  EXPECT_THAT(refusal(), HasSubstr("absmean: is not stored contiguously"));
}

TEST_F(Store, RefusesDataInOtherFiles) {
  const std::string other = (folder_.path() / "other.bin").string();
  write_edited([&](hid_t file) {
    const h5::Identifier properties(H5Pcreate(H5P_DATASET_CREATE));
    H5Pset_external(properties.get(), other.c_str(), 0, 16);
    replace(file, kAbsmean, H5T_IEEE_F64LE, {2}, properties.get());
  });
  EXPECT_THAT(refusal(), HasSubstr("absmean: is not stored contiguously"));
}

TEST_F(Store, RefusesLinksToOtherFiles) {
  write_edited([](hid_t file) {
    H5Ldelete(file, kAbsmean, H5P_DEFAULT);
    H5Lcreate_external("other.h5", "/x", file, kAbsmean, H5P_DEFAULT, H5P_DEFAULT);
  });
  EXPECT_THAT(refusal(), HasSubstr("absmean: is a link to another place"));
}

TEST_F(Store, RefusesMoreValuesThanTheFileCanHold) {
  write_edited([](hid_t file) {
    H5Ldelete(file, kAbsmean, H5P_DEFAULT);
    const hsize_t size = hsize_t{1} << 40;
    const h5::Identifier space(H5Screate_simple(1, &size, nullptr));
    const h5::Identifier properties(H5Pcreate(H5P_DATASET_CREATE));
    H5Pset_alloc_time(properties.get(), H5D_ALLOC_TIME_LATE);
    const h5::Identifier dataset(H5Dcreate2(
        file, kAbsmean, H5T_IEEE_F64LE, space.get(), H5P_DEFAULT, properties.get(), H5P_DEFAULT));
    EXPECT_TRUE(dataset.has_value());
  });
  EXPECT_THAT(refusal(), HasSubstr("absmean: claims 1099511627776 values"));
}

TEST_F(Store, RefusesNaN) {
  write_edited([](hid_t file) {
    const h5::Identifier dataset(H5Dopen2(file, kAbsmean, H5P_DEFAULT));
    const double values[2] = {1, std::numeric_limits<double>::quiet_NaN()};
    H5Dwrite(dataset.get(), H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, values);
  });
  EXPECT_THAT(refusal(), HasSubstr("plain: absmean of channel 1 is nan"));
}

TEST_F(Store, RefusesAPartitionThatDoesNotExist) {
  write_edited([](hid_t file) {
    H5Adelete_by_name(file, "/inputs/plain", "partition", H5P_DEFAULT);
    const h5::Identifier group(H5Gopen2(file, "/inputs/plain", H5P_DEFAULT));
    const h5::Identifier type(H5Tcopy(H5T_C_S1));
    const h5::Identifier space(H5Screate(H5S_SCALAR));
    const h5::Identifier attribute(
        H5Acreate2(group.get(), "partition", type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT));
    H5Awrite(attribute.get(), type.get(), "x");
  });
  EXPECT_THAT(refusal(), HasSubstr("partition: is \"x\"; \"replicated\" or \"row\" is wanted"));
}

TEST_F(Store, RefusesNamesThatAreNotEncoded) {
  write_edited([](hid_t file) {
    H5Lmove(file, "/inputs/plain", file, "/inputs/50%", H5P_DEFAULT, H5P_DEFAULT);
  });
  EXPECT_THAT(refusal(), HasSubstr("\"50%\" is not an encoded name"));
}

ScaleTable example_scales() {
  GroupScales searched;
  searched.s = {1, 0.5F, 2};
  searched.alphas = {0, 0.1, 0.2};
  searched.betas = {0, 0.5, 0};
  searched.errors = {3, 1, 2};
  searched.alpha = 0.1;
  searched.beta = 0.5;
  GroupScales neutral;
  neutral.s = {1, 1};
  neutral.alpha = std::numeric_limits<double>::quiet_NaN();
  neutral.reason = "no statistics";
  return {{"layers.0.mlp.down", searched}, {"layers.0/odd", neutral}};
}

TEST_F(Store, ReadsScalesThatWereWritten) {
  write_scales(file_, example_scales());
  const ScaleTable found = read_scales(file_);
  ASSERT_EQ(found.size(), 2U);
  const GroupScales& searched = found.at("layers.0.mlp.down");
  EXPECT_EQ(searched.s, (std::vector<float>{1, 0.5F, 2}));
  EXPECT_EQ(searched.alphas, (std::vector<double>{0, 0.1, 0.2}));
  EXPECT_EQ(searched.errors, (std::vector<double>{3, 1, 2}));
  EXPECT_EQ(searched.alpha, 0.1);
  EXPECT_EQ(searched.betas, (std::vector<double>{0, 0.5, 0}));
  EXPECT_EQ(searched.beta, 0.5);
  EXPECT_EQ(searched.reason, "");
  const GroupScales& neutral = found.at("layers.0/odd");
  EXPECT_EQ(neutral.s, (std::vector<float>{1, 1}));
  EXPECT_TRUE(neutral.alphas.empty());
  EXPECT_TRUE(std::isnan(neutral.alpha));
  EXPECT_EQ(neutral.reason, "no statistics");
}

TEST_F(Store, ReadsScalesOfSchema1) {
  write_scales_of_schema_1(file_);
  const ScaleTable found = read_scales(file_);
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found.at("layers.0/odd").s, (std::vector<float>{3}));
  EXPECT_EQ(found.at("qkv").alphas, (std::vector<double>{0, 0.5}));
  EXPECT_EQ(found.at("qkv").betas, (std::vector<double>{0, 0}));  // as those of the oldest programs
  EXPECT_EQ(found.at("qkv").alpha, 0.5);
  EXPECT_EQ(found.at("qkv").reason, "before");
  EXPECT_EQ(read_input_maxima(file_), (InputMaxima{{"a/b", {4, 0}}}));
  EXPECT_EQ(read_importance(file_), (ImportanceTable{{"a/b", {0.5F}}}));
}

// Rows are read a million values at a time; these are of three readings, one of them of one row.
TEST_F(Store, ReadsScalesOfManyChannels) {
  ScaleTable scales;
  for (const auto& [name, channels] :
       {std::pair("a", 600'000), {"b", 600'000}, {"c", 0}, {"d", 3}, {"e", 1'200'000}}) {
    GroupScales& group = scales[name];
    for (int channel = 0; channel < channels; ++channel) {
      group.s.push_back(static_cast<float>(channel + 1));
    }
  }
  write_scales(file_, scales);
  const ScaleTable found = read_scales(file_);
  for (const auto& [name, group] : scales) {
    EXPECT_EQ(found.at(name).s, group.s) << name;
  }
}

TEST_F(Store, ReadsTheMaximaThatWereWrittenBesideScales) {
  const InputMaxima maxima{{"layers.0/odd", {0.5, 3}}, {"layers.1", {0}}};
  write_scales(file_, example_scales(), maxima);
  EXPECT_EQ(read_input_maxima(file_), maxima);
  EXPECT_EQ(read_scales(file_).size(), 2U);
}

TEST_F(Store, ScalesOfNoGroupsAreAFileToo) {
  write_scales(file_, {});
  EXPECT_TRUE(read_scales(file_).empty());
}

// A trillion parameters have 23,000 groups, which rank 0 writes while all others wait.
TEST_F(Store, ScalesOfThousandsOfGroupsTakeNoTime) {
  ScaleTable scales;
  for (int group = 0; group < 20'000; ++group) {
    scales["layers." + std::to_string(group) + ".mlp.experts.down"].s = {1, 2};
  }
  const std::clock_t begun = std::clock();
  write_scales(file_, scales);
  EXPECT_EQ(read_scales(file_).size(), scales.size());
  const double seconds = static_cast<double>(std::clock() - begun) / CLOCKS_PER_SEC;
  EXPECT_LT(seconds, 2);  // 0.1; with a group of HDF5 for each 14
}

TEST_F(Store, ScalesGiveTheSameBytes) {
  write_scales(file_, example_scales());
  write_scales(folder_.path() / "again.h5", example_scales());
  EXPECT_EQ(test::read_text(file_), test::read_text(folder_.path() / "again.h5"));
}

TEST_F(Store, ReadsTheImportanceThatWasWrittenBesideScales) {
  const ImportanceTable importance{{"layers.0/odd", {0.5F, 3}}, {"layers.1", {0x1p-140F}}};
  write_scales(file_, example_scales(), {}, importance);
  EXPECT_EQ(read_importance(file_), importance);
  EXPECT_EQ(read_scales(file_).size(), 2U);
  write_scales(file_, example_scales());
  EXPECT_TRUE(read_importance(file_).empty());
}

TEST_F(Store, RefusesImportanceThatIsNotPositive) {
  write_scales(file_, {}, {}, {{"layers.0", {1, 0}}});
  EXPECT_THAT(refusal_of(read_importance),
              HasSubstr("/importance: layers.0: the importance of column 1 is 0"));
}

TEST_F(Store, RefusesStatisticsForScales) {
  write_statistics(file_, example());
  EXPECT_THAT(refusal_of(read_scales), HasSubstr("\"scales\" is wanted"));
}

TEST_F(Store, RefusesScalesThatAreNotPositive) {
  ScaleTable scales = example_scales();
  scales.at("layers.0.mlp.down").s[2] = 0;
  write_scales(file_, scales);
  EXPECT_THAT(refusal_of(read_scales),
              HasSubstr("/groups: layers.0.mlp.down: the scale of channel 2 is 0"));
}

TEST_F(Store, RefusesMaximaThatAreNegative) {
  write_scales(file_, {}, {{"a", {1, 2}}, {"b", {0, -1}}});
  EXPECT_THAT(refusal_of(read_input_maxima),
              HasSubstr("/inputs: b: the maximum of column 1 is -1"));
}

// What a table of scales can be that does not hold together.
class DamagedScales : public Store {
 protected:
  void SetUp() override {
    write_scales(file_, example_scales());
    writable_ = H5Fopen(file_.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
    ASSERT_GE(writable_, 0);
  }

  void overwrite(const char* path, hid_t type, hsize_t size, const void* values) {
    ASSERT_GE(H5Ldelete(writable_, path, H5P_DEFAULT), 0);
    const h5::Identifier space(H5Screate_simple(1, &size, nullptr));
    const h5::Identifier dataset(
        H5Dcreate2(writable_, path, type, space.get(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    if (values != nullptr) {
      ASSERT_GE(H5Dwrite(dataset.get(), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values), 0);
    }
  }

  void overwrite_numbers(const char* path, const std::vector<double>& values) {
    overwrite(path, H5T_IEEE_F64LE, values.size(), values.data());
  }

  void overwrite_names(std::size_t length, hsize_t size, const void* values) {
    const h5::Identifier type(H5Tcopy(H5T_C_S1));
    H5Tset_size(type.get(), length);
    overwrite("/groups/names", type.get(), size, values);
  }

  void overwrite_offsets(const char* path, const std::vector<std::uint64_t>& values) {
    overwrite(path, H5T_STD_U64LE, values.size(), values.data());
  }

  std::string refused() {
    EXPECT_GE(H5Fclose(writable_), 0);
    return refusal_of(read_scales);
  }

  hid_t writable_ = -1;
};

TEST_F(DamagedScales, OffsetsThatGoBackAreRefused) {
  overwrite_offsets("/groups/s_offsets", {0, 6, 5});
  EXPECT_THAT(refused(), HasSubstr("/groups/s_offsets: does not divide the 5 values of s among 2"));
}

TEST_F(DamagedScales, OffsetsBeyondTheValuesAreRefused) {
  overwrite_offsets("/groups/s_offsets", {0, 3, UINT64_MAX});
  EXPECT_THAT(refused(), HasSubstr("/groups/s_offsets: does not divide the 5 values of s among 2"));
}

TEST_F(DamagedScales, OffsetsThatBeginLateAreRefused) {
  overwrite_offsets("/groups/candidate_offsets", {1, 3, 3});
  EXPECT_THAT(refused(), HasSubstr("/groups/candidate_offsets: does not divide the 3 values of"));
}

TEST_F(DamagedScales, TooFewOffsetsAreRefused) {
  overwrite_offsets("/groups/s_offsets", {0, 5});
  EXPECT_THAT(refused(), HasSubstr("among 2 rows"));
}

TEST_F(DamagedScales, NoOffsetsAreRefused) {
  overwrite_offsets("/groups/s_offsets", {});
  EXPECT_THAT(refused(), HasSubstr("among 2 rows"));
}

TEST_F(DamagedScales, FewerErrorsThanAlphasAreRefused) {
  overwrite_numbers("/groups/errors", {1, 2});
  EXPECT_THAT(refused(), HasSubstr("candidate_offsets: does not divide the 2 values of errors"));
}

TEST_F(DamagedScales, AColumnOfAnotherLengthIsRefused) {
  overwrite_numbers("/groups/alpha", {1});
  EXPECT_THAT(refused(), HasSubstr("/groups/alpha: has 1 values; one for each of 2 names"));
}

TEST_F(DamagedScales, ANameThatIsThereTwiceIsRefused) {
  overwrite_names(1, 2, "aa");
  EXPECT_THAT(refused(), HasSubstr("/groups/names: \"a\" stands before \"a\""));
}

TEST_F(DamagedScales, NamesOfVariableLengthAreRefused) {
  const std::array<const char*, 2> names = {"a", "b"};
  overwrite_names(H5T_VARIABLE, names.size(), names.data());
  EXPECT_THAT(refused(), HasSubstr("/groups/names: is not text of one length"));
}

TEST_F(DamagedScales, NamesThatAreNumbersAreRefused) {
  overwrite_offsets("/groups/names", {1, 2});
  EXPECT_THAT(refused(), HasSubstr("/groups/names: is not text of one length"));
}

TEST_F(DamagedScales, NamesThatTheFileCannotHoldAreRefused) {
  overwrite_names(1 << 20, 1 << 20, nullptr);
  EXPECT_THAT(refused(), HasSubstr("/groups/names: claims 1048576 values, more than the file"));
}

TEST_F(DamagedScales, AMissingColumnIsRefused) {
  H5Ldelete(writable_, "/groups/reasons", H5P_DEFAULT);
  EXPECT_THAT(refused(), HasSubstr("/groups/reasons: the dataset is missing"));
}

TEST_F(DamagedScales, ANewerSchemaIsRefused) {
  const std::int64_t newer = 3;
  const hid_t schema = H5Aopen(writable_, "quantmill_schema", H5P_DEFAULT);
  ASSERT_GE(H5Awrite(schema, H5T_STD_I64LE, &newer), 0);
  H5Aclose(schema);
  EXPECT_THAT(refused(), HasSubstr("has schema 3; this program reads schema 1 to 2"));
}

}  // namespace
}  // namespace quantmill
