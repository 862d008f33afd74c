// Any bytes as the tree of an HDF5 file, which a process sends that the library may have broken:
// refused, or a tree that is sent as the same bytes.

#include <algorithm>
#include <optional>
#include <vector>

#include "fuzz.h"
#include "stats/h5_tree.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quantmill;
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  std::optional<h5::Object> tree;
  try {
    tree = h5::deserialize_object(bytes);
  } catch (const Error& error) {
    fuzz::require(error.code() == ErrorCode::kInternal, "bytes that are no tree are refused");
    return 0;
  }
  // Names may have come unsorted or twice.
  const std::vector<std::byte> sent = serialize(*tree);
  fuzz::require(serialize(h5::deserialize_object(sent)) == sent, "a tree reads back");
  return 0;
}
