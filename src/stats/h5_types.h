#pragma once

// Private to h5_*.cpp: types of values in HDF5 files.

#include <hdf5.h>

#include <cstdint>
#include <type_traits>

namespace quantmill::h5 {

// The type in the file; the same in memory, for quantmill runs on little-endian machines only
// (base/checked.h).
template <typename T>
hid_t type_of() {
  if constexpr (std::is_same_v<T, float>) {
    return H5T_IEEE_F32LE;
  } else if constexpr (std::is_same_v<T, double>) {
    return H5T_IEEE_F64LE;
  } else if constexpr (std::is_same_v<T, std::int64_t>) {
    return H5T_STD_I64LE;
  } else {
    static_assert(std::is_same_v<T, std::uint64_t>);
    return H5T_STD_U64LE;
  }
}

}  // namespace quantmill::h5
