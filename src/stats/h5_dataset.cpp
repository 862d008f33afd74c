// Datasets of a Group; the rest is h5_group.cpp.

#include <hdf5.h>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/checked.h"
#include "stats/h5.h"
#include "stats/h5_checks.h"
#include "stats/h5_types.h"

namespace quantmill::h5 {

Identifier line_of(std::uint64_t num_elements, const std::string& where) {
  const hsize_t size = num_elements;
  return written(H5Screate_simple(1, &size, nullptr), where);
}

std::size_t line_size(hid_t space,
                      std::size_t element_bytes,
                      std::uint64_t file_bytes,
                      const std::string& where) {
  const int rank = H5Sget_simple_extent_ndims(space);
  if (H5Sget_simple_extent_type(space) != H5S_SIMPLE || rank != 1) {
    throw Error(ErrorCode::kInput,
                fmt::format("{}: has {} dimensions; one is expected", where, rank));
  }
  hsize_t size = 0;
  check_read(H5Sget_simple_extent_dims(space, &size, nullptr), where, "has no size");
  if (size > file_bytes / element_bytes) {
    throw Error(ErrorCode::kInput,
                fmt::format("{}: claims {} values, more than the file ({} bytes) can hold",
                            where,
                            size,
                            file_bytes));
  }
  return narrow<std::size_t>(static_cast<std::uint64_t>(size));
}

namespace {

Identifier create_line(
    hid_t group, const std::string& name, hid_t type, hid_t space, const std::string& where) {
  const Identifier properties = timeless(H5P_DATASET_CREATE);
  return written(
      H5Dcreate2(group, name.c_str(), type, space, H5P_DEFAULT, properties.get(), H5P_DEFAULT),
      where);
}

// Plain storage only: nothing compressed (a small file may then not unfold into a large one), and
// nothing outside.
void require_contiguous(hid_t dataset, std::uint64_t wanted_bytes, const std::string& where) {
  const Identifier properties = opened(H5Dget_create_plist(dataset), where, "is damaged");
  if (H5Pget_layout(properties.get()) != H5D_CONTIGUOUS ||
      H5Pget_external_count(properties.get()) != 0 ||
      H5Dget_storage_size(dataset) != wanted_bytes) {
    throw Error(ErrorCode::kInput,
                fmt::format("{}: is not stored contiguously in this file; write it without chunks, "
                            "compression or external storage",
                            where));
  }
}

}  // namespace

template <typename T>
void Group::write_parts(const std::string& name,
                        const std::vector<std::span<const T>>& parts) const {
  const std::string where = describe(name);
  std::uint64_t total = 0;
  for (const std::span<const T>& part : parts) {
    total += part.size();
  }
  const Identifier space = line_of(total, where);
  const Identifier dataset = create_line(group_.get(), name, type_of<T>(), space.get(), where);
  hsize_t first = 0;
  for (const std::span<const T>& part : parts) {
    if (part.empty()) {
      continue;
    }
    const hsize_t size = part.size();
    const Identifier memory = line_of(size, where);
    check_written(H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, &first, nullptr, &size, nullptr),
                  where);
    check_written(
        H5Dwrite(dataset.get(), type_of<T>(), memory.get(), space.get(), H5P_DEFAULT, part.data()),
        where);
    first += size;
  }
}

template void Group::write_parts(const std::string&,
                                 const std::vector<std::span<const float>>&) const;
template void Group::write_parts(const std::string&,
                                 const std::vector<std::span<const double>>&) const;

void Group::write_dataset(const std::string& name, std::span<const float> values) const {
  write_parts<float>(name, {values});
}

void Group::write_dataset(const std::string& name, std::span<const double> values) const {
  write_parts<double>(name, {values});
}

void Group::write_dataset(const std::string& name, std::span<const std::uint64_t> values) const {
  write_parts<std::uint64_t>(name, {values});
}

