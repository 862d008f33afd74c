#include "checkpoint/safetensors.h"

#include <chrono>
#include <string>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_checkpoint.h"

namespace quantmill {
namespace {

using test::error_of;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// The header of a file whose data section has `data_bytes`.
SafetensorsHeader parse(const std::string& json, std::uint64_t data_bytes) {
  return parse_safetensors_header(json, 8 + json.size() + data_bytes);
}

std::string object(const std::string& content) {
  return fmt::format("{{{}}}", content);
}

std::string entry(const std::string& name,
                  const std::string& dtype,
                  const std::string& shape,
                  const std::string& offsets) {
  return fmt::format(
      R"("{}":{{"dtype":"{}","shape":{},"data_offsets":{}}})", name, dtype, shape, offsets);
}

TEST(ParseHeader, ReadsNamesShapesAndOffsets) {
  const SafetensorsHeader header = parse(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},)"
      R"("a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}   )",
      16);
  EXPECT_THAT(header.metadata, ElementsAre(testing::Pair("format", "pt")));
  ASSERT_EQ(header.tensors.size(), 2U);
  EXPECT_EQ(header.tensors[0].name, "a");
  EXPECT_EQ(header.tensors[0].dtype, DType::kF32);
  EXPECT_THAT(header.tensors[0].shape, IsEmpty());
  EXPECT_EQ(header.tensors[0].num_elements(), 1U);
  EXPECT_EQ(header.tensors[1].name, "b");
  EXPECT_THAT(header.tensors[1].shape, ElementsAre(2, 3));
  EXPECT_EQ(header.tensors[1].begin, 4U);
  EXPECT_EQ(header.tensors[1].end, 16U);
  EXPECT_EQ(header.tensors[1].num_elements(), 6U);
}

TEST(ParseHeader, DataBeginsAfterLengthAndHeader) {
  EXPECT_EQ(parse("{}      ", 0).data_begin, 16U);
}

TEST(ParseHeader, TensorsWithoutElementsAreLegal) {
  const SafetensorsHeader header = parse(
      object(entry("a", "U8", "[2]", "[0,2]") + "," + entry("empty", "F32", "[0,5]", "[2,2]") +
             "," + entry("b", "U8", "[1]", "[2,3]")),
      3);
  EXPECT_EQ(header.tensors[1].name, "empty");
  EXPECT_EQ(header.tensors[1].num_elements(), 0U);
}

TEST(ParseHeader, KeepsNamesThatAreNotAscii) {
  EXPECT_EQ(parse(object(entry("b\u00e9\u6570\\u00e9", "U8", "[1]", "[0,1]")), 1).tensors[0].name,
            "b\u00e9\u6570\u00e9");
}

TEST(ParseHeader, PassesOverUnknownFieldsOfATensor) {
  const SafetensorsHeader header = parse(
      R"({"a":{"x":{"y":[1,{"dtype":2}]},"dtype":"U8","z":null,"shape":[1],"data_offsets":[0,1]}})",
      1);
  EXPECT_EQ(header.tensors[0].dtype, DType::kU8);
}

TEST(ParseHeader, FourBitTensorsHaveTwoElementsAByte) {
  EXPECT_EQ(parse(object(entry("a", "F4", "[4,3]", "[0,6]")), 6).tensors[0].num_elements(), 12U);
}

TEST(ParseHeader, NinetyThousandTensorsTakeWellUnderASecond) {
  std::vector<std::string> entries;
  for (int i = 0; i < 90'000; ++i) {
    entries.push_back(
        entry(fmt::format("model.layers.{}.mlp.experts.{}.down_proj.weight", i / 1000, i),
              "BF16",
              "[2,2]",
              fmt::format("[{},{}]", i * 8, i * 8 + 8)));
  }
  const std::string json = object(fmt::format("{}", fmt::join(entries, ",")));
  const auto start = std::chrono::steady_clock::now();
  const SafetensorsHeader header = parse(json, 720'000);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  EXPECT_EQ(header.tensors.size(), 90'000U);
  RecordProperty("milliseconds", static_cast<int>(elapsed.count() * 1000));
  EXPECT_LT(elapsed.count(),
            5.0);  // 0.1 s in an optimized build; generous for sanitizers on a busy machine
}

