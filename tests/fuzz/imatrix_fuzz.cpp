// Any bytes as an importance matrix, GGUF or .dat: refused, or entries that hold together.

#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <span>
#include <string>

#include "base/file.h"
#include "base/handle.h"
#include "fuzz.h"
#include "stats/imatrix.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quantmill;
  const UniqueHandle<DescriptorTraits> memory(memfd_create("imatrix", 0));
  const std::string path = "/proc/self/fd/" + std::to_string(memory.get());
  File::open_to_write(path).write_at(0, std::as_bytes(std::span(data, size)));
  fuzz::only_input_errors([&] {
    const Imatrix imatrix = read_imatrix(path);
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
