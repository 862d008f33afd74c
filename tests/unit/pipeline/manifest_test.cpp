#include "pipeline/manifest.h"

#include <string>

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace quantmill {
namespace {

using test::error_of;

std::string manifest_with_size(const std::string& size) {
  return R"({"manifest_schema": 1, "program": "quantmill 1", "recipe": {}, "inputs": {}, "tensors": [],
             "files": [{"name": "a.safetensors", "size_bytes": )" +
         size + R"(, "xxh128": "00"}]})";
}

TEST(ParseManifest, ReadsSizesOfFiles) {
  const Manifest manifest = parse_manifest(manifest_with_size("18446744073709551615"), "m.json");
  ASSERT_EQ(manifest.files.size(), 1U);
  EXPECT_EQ(manifest.files[0].size_bytes, 18446744073709551615U);
}

TEST(ParseManifest, RefusesSizesThatAreNoCounts) {
  for (const char* size : {"-1", "1.0", "1e300", "18446744073709551616", "\"1\"", "true", "null"}) {
    const Error error = error_of([&] { parse_manifest(manifest_with_size(size), "m.json"); });
    EXPECT_EQ(error.code(), ErrorCode::kInput) << size;
    EXPECT_NE(error.message().find("m.json"), std::string::npos) << error.message();
  }
}

}  // namespace
}  // namespace quantmill
