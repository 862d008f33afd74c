// Any bytes as an HDF5 file of statistics or of scales: refused, or tables that hold together. The
// number of bytes tells which.

#include <string>

#include "fuzz.h"
#include "stats/scales.h"
#include "stats/store.h"

namespace quantmill {
namespace {

// Else the library refuses whatever it is given before it looks at it, and nothing below is tried.
void check_that_files_open() {
  const fuzz::MemoryFile file(nullptr, 0);
  ScaleTable scales;
  scales["group"].s = {1.0F};
  write_scales(file.path(), scales);
  fuzz::require(read_scales(file.path()).size() == 1, "what was written can be read");
}

void check_statistics_file(const std::string& path, std::size_t size) {
  for (const auto& [name, input] : read_statistics(path)) {
    const std::size_t channels = input.absmean.size();
    fuzz::require(input.sqmean.empty() || input.sqmean.size() == channels, "one x^2 a channel");
    fuzz::require(input.absmax.empty() || input.absmax.size() == channels, "one max a channel");
    fuzz::require(channels * sizeof(double) <= size, "values come from the file");
  }
}

void check_scales_file(const std::string& path, std::size_t size) {
  for (const auto& [name, group] : read_scales(path)) {
    fuzz::require(group.s.size() * sizeof(float) <= size, "scales come from the file");
    fuzz::require(group.alphas.size() == group.errors.size(), "one error a candidate");
  }
}

}  // namespace
}  // namespace quantmill

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quantmill;
  static const bool opens = (check_that_files_open(), true);
  static_cast<void>(opens);
  const fuzz::MemoryFile file(data, size);
  fuzz::only_input_errors([&] {
    switch (size % 4) {
      case 0:
        return check_statistics_file(file.path(), size);
      case 1:
        return check_scales_file(file.path(), size);
      case 2:
        return static_cast<void>(read_input_maxima(file.path()));
      default:
        return static_cast<void>(read_importance(file.path()));
    }
  });
  return 0;
}
