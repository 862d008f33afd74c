#include "base/hash.h"

#include <string>

#include <gtest/gtest.h>

#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_checkpoint.h"

namespace quantmill {
namespace {

// Expected values are what `xxhsum -H2` of xxHash 0.8.1 prints.

TEST(Hash, OfTheEmptyText) {
  EXPECT_EQ(hash_text(""), "99aa06d3014798d86001c324468d497f");
}

TEST(Hash, OfAShortText) {
  EXPECT_EQ(hash_text("abc"), "06b05ab6733a618578af5f94892f3950");
}

TEST(Hash, OfAFile) {
  EXPECT_EQ(hash_file(test::golden("dflash2-tiny/model.safetensors")),
            "55bccc0dcd2f1528f757bd91d016c833");
}

TEST(Hash, OfAFileLargerThanABuffer) {
  const test::TemporaryFolder folder;
  test::write_text(folder.path() / "big", std::string(10'000'000, 'x'));
  EXPECT_EQ(hash_file(folder.path() / "big"), "e5e844c40203ef9f8d35c7f863787fe1");
}

TEST(Hash, OfAnEmptyFile) {
  const test::TemporaryFolder folder;
  test::write_text(folder.path() / "empty", "");
  EXPECT_EQ(hash_file(folder.path() / "empty"), "99aa06d3014798d86001c324468d497f");
}

}  // namespace
}  // namespace quantmill