struct Rejection {
  const char* name;
  std::string json;
  std::uint64_t data_bytes;
  const char* message;
};

class RejectedHeader : public testing::TestWithParam<Rejection> {};

TEST_P(RejectedHeader, IsBadInputWithAReason) {
  const Error error = error_of([] { parse(GetParam().json, GetParam().data_bytes); });
  EXPECT_EQ(error.code(), ErrorCode::kInput);
  EXPECT_THAT(error.message(), HasSubstr(GetParam().message));
}

std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return object(entry("a", dtype, shape, offsets));
}

std::string two(const std::string& first_offsets, const std::string& second_offsets) {
  return object(entry("a", "U8", "[4]", first_offsets) + "," +
                entry("b", "U8", "[4]", second_offsets));
}

INSTANTIATE_TEST_SUITE_P(
    Reasons,
    RejectedHeader,
    testing::Values(
        Rejection{"overlap",
                  two("[0,4]", "[2,6]"),
                  6,
                  "tensor 'b' begins at byte 2 of the data, inside tensor 'a'"},
        Rejection{"same_place", two("[0,4]", "[0,4]"), 4, "overlap"},
        Rejection{"hole",
                  two("[0,4]", "[5,9]"),
                  9,
                  "bytes 4 to 5 of the data, before tensor 'b', belong to no"},
        Rejection{"hole_at_the_front", one("U8", "[4]", "[1,5]"), 5, "bytes 0 to 1 of the data"},
        Rejection{
            "bytes_after_the_last", one("U8", "[4]", "[0,4]"), 7, "3 bytes follow the last tensor"},
        Rejection{"bytes_without_tensors", "{}", 1, "1 bytes follow"},
        Rejection{"truncated",
                  two("[0,4]", "[4,8]"),
                  6,
                  "tensor 'b' ends at byte 8 of the data, but the file has only 6"},
        Rejection{"too_few_bytes",
                  one("F32", "[2,3]", "[0,23]"),
                  23,
                  "tensor 'a' has 23 bytes, but its dtype F32 and shape [2, 3] make 24"},
        Rejection{"scalar_of_two", one("BF16", "[]", "[0,4]"), 4, "make 2"},
        Rejection{"end_before_begin", one("U8", "[4]", "[4,0]"), 4, "before its beginning"},
        Rejection{"half_a_byte", one("F4", "[3]", "[0,2]"), 2, "does not fill whole bytes"},
        Rejection{"shape_overflow",
                  one("U8", "[4294967296,4294967296]", "[0,0]"),
                  0,
                  "tensor 'a': shape [4294967296, 4294967296]"},
        Rejection{
            "size_overflow", one("F64", "[1152921504606846976]", "[0,0]"), 0, "more bits than"},
        Rejection{"unknown_dtype", one("BF8", "[1]", "[0,1]"), 1, "tensor 'a' has dtype 'BF8'"},
        Rejection{"dtype_of_other_case", one("bf16", "[1]", "[0,2]"), 2, "'bf16'"},
        Rejection{"duplicate_name",
                  object(entry("a", "U8", "[1]", "[0,1]") + "," + entry("a", "U8", "[1]", "[1,2]")),
                  2,
                  "tensor 'a' is twice in the header"},
        Rejection{
            "duplicate_name_escaped",
            object(entry("a", "U8", "[1]", "[0,1]") + "," + entry("\\u0061", "U8", "[1]", "[1,2]")),
            2,
            "tensor 'a' is twice"},
        Rejection{"duplicate_metadata",
                  R"({"__metadata__":{},"__metadata__":{}})",
                  0,
                  "__metadata__ is there twice"},
        Rejection{"duplicate_metadata_key",
                  R"({"__metadata__":{"a":"1","a":"2"}})",
                  0,
                  "'a' is twice in __metadata__"},
        Rejection{"duplicate_field",
                  R"({"a":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
                  0,
                  "dtype of tensor 'a' is given twice"},
        Rejection{"metadata_not_strings",
                  R"({"__metadata__":{"a":1}})",
                  0,
                  "'a' of __metadata__ is not a string"},
        Rejection{"metadata_not_an_object",
                  R"({"__metadata__":"x"})",
                  0,
                  "__metadata__ is not an object"},
        Rejection{"tensor_not_an_object", R"({"a":[1]})", 0, "tensor 'a' is not an object"},
        Rejection{"dtype_not_a_string",
                  R"({"a":{"dtype":1,"shape":[0],"data_offsets":[0,0]}})",
                  0,
                  "dtype of tensor 'a' is not a string"},
        Rejection{"shape_not_an_array",
                  one("U8", "4", "[0,4]"),
                  4,
                  "shape of tensor 'a' is not an array"},
        Rejection{"shape_nested",
                  one("U8", "[[4]]", "[0,4]"),
                  4,
                  "shape of tensor 'a' is not an array of whole numbers"},
        Rejection{"shape_negative",
                  one("U8", "[-4]", "[0,4]"),
                  4,
                  "shape of tensor 'a' is not an array of whole"},
        Rejection{"shape_fraction",
                  one("U8", "[4.0]", "[0,4]"),
                  4,
                  "shape of tensor 'a' is not an array of whole"},
        Rejection{"shape_beyond_64_bits",
                  one("U8", "[18446744073709551616]", "[0,4]"),
                  4,
                  "shape of tensor 'a' is not an array of whole"},
        Rejection{"shape_of_65_dimensions",
                  one("U8", fmt::format("[{}]", fmt::join(std::vector<int>(65, 1), ",")), "[0,1]"),
                  1,
                  "more than 64 numbers"},
        Rejection{"offsets_negative",
                  one("U8", "[4]", "[-1,3]"),
                  4,
                  "data_offsets of tensor 'a' is not an array of whole"},
        Rejection{"offsets_text",
                  one("U8", "[4]", R"(["0","4"])"),
                  4,
                  "data_offsets of tensor 'a' is not"},
        Rejection{"one_offset", one("U8", "[4]", "[4]"), 4, "has 1 numbers, not 2"},
        Rejection{"three_offsets",
                  one("U8", "[4]", "[0,4,4]"),
                  4,
                  "data_offsets of tensor 'a' has more than 2"},
        Rejection{"offsets_beyond_the_file",
                  one("U8", "[18446744073709551600]", "[0,18446744073709551600]"),
                  4,
                  "'a'"},
        Rejection{"no_dtype",
                  R"({"a":{"shape":[0],"data_offsets":[0,0]}})",
                  0,
                  "tensor 'a' has no dtype"},
        Rejection{"no_shape",
                  R"({"a":{"dtype":"U8","data_offsets":[0,0]}})",
                  0,
                  "tensor 'a' has no shape"},
        Rejection{"no_offsets",
                  R"({"a":{"dtype":"U8","shape":[0]}})",
                  0,
                  "tensor 'a' has no data_offsets"},
        Rejection{"empty", "", 0, "does not begin with '{'"},
        Rejection{"an_array", "[]", 0, "does not begin with '{'"},
        Rejection{"space_in_front", " {}", 0, "does not begin with '{'"},
        Rejection{"not_json", "{hello}", 0, "not JSON: cannot read on at byte 2"},
        Rejection{"cut_off", R"({"a":{"dtype")", 0, "not JSON"},
        Rejection{"something_after", "{}{}", 0, "not JSON"},
        Rejection{"nul_padding", std::string("{}\0\0", 4), 0, "not JSON"},
        Rejection{"not_utf8", object(entry("\xff", "U8", "[1]", "[0,1]")), 1, "not JSON"},
        Rejection{"lone_surrogate", object(entry("\\ud800", "U8", "[1]", "[0,1]")), 1, "not JSON"},
        Rejection{"deep_nesting",
                  R"({"a":{"x":)" + std::string(100'000, '['),
                  0,
                  "nested deeper than 32"}),
    [](const auto& test_case) { return test_case.param.name; });

TEST(ParseHeader, AHeaderBeyondTheFileIsTruncated) {
  const Error error = error_of([] { parse_safetensors_header("{}", 9); });
  EXPECT_EQ(error.code(), ErrorCode::kInput);
  EXPECT_THAT(error.message(), HasSubstr("the header ends at byte 10, but the file has only 9"));
}

TEST(ParseHeader, AHeaderBeyondTheFormatsLimitIsRefused) {
  const std::string json(100'000'001, ' ');
  EXPECT_THAT(error_of([&] { parse(json, 0); }).message(), HasSubstr("allows 100000000"));
}

TEST(ParseHeader, ALongNameIsCutInMessages) {
  const std::string name(100'000, 'n');
  EXPECT_LT(error_of([&] { parse("{\"" + name + "\":1}", 0); }).message().size(), 400U);
}

std::string first_bytes(const std::string& file) {
  const std::string bytes = test::read_text(test::golden(file));
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  return bytes.substr(0, 8 + length);
}

SafetensorsHeader parse_golden(const std::string& file) {
  return parse_safetensors_header(first_bytes(file).substr(8),
                                  std::filesystem::file_size(test::golden(file)));
}

TEST(PrintHeader, ReproducesTheSafetensorsLibrary) {
  for (const char* file : {"seed/as-written/model.safetensors",
                           "dflash2-tiny/model.safetensors",
                           "dflash2-tiny/sharded/model-00001-of-00003.safetensors",
                           "codecs/mxfp4_quark.safetensors",
                           "codecs/decode_all.safetensors"}) {
    const SafetensorsHeader header = parse_golden(file);
    EXPECT_EQ(print_safetensors_header(header.metadata, header.tensors), first_bytes(file)) << file;
  }
}

// Bytes that safetensors 0.8.0 printed for these names.
TEST(PrintHeader, EscapesNamesAsTheLibraryDoes) {
  TensorEntry tensor;
  tensor.name = "a\"\\\x01\x7f\n\t\u00e9\u20ac/";
  tensor.shape = {8};
  tensor.end = 8;
  EXPECT_EQ(print_safetensors_header({{"format", "pt"}}, {tensor}).substr(8),
            "{\"__metadata__\":{\"format\":\"pt\"},\"a\\\"\\\\\\u0001\x7f\\n\\t\u00e9\u20ac/\":"
            "{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}       ");
}

TEST(PrintHeader, OfNothingIsAnEmptyObject) {
  EXPECT_EQ(print_safetensors_header({}, {}), std::string("\x08\0\0\0\0\0\0\0{}      ", 16));
}

TEST(PrintHeader, ANameThatIsNotUtf8IsRefused) {
  TensorEntry tensor;
  tensor.name = "\xff";
  tensor.shape = {0};
  EXPECT_EQ(error_of([&] { print_safetensors_header({}, {tensor}); }).code(), ErrorCode::kInput);
}

TEST(PrintHeader, AHoleIsOurOwnFault) {
  TensorEntry tensor;
  tensor.name = "a";
  tensor.shape = {1};
  tensor.begin = 1;
  tensor.end = 2;
  EXPECT_EQ(error_of([&] { print_safetensors_header({}, {tensor}); }).code(), ErrorCode::kInternal);
}

TEST(TensorSize, CountsBits) {
  EXPECT_EQ(tensor_size_bytes(DType::kF6E2m3, std::vector<std::uint64_t>{3, 32}), 72U);
  EXPECT_EQ(tensor_size_bytes(DType::kF64, {}), 8U);
}

}  // namespace
}  // namespace quantmill
