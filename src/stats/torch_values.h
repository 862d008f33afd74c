#pragma once

// Values of torch tensors from the bytes of their storages. Not for finding the bytes: that is
// torch_archive.h.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "stats/pickle.h"

namespace quantmill {

// A one-dimensional tensor: element i is storage element offset + i * stride.
struct TorchView {
  TorchType type = TorchType::kF32;
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
  std::uint64_t stride = 0;
};

bool is_float(TorchType type);
bool is_integer(TorchType type);

// Whether all of the view lies in a storage of that many elements.
bool fits(const TorchView& view, std::uint64_t storage_elements);

// All values; the type is a float's, and the view fits the storage.
std::vector<double> load_floats(const TorchView& view, std::span<const std::byte> storage);

// The first value; the type is an integer's, and the view, of one element or more, fits the
// storage.
std::int64_t load_integer(const TorchView& view, std::span<const std::byte> storage);

}  // namespace quantmill