void Group::write_text_list(const std::string& name, const std::vector<std::string>& texts) const {
  const std::string where = describe(name);
  std::size_t length = 1;  // a type of size 0 does not exist
  for (const std::string& text : texts) {
    length = std::max(length, text.size());
  }
  std::string padded;
  padded.reserve(texts.size() * length);
  for (const std::string& text : texts) {
    padded.append(text).append(length - text.size(), '\0');
  }
  const Identifier type = text_type(length, where);
  const Identifier space = line_of(texts.size(), where);
  const Identifier dataset = create_line(group_.get(), name, type.get(), space.get(), where);
  if (!padded.empty()) {
    check_written(H5Dwrite(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, padded.data()),
                  where);
  }
}

struct Group::Line {
  Identifier data;
  Identifier space;
  std::uint64_t size = 0;
};

Identifier Group::open_dataset(const std::string& name) const {
  const std::string where = describe(name);
  if (!has(name)) {
    throw Error(ErrorCode::kInput, fmt::format("{}: the dataset is missing", where));
  }
  return opened(
      H5Dopen2(group_.get(), name.c_str(), H5P_DEFAULT), where, "is not a readable dataset");
}

// A dataset that is one line of T, all of it in this file.
template <typename T>
Group::Line Group::open_line(const std::string& name) const {
  const std::string where = describe(name);
  Identifier dataset = open_dataset(name);
  const Identifier type = opened(H5Dget_type(dataset.get()), where, "is damaged");
  require_type<T>(type.get(), where);
  Identifier space = opened(H5Dget_space(dataset.get()), where, "is damaged");
  const std::size_t size = line_size(space.get(), sizeof(T), file_bytes_, where);
  require_contiguous(dataset.get(), size * sizeof(T), where);
  return {std::move(dataset), std::move(space), size};
}

template <typename T>
std::vector<T> Group::read_dataset(const std::string& name, std::optional<Range> part) const {
  const std::string where = describe(name);
  const Line line = open_line<T>(name);
  const hsize_t first = part ? part->first : 0;
  const hsize_t size = part ? part->size : line.size;
  std::vector<T> values(narrow<std::size_t>(std::uint64_t{size}));
  if (!values.empty()) {
    const Identifier memory = opened(H5Screate_simple(1, &size, nullptr), where, "is too large");
    const hid_t space = line.space.get();
    check_read(H5Sselect_hyperslab(space, H5S_SELECT_SET, &first, nullptr, &size, nullptr),
               where,
               "is damaged");
    check_read(H5Dread(line.data.get(), type_of<T>(), memory.get(), space, H5P_DEFAULT, &values[0]),
               where,
               "its values cannot be read; the file is damaged or cut short");
  }
  return values;
}

template <typename T>
std::uint64_t Group::dataset_size(const std::string& name) const {
  return open_line<T>(name).size;
}

template std::vector<float> Group::read_dataset(const std::string&, std::optional<Range>) const;
template std::vector<double> Group::read_dataset(const std::string&, std::optional<Range>) const;
template std::vector<std::uint64_t> Group::read_dataset(const std::string&,
                                                        std::optional<Range>) const;
template std::uint64_t Group::dataset_size<float>(const std::string&) const;
template std::uint64_t Group::dataset_size<double>(const std::string&) const;

std::vector<std::string> Group::read_text_list(const std::string& name) const {
  const std::string where = describe(name);
  const Identifier dataset = open_dataset(name);
  const Identifier type = opened(H5Dget_type(dataset.get()), where, "is damaged");
  if (H5Tget_class(type.get()) != H5T_STRING || H5Tis_variable_str(type.get()) != 0) {
    throw Error(ErrorCode::kInput, fmt::format("{}: is not text of one length", where));
  }
  const std::size_t length = H5Tget_size(type.get());
  const Identifier space = opened(H5Dget_space(dataset.get()), where, "is damaged");
  const std::size_t count =
      line_size(space.get(), std::max<std::size_t>(1, length), file_bytes_, where);
  require_contiguous(dataset.get(), count * length, where);
  std::string text(count * length, '\0');
  if (!text.empty()) {
    check_read(H5Dread(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, text.data()),
               where,
               "its text cannot be read; the file is damaged or cut short");
  }
  std::vector<std::string> texts;
  texts.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::string_view padded = std::string_view(text).substr(i * length, length);
    texts.emplace_back(padded.substr(0, padded.find('\0')));
  }
  return texts;
}

}  // namespace quantmill::h5
