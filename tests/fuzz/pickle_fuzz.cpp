// The pickle interpreter on any bytes: refused, or values whose tensors are consistent.

#include <span>
#include <variant>

#include "fuzz.h"
#include "stats/pickle.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quantmill;
  fuzz::only_input_errors([&] {
    const Pickle pickle = parse_pickle(std::as_bytes(std::span(data, size)));
    fuzz::require(pickle.root < pickle.values.size(), "the root is one of the values");
    fuzz::require(pickle.values.size() <= size, "each value costs a byte");
    for (const PickleValue& value : pickle.values) {
      if (const auto* tensor = std::get_if<TorchTensor>(&value)) {
        fuzz::require(pickle.sizes(tensor->sizes).size() == pickle.sizes(tensor->strides).size(),
                      "a tensor has as many strides as dimensions");
      }
    }
  });
  return 0;
}
