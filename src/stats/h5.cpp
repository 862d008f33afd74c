#include "stats/h5.h"

#include <hdf5.h>

#include <exception>
#include <memory>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include "base/checked.h"
#include "base/file.h"
#include "stats/h5_checks.h"

namespace quantmill::h5 {

static_assert(std::is_same_v<hid_t, IdentifierTraits::Handle>);

void IdentifierTraits::close(Handle identifier) noexcept {
  H5Idec_ref(identifier);
}

namespace {

// The library must never print; what it would have printed goes into the Error.
void silence_library() {
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

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

// No locks: not every file system of a cluster has them. Fixed versions: the same bytes with any
// later library.
Identifier file_access() {
  Identifier properties = make_properties(H5P_FILE_ACCESS);
  check_property(H5Pset_file_locking(properties.get(), false, true));
  check_property(H5Pset_libver_bounds(properties.get(), H5F_LIBVER_V18, H5F_LIBVER_V18));
  return properties;
}

// A file in memory grows by so much.
constexpr std::size_t kMemoryIncrement = std::size_t{1} << 20;
// Where a file says in its superblock (version 2, as file_access() asks for) how long it is.
constexpr std::size_t kEndOfFileOffset = 28;

extern "C" void* grow_memory(void* bytes,
                             std::size_t size_bytes,
                             H5FD_file_image_op_t /*operation*/,
                             void* memory) {
  try {
    auto& text = *static_cast<std::string*>(memory);
    check_invariant(bytes == nullptr || bytes == text.data(), "a file of HDF5 has two memories");
    text.resize(size_bytes);
    return text.data();
  } catch (const std::exception&) {
    return nullptr;
  }
}

// The Writer reads the memory after the file is closed, and frees it.
extern "C" herr_t leave_memory(void* /*bytes*/,
                               H5FD_file_image_op_t /*operation*/,
                               void* /*memory*/) {
  return 0;
}

constexpr std::size_t kLibraryBytes = std::size_t{16} << 20;  // that a file may take, with room

// HDF5 1.10 crashes if an allocation fails, so what it may need is asked for first: std::bad_alloc
// can be told to people.
void ask_for_memory() {
  const auto asked = std::make_unique_for_overwrite<std::byte[]>(kLibraryBytes);
  // So that the compiler can't leave it out.
  *static_cast<volatile std::byte*>(asked.get()) = std::byte{0};
}

extern "C" void* share_memory(void* memory) {
  return memory;
}

extern "C" herr_t leave_shared_memory(void* /*memory*/) {
  return 0;
}

// Properties of a file that is made in `memory`.
Identifier memory_access(std::string& memory) {
  Identifier properties = file_access();
  check_property(H5Pset_fapl_core(properties.get(), kMemoryIncrement, false));
  H5FD_file_image_callbacks_t callbacks{};
  callbacks.image_realloc = grow_memory;
  callbacks.image_free = leave_memory;
  callbacks.udata_copy = share_memory;
  callbacks.udata_free = leave_shared_memory;
  callbacks.udata = &memory;
  check_property(H5Pset_file_image_callbacks(properties.get(), &callbacks));
  return properties;
}

}  // namespace

void fail(ErrorCode code, std::string_view what) {
  throw Error(code, fmt::format("{} (HDF5: {})", what, take_library_message()));
}

void check_written(std::int64_t status, const std::string& where) {
  if (status < 0) {
    fail(ErrorCode::kIo, fmt::format("{}: cannot be written", where));
  }
}

Identifier written(std::int64_t identifier, const std::string& where) {
  check_written(identifier, where);
  return Identifier(identifier);
}

void check_read(std::int64_t status, const std::string& where, std::string_view what) {
  if (status < 0) {
    fail(ErrorCode::kInput, fmt::format("{}: {}", where, what));
  }
}

Identifier opened(std::int64_t identifier, const std::string& where, std::string_view what) {
  check_read(identifier, where, what);
  return Identifier(identifier);
}

Identifier make_properties(std::int64_t kind) {
  Identifier properties(H5Pcreate(kind));
  if (!properties.has_value()) {
    fail(ErrorCode::kInternal, "cannot make an HDF5 property list");
  }
  return properties;
}

void check_property(std::int64_t status) {
  if (status < 0) {
    fail(ErrorCode::kInternal, "cannot set an HDF5 property");
  }
}

Identifier timeless(std::int64_t kind) {
  Identifier properties = make_properties(kind);
  check_property(H5Pset_obj_track_times(properties.get(), false));
  return properties;
}

Writer::Writer(std::filesystem::path file) : file_(std::move(file)) {
  ask_for_memory();
  silence_library();
  const Identifier access = memory_access(*memory_);
  const Identifier creation = timeless(H5P_FILE_CREATE);
  identifier_ = Identifier(H5Fcreate(file_.c_str(), H5F_ACC_TRUNC, creation.get(), access.get()));
  if (!identifier_.has_value()) {
    fail(ErrorCode::kIo, fmt::format("\"{}\": cannot be created", file_.string()));
  }
}

Group Writer::root() const {
  const std::string where = fmt::format("\"{}\"", file_.string());
  return Group(
      written(H5Gopen2(identifier_.get(), "/", H5P_DEFAULT), where), file_.string(), "/", 0);
}

void Writer::commit() {
  const std::string where = fmt::format("\"{}\"", file_.string());
  check_written(H5Fflush(identifier_.get(), H5F_SCOPE_LOCAL), where);
  check_written(H5Fclose(identifier_.release()), where);
  const auto size_bytes = load_little_endian<std::uint64_t>(
      std::as_bytes(std::span(*memory_).subspan(kEndOfFileOffset)));
  check_invariant(size_bytes <= memory_->size(), "a file of HDF5 is shorter than it says");
  memory_->resize(size_bytes);
  write_text_file(file_, *memory_);
}

Reader::Reader(std::filesystem::path file) : file_(std::move(file)) {
  ask_for_memory();
  silence_library();
  file_bytes_ = File::open_to_read(file_).size_bytes();
  const Identifier access = file_access();
  identifier_ = Identifier(H5Fopen(file_.c_str(), H5F_ACC_RDONLY, access.get()));
  if (!identifier_.has_value()) {
    fail(ErrorCode::kInput,
         fmt::format("\"{}\": is not an HDF5 file, or is damaged or cut short", file_.string()));
  }
}

Group Reader::root() const {
  const std::string where = fmt::format("\"{}\"", file_.string());
  return Group(opened(H5Gopen2(identifier_.get(), "/", H5P_DEFAULT), where, "has no root group"),
               file_.string(),
               "/",
               file_bytes_);
}

}  // namespace quantmill::h5
