#include "stats/h5_library.h"

#include <hdf5.h>

#include <exception>
#include <memory>
#include <type_traits>

#include <fmt/format.h>

namespace quantmill::h5 {

static_assert(std::is_same_v<hid_t, IdentifierTraits::Handle>);

void IdentifierTraits::close(Handle identifier) noexcept {
  H5Idec_ref(identifier);
}

namespace {

constexpr std::size_t kLibraryBytes = std::size_t{16} << 20;  // that a file may take, with room

// What the library says of its last failure: the innermost description.
std::string take_library_message() {
  std::string message;
  H5Ewalk2(
      H5E_DEFAULT,
      H5E_WALK_UPWARD,
      [](unsigned depth, const H5E_error2_t* error, void* out) -> herr_t {
        if (depth == 0 && error->desc != nullptr) {
          try {
            *static_cast<std::string*>(out) = error->desc;
          } catch (const std::exception&) {
            return -1;
          }
        }
        return 0;
      },
      &message);
  H5Eclear2(H5E_DEFAULT);
  return message.empty() ? "no reason given" : message;
}

}  // namespace

void silence_library() {
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

void ask_for_memory() {
  // NOLINTNEXTLINE(cppcoreguidelines-avoid-c-arrays,modernize-avoid-c-arrays): memory, no array
  const auto asked = std::make_unique_for_overwrite<std::byte[]>(kLibraryBytes);
  // So that the compiler can't leave it out.
  *static_cast<volatile std::byte*>(asked.get()) = std::byte{0};
}

void fail(ErrorCode code, std::string_view what) {
  throw Error(code, fmt::format("{} (HDF5: {})", what, take_library_message()));
}

void check(std::int64_t status, ErrorCode code, std::string_view what) {
  if (status < 0) {
    fail(code, what);
  }
}

Identifier checked(std::int64_t identifier, ErrorCode code, std::string_view what) {
  check(identifier, code, what);
  return Identifier(identifier);
}

Identifier make_properties(std::int64_t kind) {
  return checked(H5Pcreate(kind), ErrorCode::kInternal, "cannot make an HDF5 property list");
}

void check_property(std::int64_t status) {
  check(status, ErrorCode::kInternal, "cannot set an HDF5 property");
}

Identifier timeless(std::int64_t kind) {
  Identifier properties = make_properties(kind);
  check_property(H5Pset_obj_track_times(properties.get(), false));
  return properties;
}

Identifier file_access() {
  Identifier properties = make_properties(H5P_FILE_ACCESS);
  check_property(H5Pset_file_locking(properties.get(), false, true));
  check_property(H5Pset_libver_bounds(properties.get(), H5F_LIBVER_V18, H5F_LIBVER_V18));
  return properties;
}

}  // namespace quantmill::h5
