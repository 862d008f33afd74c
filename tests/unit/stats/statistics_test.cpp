#include "stats/statistics.h"

#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace quantmill {
namespace {

using testing::HasSubstr;

Statistics one(const std::string& name, std::vector<double> absmean) {
  Statistics statistics;
  statistics[name].absmean = std::move(absmean);
  return statistics;
}

std::string refusal(const Statistics& statistics) {
  try {
    check_statistics(statistics);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInput);
    return error.message();
  }
  return "nothing was refused";
}

TEST(CheckStatistics, TakesZerosAndAnyFiniteValue) {
  EXPECT_NO_THROW(check_statistics(one("x", {0, 5e-324, 0x1.fffffffffffffp+1023})));
}

TEST(CheckStatistics, RefusesNaN) {
  EXPECT_THAT(refusal(one("x", {1, std::numeric_limits<double>::quiet_NaN()})),
              HasSubstr("statistics of x: absmean of channel 1 is nan"));
}

TEST(CheckStatistics, RefusesInfinity) {
  EXPECT_THAT(refusal(one("x", {std::numeric_limits<double>::infinity()})),
              HasSubstr("absmean of channel 0 is inf"));
}

TEST(CheckStatistics, RefusesNegativeValuesOfAnyVector) {
  Statistics statistics = one("x", {1, 1});
  statistics["x"].sqmean = {1, -2};
  EXPECT_THAT(refusal(statistics), HasSubstr("sqmean of channel 1 is -2"));
  statistics["x"].sqmean.clear();
  statistics["x"].absmax = {-0.5, 1};
  EXPECT_THAT(refusal(statistics), HasSubstr("absmax of channel 0 is -0.5"));
}

TEST(CheckStatistics, RefusesVectorsOfOtherLengths) {
  Statistics statistics = one("x", {1, 1});
  statistics["x"].absmax = {1};
  EXPECT_THAT(refusal(statistics), HasSubstr("absmax has 1 channels, absmean has 2"));
}

TEST(CheckStatistics, RefusesInputsWithoutChannels) {
  EXPECT_THAT(refusal(one("x", {})), HasSubstr("absmean has no channels"));
}

TEST(CheckStatistics, RefusesNamesThatCouldForgeOutput) {
  EXPECT_THAT(refusal(one("", {1})), HasSubstr("name is empty"));
  EXPECT_THAT(refusal(one("a\nb", {1})), HasSubstr("control characters"));
  EXPECT_THAT(refusal(one(std::string("a\0b", 3), {1})), HasSubstr("control characters"));
}

TEST(CheckStatistics, RefusesPartsThatDoNotAddUp) {
  Statistics statistics = one("x", {1, 1, 1});
  statistics["x"].partition = Partition::kRow;
  statistics["x"].part_channels = {2, 1};
  EXPECT_NO_THROW(check_statistics(statistics));
  statistics["x"].part_channels = {2, 2};
  EXPECT_THAT(refusal(statistics), HasSubstr("do not add up"));
  // Adds up only modulo 2^64.
  statistics["x"].part_channels = {4, std::numeric_limits<std::uint64_t>::max()};
  EXPECT_THAT(refusal(statistics), HasSubstr("do not add up"));
}

}  // namespace
}  // namespace quantmill
