#include "plan/expression.h"

#include <map>
#include <string>

#include <gmock/gmock.h>

#include "base/error.h"

namespace quantmill {
namespace {

Value text(const char* value) {
  return Value::of(std::string(value));
}

Value number(std::uint64_t value) {
  return Value::of(value);
}

Value lookup(const std::string& name) {
  static const std::map<std::string, Value> kValues = {
      {"layer", number(3)},
      {"heads", number(12)},
      {"kind", text("moe")},
      {"types", Value::of({text("full"), text("linear"), text("full"), text("linear")})},
      {"dense", Value::of({number(0), number(3)})},
      {"huge", number(UINT64_MAX)}};
  const auto found = kValues.find(name);
  if (found == kValues.end()) {
    throw Error(ErrorCode::kInput, "there is no parameter " + name);
  }
  return found->second;
}

std::uint64_t result(const std::string& expression) {
  return evaluate_number(expression, lookup);
}

std::string refusal(const std::string& expression) {
  try {
    evaluate_number(expression, lookup);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInput);
    EXPECT_THAT(error.message(), testing::StartsWith("expression \"" + expression + "\": "));
    return error.message();
  }
  return "";
}

TEST(Expression, BindsProductsTighterThanSumsAndReadsFromTheLeft) {
  EXPECT_EQ(result("2 + 3 * 4"), 14U);
  EXPECT_EQ(result("(2 + 3) * 4"), 20U);
  EXPECT_EQ(result("20 - 3 - 2"), 15U);
  EXPECT_EQ(result("heads / 2 / 3"), 2U);
  EXPECT_EQ(result("heads % 5 * 2"), 4U);
}

TEST(Expression, ComparesAfterComputing) {
  EXPECT_EQ(result("layer + 1 == 4"), 1U);
  EXPECT_EQ(result("layer >= 4"), 0U);
  EXPECT_EQ(result("layer != 2 + 1"), 0U);
  EXPECT_EQ(result("2 <= 2"), 1U);
  EXPECT_EQ(result("layer < 3"), 0U);
  EXPECT_EQ(result("layer > 2"), 1U);
}

TEST(Expression, JoinsConditions) {
  EXPECT_EQ(result("not layer == 2 and layer < 9"), 1U);
  EXPECT_EQ(result("layer == 2 or layer == 3 and heads == 0"), 0U);
  EXPECT_EQ(result("(layer == 2 or layer == 3) and heads == 12"), 1U);
  EXPECT_EQ(result("not not layer"), 1U);
}

TEST(Expression, LooksIntoLists) {
  EXPECT_EQ(result("types[layer] == 'linear'"), 1U);
  EXPECT_EQ(result("types[layer - 1] == 'linear'"), 0U);
  EXPECT_EQ(result("layer in dense"), 1U);
  EXPECT_EQ(result("1 in dense"), 0U);
  EXPECT_EQ(result("not layer in dense"), 0U);
  EXPECT_EQ(result("count(types)"), 4U);
  EXPECT_EQ(result("types == []"), 0U);
  EXPECT_EQ(result("[] == []"), 1U);
  EXPECT_EQ(result("kind == 'moe'"), 1U);
}

TEST(Expression, DoesNotLookAtTheSideThatDoesNotMatter) {
  EXPECT_EQ(result("layer == 9 and missing == 1"), 0U);
  EXPECT_EQ(result("layer == 3 or types[99] == 'x' or 1 / 0"), 1U);
  EXPECT_EQ(result("layer == 9 and (missing or count(missing) + missing[2])"), 0U);
  EXPECT_THAT(refusal("layer == 3 and missing"), testing::HasSubstr("no parameter missing"));
}

TEST(Expression, GivesValuesOfEveryKind) {
  EXPECT_EQ(evaluate("types[1]", lookup), text("linear"));
  EXPECT_EQ(evaluate("dense", lookup), Value::of({number(0), number(3)}));
  EXPECT_TRUE(evaluate_condition("2", lookup));
  EXPECT_FALSE(evaluate_condition("1 - 1", lookup));
}

struct BadExpression {
  const char* text;
  const char* why;
};

class RefusedExpression : public testing::TestWithParam<BadExpression> {};

TEST_P(RefusedExpression, SaysWhy) {
  EXPECT_THAT(refusal(GetParam().text), testing::HasSubstr(GetParam().why));
}

INSTANTIATE_TEST_SUITE_P(
    All,
    RefusedExpression,
    testing::Values(BadExpression{"", "a name, a number or a text is missing"},
                    BadExpression{"2 *", "a name, a number or a text is missing"},
                    BadExpression{"2 2", "'2' is not expected there"},
                    BadExpression{"(2", "')' is missing"},
                    BadExpression{"types[1", "']' is missing"},
                    BadExpression{"'open", "a quote is not closed"},
                    BadExpression{"7 / 2", "7 can't be divided by 2"},
                    BadExpression{"7 / 0", "7 can't be divided by 0"},
                    BadExpression{"7 % 0", "by 0"},
                    BadExpression{"2 - 3", "2 - 3 is below 0"},
                    BadExpression{"huge + 1", "does not fit 64 bits"},
                    BadExpression{"huge * 2", "does not fit 64 bits"},
                    BadExpression{"99999999999999999999", "is no integer"},
                    BadExpression{"types[4]", "element 4 of a list of 4"},
                    BadExpression{"layer[0]", "only a list has elements"},
                    BadExpression{"count(layer)", "count() takes a list"},
                    BadExpression{"layer in heads", "right of 'in' a list is wanted"},
                    BadExpression{"kind + 1", "'moe' is a text where a number is wanted"},
                    BadExpression{"types + 1", "a list stands where a number is wanted"},
                    BadExpression{"kind == 3", "values of different kinds"},
                    BadExpression{"kind", "a number is wanted"},
                    BadExpression{"kind and 1", "'moe' is a text"}));

TEST(Expression, RefusesParenthesesWithoutEnd) {
  EXPECT_THAT(refusal(std::string(1000, '(')), testing::HasSubstr("more than 64 parentheses"));
  std::string indexed;
  std::string negated;
  for (int i = 0; i < 100'000; ++i) {
    indexed += "types[";
    negated += "not ";
  }
  EXPECT_THAT(refusal(indexed), testing::HasSubstr("more than 64 parentheses"));
  EXPECT_EQ(result(negated + "layer"), 1U);
}

}  // namespace
}  // namespace quantmill
