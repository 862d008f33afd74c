#pragma once

// HDF5 files to be read: a tree of groups with attributes and one-dimensional datasets. Not for
// schemas: those are in store.h and scales.h. The C library looks at the file in a process of its
// own (h5_process.h); values come from where it says they are.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "stats/h5_tree.h"

namespace quantmill::h5 {

// Values of a dataset.
struct Range {
  std::uint64_t first = 0;
  std::uint64_t size = 0;
};

struct OpenFile {
  File file;
  std::uint64_t size_bytes = 0;
};

// A group of a file. Must not outlive its Reader.
// Text is of fixed length, padded with NUL; an attribute's text of variable length, as h5py writes
// it, is read too. Errors: kInput, naming file and object: an object that is missing or of another
// type, rank or size, a link to another place, data outside the file.
class Group {
 public:
  // Names of what is directly in the group, sorted.
  [[nodiscard]] std::vector<std::string> names() const;
  // kInput if it is a link to another place.
  [[nodiscard]] bool has(const std::string& name) const;
  [[nodiscard]] bool has_attribute(const std::string& attribute) const;
  [[nodiscard]] Group open_group(const std::string& name) const;
  [[nodiscard]] std::string read_text(const std::string& attribute) const;
  // Scalars are i64, u64 and f64; T is one of these.
  template <typename T>
  [[nodiscard]] T read_attribute(const std::string& attribute) const;
  [[nodiscard]] std::vector<std::uint64_t> read_attribute_list(const std::string& attribute) const;
  // T is float, double or u64. With `part`, which must be in it, only that.
  template <typename T>
  [[nodiscard]] std::vector<T> read_dataset(const std::string& name,
                                            std::optional<Range> part = {}) const;
  [[nodiscard]] std::vector<std::string> read_text_list(const std::string& name) const;
  // Of a dataset that read_dataset<T> would read. T is float or double.
  template <typename T>
  [[nodiscard]] std::uint64_t dataset_size(const std::string& name) const;

  // "calib.h5: /inputs/fc", for messages.
  [[nodiscard]] std::string describe(std::string_view child = {}) const;

 private:
  friend class Reader;
  Group(const Object& group, const OpenFile& file, std::string path);
  // kInput, "calib.h5: /inputs/fc: problem", of something in the group or, if empty, the group.
  [[noreturn]] void refuse(std::string_view child, std::string_view problem) const;
  void require(bool holds, std::string_view child, std::string_view problem) const;
  // That the problem is empty.
  void require_none(std::string_view child, std::string_view problem) const;
  [[nodiscard]] const Object* find(const std::string& name) const;
  [[nodiscard]] const Object& find_object(const std::string& name,
                                          ObjectKind kind,
                                          std::string_view kind_name) const;
  [[nodiscard]] const Attribute& find_attribute(const std::string& attribute) const;
  // One that is a single value.
  [[nodiscard]] const Attribute& find_value(const std::string& attribute) const;
  [[nodiscard]] const Storage& find_dataset(const std::string& name) const;
  // Of a dataset that is one line of `type`, all of it in this file.
  [[nodiscard]] const Storage& find_line(const std::string& name, ValueType type) const;

  const Object* group_;
  const OpenFile* file_;
  std::string path_;
};

// An existing file.
class Reader {
 public:
  // Errors: kIo if it cannot be opened, kInput if it is not a whole HDF5 file, or one that the
  // library does not survive.
  explicit Reader(const std::filesystem::path& file);
  ~Reader() = default;
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  [[nodiscard]] Group root() const;

 private:
  OpenFile file_;
  Object root_;
};

}  // namespace quantmill::h5
