#include "stats/h5_writer.h"

#include <hdf5.h>

#include <algorithm>
#include <exception>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include "base/checked.h"
#include "base/file.h"

namespace quantmill::h5 {
namespace {

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

Identifier written(std::int64_t identifier, const std::string& failure) {
  return checked(identifier, ErrorCode::kIo, failure);
}

void check_written(std::int64_t status, const std::string& failure) {
  check(status, ErrorCode::kIo, failure);
}

// Text of so many bytes, padded with NUL.
Identifier text_type(std::size_t length, const std::string& failure) {
  Identifier type = written(H5Tcopy(H5T_C_S1), failure);
  check_written(H5Tset_size(type.get(), length), failure);
  check_written(H5Tset_strpad(type.get(), H5T_STR_NULLPAD), failure);
  check_written(H5Tset_cset(type.get(), H5T_CSET_UTF8), failure);
  return type;
}

Identifier line_of(std::uint64_t num_elements, const std::string& failure) {
  const hsize_t size = num_elements;
  return written(H5Screate_simple(1, &size, nullptr), failure);
}

Identifier create_line(
    hid_t group, const std::string& name, hid_t type, hid_t space, const std::string& failure) {
  const Identifier properties = timeless(H5P_DATASET_CREATE);
  return written(
      H5Dcreate2(group, name.c_str(), type, space, H5P_DEFAULT, properties.get(), H5P_DEFAULT),
      failure);
}

void write_raw_attribute(hid_t group,
                         const std::string& attribute,
                         hid_t type,
                         hid_t space,
                         const void* value,
                         const std::string& failure) {
  const Identifier created =
      written(H5Acreate2(group, attribute.c_str(), type, space, H5P_DEFAULT, H5P_DEFAULT), failure);
  check_written(H5Awrite(created.get(), type, value), failure);
}

template <typename T>
void write_scalar(hid_t group, const std::string& attribute, T value, const std::string& failure) {
  const Identifier scalar = written(H5Screate(H5S_SCALAR), failure);
  write_raw_attribute(group, attribute, type_of<T>(), scalar.get(), &value, failure);
}

}  // namespace

GroupWriter::GroupWriter(Identifier group, std::string path)
    : group_(std::move(group)), path_(std::move(path)) {}

std::string GroupWriter::failure(std::string_view child) const {
  return fmt::format("{}/{} cannot be written", path_, child);
}

GroupWriter GroupWriter::create_group(const std::string& name) const {
  const Identifier properties = timeless(H5P_GROUP_CREATE);
  return GroupWriter(
      written(H5Gcreate2(group_.get(), name.c_str(), H5P_DEFAULT, properties.get(), H5P_DEFAULT),
              failure(name)),
      fmt::format("{}/{}", path_, name));
}

void GroupWriter::write_text(const std::string& attribute, std::string_view text) const {
  const std::string message = failure(attribute);
  // A type of size 0 does not exist: an empty text is one NUL of padding.
  const Identifier type = text_type(std::max<std::size_t>(1, text.size()), message);
  const Identifier scalar = written(H5Screate(H5S_SCALAR), message);
  const std::string terminated(text);
  write_raw_attribute(
      group_.get(), attribute, type.get(), scalar.get(), terminated.c_str(), message);
}

void GroupWriter::write_attribute(const std::string& attribute, std::int64_t value) const {
  write_scalar(group_.get(), attribute, value, failure(attribute));
}

void GroupWriter::write_attribute(const std::string& attribute, std::uint64_t value) const {
  write_scalar(group_.get(), attribute, value, failure(attribute));
}

void GroupWriter::write_attribute(const std::string& attribute, double value) const {
  write_scalar(group_.get(), attribute, value, failure(attribute));
}

void GroupWriter::write_attribute(const std::string& attribute,
                                  std::span<const std::uint64_t> values) const {
  const std::string message = failure(attribute);
  const Identifier space = line_of(values.size(), message);
  write_raw_attribute(
      group_.get(), attribute, type_of<std::uint64_t>(), space.get(), values.data(), message);
}

template <typename T>
void GroupWriter::write_parts(const std::string& name,
                              const std::vector<std::span<const T>>& parts) const {
  const std::string message = failure(name);
  std::uint64_t total = 0;
  for (const std::span<const T>& part : parts) {
    total += part.size();
  }
  const Identifier space = line_of(total, message);
  const Identifier dataset = create_line(group_.get(), name, type_of<T>(), space.get(), message);
  hsize_t first = 0;
  for (const std::span<const T>& part : parts) {
    if (part.empty()) {
      continue;
    }
    const hsize_t size = part.size();
    const Identifier memory = line_of(size, message);
    check_written(H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, &first, nullptr, &size, nullptr),
                  message);
    check_written(
        H5Dwrite(dataset.get(), type_of<T>(), memory.get(), space.get(), H5P_DEFAULT, part.data()),
        message);
    first += size;
  }
}

template void GroupWriter::write_parts(const std::string&,
                                       const std::vector<std::span<const float>>&) const;
template void GroupWriter::write_parts(const std::string&,
                                       const std::vector<std::span<const double>>&) const;

void GroupWriter::write_dataset(const std::string& name, std::span<const float> values) const {
  write_parts<float>(name, {values});
}

void GroupWriter::write_dataset(const std::string& name, std::span<const double> values) const {
  write_parts<double>(name, {values});
}

void GroupWriter::write_dataset(const std::string& name,
                                std::span<const std::uint64_t> values) const {
  write_parts<std::uint64_t>(name, {values});
}

void GroupWriter::write_text_list(const std::string& name,
                                  const std::vector<std::string>& texts) const {
  const std::string message = failure(name);
  std::size_t length = 1;  // a type of size 0 does not exist
  for (const std::string& text : texts) {
    length = std::max(length, text.size());
  }
  std::string padded;
  padded.reserve(texts.size() * length);
  for (const std::string& text : texts) {
    padded.append(text).append(length - text.size(), '\0');
  }
  const Identifier type = text_type(length, message);
  const Identifier space = line_of(texts.size(), message);
  const Identifier dataset = create_line(group_.get(), name, type.get(), space.get(), message);
  if (!padded.empty()) {
    check_written(H5Dwrite(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, padded.data()),
                  message);
  }
}

Writer::Writer(std::filesystem::path file) : file_(std::move(file)) {
  ask_for_memory();
  silence_library();
  const Identifier access = memory_access(*memory_);
  const Identifier creation = timeless(H5P_FILE_CREATE);
  identifier_ = written(H5Fcreate(file_.c_str(), H5F_ACC_TRUNC, creation.get(), access.get()),
                        fmt::format("\"{}\": cannot be created", file_.string()));
}

GroupWriter Writer::root() const {
  const std::string path = fmt::format("\"{}\": ", file_.string());
  return GroupWriter(
      written(H5Gopen2(identifier_.get(), "/", H5P_DEFAULT), path + "cannot be written"), path);
}

void Writer::commit() {
  const std::string failure = fmt::format("\"{}\": cannot be written", file_.string());
  check_written(H5Fflush(identifier_.get(), H5F_SCOPE_LOCAL), failure);
  check_written(H5Fclose(identifier_.release()), failure);
  const auto size_bytes = load_little_endian<std::uint64_t>(
      std::as_bytes(std::span(*memory_).subspan(kEndOfFileOffset)));
  check_invariant(size_bytes <= memory_->size(), "a file of HDF5 is shorter than it says");
  memory_->resize(size_bytes);
  write_text_file(file_, *memory_);
}

}  // namespace quantmill::h5
