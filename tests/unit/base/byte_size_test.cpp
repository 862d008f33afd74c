#include "base/byte_size.h"

#include <gmock/gmock.h>

#include "tests/support/expect_error.h"

namespace quantmill {
namespace {

using testing::HasSubstr;

TEST(ParseSize, TakesBytesAndPowersOf1024) {
  EXPECT_EQ(parse_size("0"), 0U);
  EXPECT_EQ(parse_size("1000000"), 1000000U);
  EXPECT_EQ(parse_size("7B"), 7U);
  EXPECT_EQ(parse_size("1K"), 1024U);
  EXPECT_EQ(parse_size("512M"), 536870912U);
  EXPECT_EQ(parse_size("4G"), 4294967296U);
  EXPECT_EQ(parse_size("1.5GiB"), 1610612736U);
  EXPECT_EQ(parse_size("2t"), 2199023255552U);
  EXPECT_EQ(parse_size("3mb"), 3145728U);
  EXPECT_EQ(parse_size("0.0001K"), 0U);
  EXPECT_EQ(parse_size("18446744073709551615"), 18446744073709551615U);
}

TEST(ParseSize, RefusesEverythingElse) {
  for (const char* text : {"",
                           "G",
                           "-1",
                           "+1",
                           " 1",
                           "1 G",
                           "1P",
                           "1Gi",
                           "1GiBs",
                           "1e9",
                           "0x10",
                           "1.5",
                           "1.2.3G",
                           ".",
                           "inf",
                           "nan",
                           "18446744073709551616",
                           "16777216T",
                           "99999999999.5T"}) {
    const Error error = test::error_of([&] { parse_size(text); });
    EXPECT_EQ(error.code(), ErrorCode::kUsage) << text;
    EXPECT_THAT(error.message(), HasSubstr("is no size"));
  }
}

TEST(FormatSize, HasOneDecimalAndBinaryUnits) {
  EXPECT_EQ(format_size(0), "0 B");
  EXPECT_EQ(format_size(1023), "1023 B");
  EXPECT_EQ(format_size(1024), "1.0 KiB");
  EXPECT_EQ(format_size(1536), "1.5 KiB");
  EXPECT_EQ(format_size(1048575), "1.0 MiB");
  EXPECT_EQ(format_size(3848808960), "3.6 GiB");
  EXPECT_EQ(format_size(18446744073709551615U), "16777216.0 TiB");
}

}  // namespace
}  // namespace quantmill
