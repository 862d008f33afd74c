#pragma once

// The C library of HDF5: its identifiers, its results turned into Errors with its own words, and
// property lists. Private to h5_*.cpp and tests. It is used by one thread at a time, and needs no
// MPI.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/handle.h"

namespace quantmill::h5 {

// Any identifier of the library (file, group, dataset …); hid_t, checked in h5_library.cpp.
struct IdentifierTraits {
  using Handle = std::int64_t;

  static Handle null() noexcept { return -1; }

  static void close(Handle identifier) noexcept;
};

using Identifier = UniqueHandle<IdentifierTraits>;

// It must never print; what it would have printed goes into the Error.
void silence_library();
// That there is memory for what it may need of a file: std::bad_alloc otherwise, which can be told
// to people. HDF5 1.10 crashes if an allocation fails.
void ask_for_memory();

// "what (HDF5: the innermost description of the library's error stack)".
[[noreturn]] void fail(ErrorCode code, std::string_view what);

// A negative status or identifier is a failure: `code`, "what (HDF5: …)".
void check(std::int64_t status, ErrorCode code, std::string_view what);
Identifier checked(std::int64_t identifier, ErrorCode code, std::string_view what);

// kInternal if the library refuses.
Identifier make_properties(std::int64_t kind);
void check_property(std::int64_t status);
// For objects that store no times, so that the same calls give the same bytes.
Identifier timeless(std::int64_t kind);
// No locks: not every file system of a cluster has them. Fixed versions: the same bytes with any
// later library.
Identifier file_access();

}  // namespace quantmill::h5
