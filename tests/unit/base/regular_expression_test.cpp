#include "base/regular_expression.h"

#include <gmock/gmock.h>

#include "tests/support/expect_error.h"

namespace quantmill {
namespace {

using testing::HasSubstr;

TEST(RegularExpression, MatchesFromTheFirstCharacterOnAsPythonDoes) {
  const RegularExpression expression("re.*\\d+$");
  EXPECT_TRUE(expression.matches_start("re.x.12"));
  EXPECT_FALSE(expression.matches_start("a.re.12"));
  EXPECT_TRUE(RegularExpression("model").matches_start("model.layers"));  // the end is open
  EXPECT_TRUE(RegularExpression("(?!lm_head).*").matches_start("fc"));
  EXPECT_FALSE(RegularExpression("(?!lm_head).*").matches_start("lm_head"));
}

TEST(RegularExpression, SaysWhatIsWrong) {
  const Error error = test::error_of([] { RegularExpression("a(b"); });
  EXPECT_EQ(error.code(), ErrorCode::kInput);
  EXPECT_EQ(error.message(),
            "regular expression 'a(b': missing closing parenthesis at character 3");
}

TEST(RegularExpression, GivesUpOnWhatWouldTakeForEver) {
  const RegularExpression expression("(a+)+$");
  const Error error =
      test::error_of([&] { (void)expression.matches_start(std::string(60, 'a') + "b"); });
  EXPECT_EQ(error.code(), ErrorCode::kInput);
  EXPECT_THAT(error.message(), HasSubstr("(a+)+$"));
}

}  // namespace
}  // namespace quantmill
