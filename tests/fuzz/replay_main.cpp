// Runs a fuzz target over the files of the folders that are named, without libFuzzer: the seed
// corpus as a test.

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "base/file.h"
#include "tests/fuzz/fuzz.h"

int main(int argc, char** argv) {
  std::size_t num_files = 0;
  for (int i = 1; i < argc; ++i) {
    const std::filesystem::path folder = argv[i];
    for (const std::filesystem::path& name : quantmill::list_files(folder)) {
      const std::string input = quantmill::read_text_file(folder / name, 64 << 20);
      // Named before it runs, so that a crash tells which one it was.
      std::printf("%s\n", name.c_str());
      std::fflush(stdout);
      // A copy without slack, so that a sanitizer sees a read past the end.
      const std::vector<std::uint8_t> bytes(input.begin(), input.end());
      LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
      ++num_files;
    }
  }
  std::printf("%zu inputs\n", num_files);
  return num_files > 0 ? 0 : 1;
}
