#include "base/pattern.h"

#include <gtest/gtest.h>

namespace quantmill {
namespace {

TEST(Pattern, StarMatchesDotsToo) {
  EXPECT_TRUE(matches_pattern("*down_proj*", "layers.0.mlp.down_proj.weight"));
  EXPECT_TRUE(matches_pattern("layers.*.weight", "layers.11.mlp.up_proj.weight"));
}

TEST(Pattern, StarMatchesALeadingDotAndSlashes) {
  EXPECT_TRUE(matches_pattern("*", ".hidden/name"));
}

TEST(Pattern, TheWholeNameMustMatch) {
  EXPECT_FALSE(matches_pattern("down_proj", "layers.0.mlp.down_proj.weight"));
  EXPECT_FALSE(matches_pattern("layers.0.*", "model.layers.0.x"));
}

TEST(Pattern, QuestionMarkAndSetMatchOneCharacter) {
  EXPECT_TRUE(matches_pattern("layers.?.x", "layers.3.x"));
  EXPECT_FALSE(matches_pattern("layers.?.x", "layers.13.x"));
  EXPECT_TRUE(matches_pattern("layers.[0-2].x", "layers.2.x"));
  EXPECT_FALSE(matches_pattern("layers.[0-2].x", "layers.3.x"));
}

TEST(IsNumber, TakesDigitsOnly) {
  EXPECT_TRUE(is_number("0"));
  EXPECT_TRUE(is_number("120"));
  for (const char* text : {"", "w1", "1w", "-1", "1.5", " 1"}) {
    EXPECT_FALSE(is_number(text)) << text;
  }
}

TEST(ReplaceAll, ReplacesEveryOccurrence) {
  EXPECT_EQ(replace_all("layers.{i}.{i}", "{i}", "12"), "layers.12.12");
}

TEST(ReplaceAll, DoesNotReplaceWhatItPutIn) {
  EXPECT_EQ(replace_all("aa", "a", "aa"), "aaaa");
}

TEST(ReplaceAll, AnEmptyTextOccursNowhere) {
  EXPECT_EQ(replace_all("abc", "", "x"), "abc");
}

}  // namespace
}  // namespace quantmill
