#pragma once

// Private to h5*.cpp: types of values in files, and one-dimensional spaces of them.

#include <hdf5.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/error.h"
#include "stats/h5.h"

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

template <typename T>
constexpr std::string_view type_name() {
  if constexpr (std::is_same_v<T, float>) {
    return "32-bit float";
  } else if constexpr (std::is_same_v<T, double>) {
    return "64-bit float";
  } else if constexpr (std::is_same_v<T, std::int64_t>) {
    return "signed 64-bit integer";
  } else {
    return "unsigned 64-bit integer";
  }
}

template <typename T>
void require_type(hid_t type, const std::string& where) {
  if (H5Tequal(type, type_of<T>()) <= 0) {
    throw Error(ErrorCode::kInput,
                where + ": its values are not of type " + std::string(type_name<T>()));
  }
}

// Text of so many bytes, padded with NUL.
Identifier text_type(std::size_t length, const std::string& where);

Identifier line_of(std::uint64_t num_elements, const std::string& where);

// Number of elements of a one-dimensional space whose values fit into the file.
std::size_t line_size(hid_t space,
                      std::size_t element_bytes,
                      std::uint64_t file_bytes,
                      const std::string& where);

}  // namespace quantmill::h5
