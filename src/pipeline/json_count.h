#pragma once

// Counts in JSON that programs read back. nlohmann's own conversion takes any number, and one that
// does not fit is undefined.

#include <cstdint>

namespace quantmill {

// Json: nlohmann's. Errors: its type_error for anything but a whole number from 0 on that fits, as
// for other types.
template <typename Json>
std::uint64_t count_of(const Json& value) {
  if (!value.is_number_unsigned()) {
    throw Json::type_error::create(302, "must be a count, but is " + value.dump(), &value);
  }
  return value.template get<std::uint64_t>();
}

}  // namespace quantmill
