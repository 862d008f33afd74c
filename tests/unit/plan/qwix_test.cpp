#include <gmock/gmock.h>

#include "plan/qwix/axis_pattern.h"
#include "plan/qwix/jax_model.h"
#include "plan/qwix/jax_parameters.h"
#include "plan/qwix/name_pattern.h"
#include "tests/support/expect_error.h"

namespace quantmill {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

template <typename Body>
void expect_error(Body&& body, ErrorCode code, const std::string& words) {
  const Error error = test::error_of(body);
  EXPECT_EQ(error.code(), code);
  EXPECT_THAT(error.message(), HasSubstr(words));
}

TEST(AxisPattern, GroupsAndStackedAxes) {
  const AxisPattern pattern = parse_axis_pattern("(heads dim) in 1 -> layer heads in dim");
  EXPECT_THAT(pattern.from,
              ElementsAre(ElementsAre("heads", "dim"), ElementsAre("in"), AxisGroup()));
  EXPECT_THAT(pattern.stacked(), ElementsAre("layer"));
}

TEST(AxisPattern, RefusesWhatIsNotUnderstood) {
  for (const auto& [text, words] :
       {std::pair("out in", "an arrow is wanted"),
        std::pair("(a b -> a b", "parentheses do not match"),
        std::pair("a) -> a", "parentheses do not match"),
        std::pair("a a -> a", "a is there twice"),
        std::pair("a, b -> a b", "',' is no axis"),
        std::pair("a b -> a", "b is on the left and not on the right")}) {
    expect_error([pattern = text] { (void)parse_axis_pattern(pattern); }, ErrorCode::kInput, words);
  }
}

TEST(NamePattern, PlaceholdersStandForTheirKindOfText) {
  const NamePattern pattern("layers.{layer:#}.{path:*}{part:q|k}_proj.weight");
  EXPECT_THAT(pattern.match("layers.12.self_attn.k_proj.weight").value(),
              ElementsAre(Pair("layer", "12"), Pair("path", "self_attn."), Pair("part", "k")));
  EXPECT_THAT(pattern.match("layers.0.q_proj.weight").value(),
              ElementsAre(Pair("layer", "0"), Pair("path", ""), Pair("part", "q")));
  EXPECT_FALSE(pattern.match("layers.x.self_attn.k_proj.weight"));
  EXPECT_FALSE(pattern.match("layers.1.self_attn.v_proj.weight"));
  EXPECT_FALSE(NamePattern("a.{x}").match("a.b.c"));
  EXPECT_FALSE(NamePattern("a.{x}").match("a."));
}

TEST(NamePattern, RefusesBracesThatDoNotFit) {
  expect_error([] { NamePattern("a.{x"); }, ErrorCode::kInput, "a brace is not closed");
  expect_error([] { NamePattern("{x}.{x}"); }, ErrorCode::kInput, "one that is taken");
  expect_error([] { (void)fill_in("a.{y}", {{"x", "1"}}); }, ErrorCode::kInput, "{y}");
}

TEST(JaxModel, EveryBuiltInOneIsUnderstood) {
  EXPECT_GE(builtin_jax_models().size(), 8U);
  for (const BuiltinJaxModel& builtin : builtin_jax_models()) {
    EXPECT_EQ(parse_jax_model(builtin.json).name, builtin.name);
  }
}

SourceWeight weight(const std::string& name, std::vector<std::uint64_t> shape) {
  SourceWeight result;
  result.entry.name = name;
  result.entry.shape = std::move(shape);
  return result;
}

JaxParameters find(const std::string& rules, const std::vector<SourceWeight>& weights) {
  const std::string json =
      R"({"schema": 1, "name": "test", "prefixes": ["model."], "parameters": {"heads": {"config": ["h"]}}, "weights": )" +
      rules + "}";
  return find_jax_parameters(
      parse_jax_model(json), R"({"h": 2})", weights, std::vector<bool>(weights.size(), true));
}

constexpr const char* kStack =
    R"([{"from": ["l.{layer:#}.gate", "l.{layer:#}.up"], "to": "l.gate_up",
    "axes": "(heads dim) in -> layer in heads dim", "join": "dim", "sizes": {"heads": "heads"}}])";

TEST(JaxParameters, WeightsAreJoinedAndStacked) {
  const JaxParameters found = find(kStack,
                                   {weight("model.l.0.gate", {6, 5}),
                                    weight("l.0.up", {4, 5}),
                                    weight("l.1.up", {4, 5}),
                                    weight("l.1.gate", {6, 5})});
  ASSERT_EQ(found.parameters.size(), 1U);
  const JaxParameter& parameter = found.parameters[0];
  EXPECT_EQ(parameter.name, "l.gate_up");
  EXPECT_THAT(parameter.shape(), ElementsAre(2, 5, 2, 5));  // dim: 3 of gate and 2 of up
  EXPECT_THAT(parameter.sources[2].at, ElementsAre(Pair("dim", 3), Pair("layer", 1)));
}

TEST(JaxParameters, WhatIsMissingIsNamed) {
  expect_error(
      [] {
        (void)find(
            kStack,
            {weight("l.0.gate", {6, 5}), weight("l.1.gate", {6, 5}), weight("l.1.up", {4, 5})});
      },
      ErrorCode::kInput,
      "3 of the 4 weights that it is made of are there, among them l.0.gate; the first that is "
      "missing is l.{layer:#}.up, layer 0");
  expect_error(
      [] {
        (void)find(kStack, {weight("l.0.gate", {5, 5})});
      },
      ErrorCode::kInput,
      "a dimension of 5 does not hold (heads dim)");
  expect_error(
      [] {
        (void)find(kStack, {weight("other", {5, 5})});
      },
      ErrorCode::kInput,
      "tensor other: the JAX model test has no parameter for it");
}

}  // namespace
}  // namespace quantmill
