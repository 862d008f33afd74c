// Any bytes as an importance matrix, GGUF or .dat: refused, or entries that hold together.

#include "fuzz.h"
#include "stats/imatrix.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quantmill;
  const fuzz::MemoryFile file(data, size);
  fuzz::only_input_errors([&] {
    const Imatrix imatrix = read_imatrix(file.path());
    fuzz::require(!imatrix.empty(), "there are entries");
    for (const auto& [name, entry] : imatrix) {
      fuzz::require(entry.num_channels > 0 && entry.sqmean.size() % entry.num_channels == 0,
                    "an entry is whole matrices");
      fuzz::require(entry.sqmean.size() * sizeof(float) <= size, "values come from the file");
      fuzz::require(!entry.tokens || entry.tokens->size() == entry.num_matrices(),
                    "a count for each matrix");
      for (const float value : entry.sqmean) {
        fuzz::require(value >= 0, "squares are not negative");
      }
    }
  });
  return 0;
}
