#include "checkpoint/index.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace quantmill {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

TEST(ParseIndex, ReadsTheWeightMap) {
  const CheckpointIndex index = parse_checkpoint_index(
      R"({"metadata":{"total_size":7,"weight_map":{"x":1}},"weight_map":{"b":"2.safetensors","a":"1.safetensors","c":"2.safetensors"},"x":[{"weight_map":[]}]})");
  EXPECT_THAT(
      index.weight_map,
      ElementsAre(
          Pair("b", "2.safetensors"), Pair("a", "1.safetensors"), Pair("c", "2.safetensors")));
  EXPECT_THAT(index.file_names, ElementsAre("1.safetensors", "2.safetensors"));
}

TEST(ParseIndex, FilesMayLieInFoldersBelow) {
  EXPECT_THAT(parse_checkpoint_index(R"({"weight_map":{"a":"sub/1.safetensors"}})").file_names,
              ElementsAre("sub/1.safetensors"));
}

struct Rejection {
  const char* name;
  std::string json;
  const char* message;
};

class RejectedIndex : public testing::TestWithParam<Rejection> {};

TEST_P(RejectedIndex, IsBadInputWithAReason) {
  const Error error = test::error_of([] { parse_checkpoint_index(GetParam().json); });
  EXPECT_EQ(error.code(), ErrorCode::kInput);
  EXPECT_THAT(error.message(), HasSubstr(GetParam().message));
}

std::string file(const std::string& name) {
  return R"({"weight_map":{"a":")" + name + R"("}})";
}

INSTANTIATE_TEST_SUITE_P(
    Reasons,
    RejectedIndex,
    testing::Values(
        Rejection{"parent_folder",
                  file("../x.safetensors"),
                  "tensor 'a' is said to be in '../x.safetensors'"},
        Rejection{"parent_folder_inside",
                  file("x/../../y.safetensors"),
                  "lie in the checkpoint's folder"},
        Rejection{"parent_folder_of_itself",
                  file("x/../y.safetensors"),
                  "lie in the checkpoint's folder"},
        Rejection{"this_folder", file("./x.safetensors"), "named plainly"},
        Rejection{"absolute", file("/etc/x.safetensors"), "lie in the checkpoint's folder"},
        Rejection{"nul", file("x\\u0000.safetensors"), "lie in the checkpoint's folder"},
        Rejection{"empty_name", file(""), "lie in the checkpoint's folder"},
        Rejection{"bin", file("pytorch_model.bin"), "convert the checkpoint to safetensors"},
        Rejection{"duplicate_tensor",
                  R"({"weight_map":{"a":"x.safetensors","a":"y.safetensors"}})",
                  "tensor 'a' is twice"},
        Rejection{"duplicate_map",
                  R"({"weight_map":{"a":"x.safetensors"},"weight_map":{}})",
                  "weight_map is there twice"},
        Rejection{
            "number", R"({"weight_map":{"a":1}})", "weight_map of tensor 'a' is not a string"},
        Rejection{
            "array", R"({"weight_map":{"a":["x"]}})", "weight_map of tensor 'a' is not a string"},
        Rejection{"object",
                  R"({"weight_map":{"a":{"x":"y"}}})",
                  "weight_map of tensor 'a' is not a string"},
        Rejection{"map_is_an_array", R"({"weight_map":["a"]})", "weight_map is not an object"},
        Rejection{"map_is_text", R"({"weight_map":"a"})", "weight_map is not an object"},
        Rejection{"no_map", R"({"metadata":{}})", "no weight_map"},
        Rejection{"empty_map", R"({"weight_map":{}})", "or an empty one"},
        Rejection{
            "top_is_an_array", R"([{"weight_map":{"a":"x.safetensors"}}])", "not a JSON object"},
        Rejection{"top_is_a_number", "1", "not a JSON object"},
        Rejection{"not_json", "weight_map", "not JSON"},
        Rejection{"empty", "", "not JSON"},
        Rejection{"deep_nesting", std::string(100'000, '{'), "not JSON"},
        Rejection{"deep_arrays", R"({"x":)" + std::string(100'000, '['), "nested deeper"}),
    [](const auto& test_case) { return test_case.param.name; });

}  // namespace
}  // namespace quantmill
