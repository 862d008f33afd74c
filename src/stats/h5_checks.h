#pragma once

// Private to h5*.cpp: results of the C library turned into Errors with the library's own words, and
// property lists.

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "stats/h5.h"

namespace quantmill::h5 {

// "what (HDF5: the innermost description of the library's error stack)".
[[noreturn]] void fail(ErrorCode code, std::string_view what);

// A negative status or identifier is a failure: kIo.
void check_written(std::int64_t status, const std::string& where);
Identifier written(std::int64_t identifier, const std::string& where);

// The same for reading: kInput, "where: what".
void check_read(std::int64_t status, const std::string& where, std::string_view what);
Identifier opened(std::int64_t identifier, const std::string& where, std::string_view what);

// kInternal if the library refuses.
Identifier make_properties(std::int64_t kind);
void check_property(std::int64_t status);
// For objects that store no times, so that the same calls give the same bytes.
Identifier timeless(std::int64_t kind);

}  // namespace quantmill::h5
