#include <hdf5.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include "base/checked.h"
#include "stats/h5.h"
#include "stats/h5_checks.h"
#include "stats/h5_types.h"

namespace quantmill::h5 {

Identifier text_type(std::size_t length, const std::string& where) {
  Identifier type = written(H5Tcopy(H5T_C_S1), where);
  check_written(H5Tset_size(type.get(), length), where);
  check_written(H5Tset_strpad(type.get(), H5T_STR_NULLPAD), where);
  check_written(H5Tset_cset(type.get(), H5T_CSET_UTF8), where);
  return type;
}

namespace {

void write_raw_attribute(hid_t group,
                         const std::string& attribute,
                         hid_t type,
                         hid_t space,
                         const void* value,
                         const std::string& where) {
  const Identifier created =
      written(H5Acreate2(group, attribute.c_str(), type, space, H5P_DEFAULT, H5P_DEFAULT), where);
  check_written(H5Awrite(created.get(), type, value), where);
}

template <typename T>
void write_scalar(hid_t group, const std::string& attribute, T value, const std::string& where) {
  const Identifier scalar = written(H5Screate(H5S_SCALAR), where);
  write_raw_attribute(group, attribute, type_of<T>(), scalar.get(), &value, where);
}

// Links to other files or places are never followed: a statistics file has none.
bool has_link(hid_t group, const std::string& name, const std::string& where) {
  if (name.empty()) {
    return false;
  }
  const htri_t exists = H5Lexists(group, name.c_str(), H5P_DEFAULT);
  check_read(exists, where, "cannot be looked up");
  if (exists == 0) {
    return false;
  }
  H5L_info_t info;
  check_read(H5Lget_info(group, name.c_str(), &info, H5P_DEFAULT), where, "cannot be looked up");
  if (info.type != H5L_TYPE_HARD) {
    throw Error(ErrorCode::kInput, fmt::format("{}: is a link to another place", where));
  }
  return true;
}

Identifier open_attribute(hid_t group, const std::string& attribute, const std::string& where) {
  const htri_t exists = H5Aexists(group, attribute.c_str());
  check_read(exists, where, "cannot be looked up");
  if (exists == 0) {
    throw Error(ErrorCode::kInput, fmt::format("{}: the attribute is missing", where));
  }
  return opened(H5Aopen(group, attribute.c_str(), H5P_DEFAULT), where, "the attribute is damaged");
}

void require_scalar(hid_t attribute, const std::string& where) {
  const Identifier space = opened(H5Aget_space(attribute), where, "the attribute is damaged");
  if (H5Sget_simple_extent_type(space.get()) != H5S_SCALAR) {
    throw Error(ErrorCode::kInput, fmt::format("{}: the attribute is not a single value", where));
  }
}

// Text whose length is stored with it, the library's to allocate and free.
std::string read_variable_text(hid_t attribute,
                               hid_t type,
                               std::uint64_t file_bytes,
                               const std::string& where) {
  const Identifier in_memory = opened(H5Tcopy(H5T_C_S1), where, "the attribute is damaged");
  check_property(H5Tset_size(in_memory.get(), H5T_VARIABLE));
  check_property(H5Tset_cset(in_memory.get(), H5Tget_cset(type)));
  char* value = nullptr;
  check_read(H5Aread(attribute, in_memory.get(), &value), where, "the attribute is damaged");
  if (value == nullptr) {
    return {};
  }
  const std::unique_ptr<char, decltype(&H5free_memory)> owner(value, &H5free_memory);
  const std::string_view text(value);
  if (text.size() > file_bytes) {
    throw Error(ErrorCode::kInput, fmt::format("{}: claims {} bytes of text", where, text.size()));
  }
  return std::string(text);
}

}  // namespace

Group::Group(Identifier group, std::string file, std::string path, std::uint64_t file_bytes)
    : group_(std::move(group)),
      file_(std::move(file)),
      path_(std::move(path)),
      file_bytes_(file_bytes) {}

std::string Group::describe(std::string_view child) const {
  const std::string_view separator = path_.ends_with('/') || child.empty() ? "" : "/";
  return fmt::format("\"{}\": {}{}{}", file_, path_, separator, child);
}

Group Group::create_group(const std::string& name) const {
  const std::string where = describe(name);
  const Identifier properties = timeless(H5P_GROUP_CREATE);
  return Group(
      written(H5Gcreate2(group_.get(), name.c_str(), H5P_DEFAULT, properties.get(), H5P_DEFAULT),
              where),
      file_,
      path_.ends_with('/') ? path_ + name : path_ + '/' + name,
      file_bytes_);
}

void Group::write_text(const std::string& attribute, std::string_view text) const {
  const std::string where = describe(attribute);
  // A type of size 0 does not exist: an empty text is one NUL of padding.
  const Identifier type = text_type(std::max<std::size_t>(1, text.size()), where);
  const Identifier scalar = written(H5Screate(H5S_SCALAR), where);
  const std::string terminated(text);
  write_raw_attribute(group_.get(), attribute, type.get(), scalar.get(), terminated.c_str(), where);
}

void Group::write_attribute(const std::string& attribute, std::int64_t value) const {
  write_scalar(group_.get(), attribute, value, describe(attribute));
}

void Group::write_attribute(const std::string& attribute, std::uint64_t value) const {
  write_scalar(group_.get(), attribute, value, describe(attribute));
}

void Group::write_attribute(const std::string& attribute, double value) const {
  write_scalar(group_.get(), attribute, value, describe(attribute));
}

void Group::write_attribute(const std::string& attribute,
                            std::span<const std::uint64_t> values) const {
  const std::string where = describe(attribute);
  const Identifier space = line_of(values.size(), where);
  write_raw_attribute(
      group_.get(), attribute, type_of<std::uint64_t>(), space.get(), values.data(), where);
}

std::vector<std::string> Group::names() const {
  std::vector<std::string> names;
  hsize_t position = 0;
  const herr_t status = H5Literate(
      group_.get(),
      H5_INDEX_NAME,
      H5_ITER_INC,
      &position,
      [](hid_t, const char* name, const H5L_info_t*, void* out) -> herr_t {
        try {
          static_cast<std::vector<std::string>*>(out)->emplace_back(name);
          return 0;
        } catch (const std::exception&) {
          return -1;
        }
      },
      &names);
  check_read(status, describe(), "its contents cannot be listed");
  return names;
}

bool Group::has(const std::string& name) const {
  return has_link(group_.get(), name, describe(name));
}

bool Group::has_attribute(const std::string& attribute) const {
  const htri_t exists = H5Aexists(group_.get(), attribute.c_str());
  check_read(exists, describe(attribute), "cannot be looked up");
  return exists > 0;
}

Group Group::open_group(const std::string& name) const {
  const std::string where = describe(name);
  if (!has(name)) {
    throw Error(ErrorCode::kInput, fmt::format("{}: the group is missing", where));
  }
  return Group(
      opened(H5Gopen2(group_.get(), name.c_str(), H5P_DEFAULT), where, "is not a readable group"),
      file_,
      path_.ends_with('/') ? path_ + name : path_ + '/' + name,
      file_bytes_);
}

std::string Group::read_text(const std::string& attribute) const {
  const std::string where = describe(attribute);
  const Identifier found = open_attribute(group_.get(), attribute, where);
  require_scalar(found.get(), where);
  const Identifier type = opened(H5Aget_type(found.get()), where, "the attribute is damaged");
  if (H5Tget_class(type.get()) != H5T_STRING) {
    throw Error(ErrorCode::kInput, fmt::format("{}: is not text", where));
  }
  if (H5Tis_variable_str(type.get()) != 0) {
    return read_variable_text(found.get(), type.get(), file_bytes_, where);
  }
  const std::size_t size = H5Tget_size(type.get());
  if (size > file_bytes_) {
    throw Error(ErrorCode::kInput, fmt::format("{}: claims {} bytes of text", where, size));
  }
  std::string text(size, '\0');
  check_read(H5Aread(found.get(), type.get(), text.data()), where, "the attribute is damaged");
  text.resize(std::min(text.find('\0'), text.size()));
  return text;
}

template <typename T>
T Group::read_attribute(const std::string& attribute) const {
  const std::string where = describe(attribute);
  const Identifier found = open_attribute(group_.get(), attribute, where);
  require_scalar(found.get(), where);
  const Identifier type = opened(H5Aget_type(found.get()), where, "the attribute is damaged");
  require_type<T>(type.get(), where);
  T value{};
  check_read(H5Aread(found.get(), type_of<T>(), &value), where, "the attribute is damaged");
  return value;
}

template std::int64_t Group::read_attribute(const std::string&) const;
template std::uint64_t Group::read_attribute(const std::string&) const;
template double Group::read_attribute(const std::string&) const;

std::vector<std::uint64_t> Group::read_attribute_list(const std::string& attribute) const {
  const std::string where = describe(attribute);
  const Identifier found = open_attribute(group_.get(), attribute, where);
  const Identifier type = opened(H5Aget_type(found.get()), where, "the attribute is damaged");
  require_type<std::uint64_t>(type.get(), where);
  const Identifier space = opened(H5Aget_space(found.get()), where, "the attribute is damaged");
  std::vector<std::uint64_t> values(
      line_size(space.get(), sizeof(std::uint64_t), file_bytes_, where));
  check_read(H5Aread(found.get(), type_of<std::uint64_t>(), values.data()),
             where,
             "the attribute is damaged");
  return values;
}

}  // namespace quantmill::h5
