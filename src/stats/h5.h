#pragma once

// HDF5 files as a tree of groups with attributes and one-dimensional datasets; the only place that
// sees the C library. Not for schemas: those are in store.h and scales.h. HDF5 is used serially, by
// one thread at a time, and needs no MPI.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/handle.h"

namespace quantmill::h5 {

// Any identifier of the library (file, group, dataset …); hid_t, checked in h5.cpp.
struct IdentifierTraits {
  using Handle = std::int64_t;

  static Handle null() noexcept { return -1; }

  static void close(Handle identifier) noexcept;
};

using Identifier = UniqueHandle<IdentifierTraits>;

// Values of a dataset.
struct Range {
  std::uint64_t first = 0;
  std::uint64_t size = 0;
};

// A group of an open file. Must not outlive the Writer or Reader that it came from.
// Values are little-endian; datasets are contiguous; text is of fixed length, UTF-8, padded with
// NUL; an attribute's text of variable length, as h5py writes it, is read too. Errors: kIo when
// writing; kInput when reading, naming file and object: an object that is missing or of another
// type, rank or size, a link to another place, data outside the file.
class Group {
 public:
  [[nodiscard]] Group create_group(const std::string& name) const;
  void write_text(const std::string& attribute, std::string_view text) const;
  void write_attribute(const std::string& attribute, std::int64_t value) const;
  void write_attribute(const std::string& attribute, std::uint64_t value) const;
  void write_attribute(const std::string& attribute, double value) const;
  void write_attribute(const std::string& attribute, std::span<const std::uint64_t> values) const;
  void write_dataset(const std::string& name, std::span<const float> values) const;
  void write_dataset(const std::string& name, std::span<const double> values) const;
  void write_dataset(const std::string& name, std::span<const std::uint64_t> values) const;
  // One part after the other. T is float or double.
  template <typename T>
  void write_parts(const std::string& name, const std::vector<std::span<const T>>& parts) const;
  // All of the length of the longest; none ends in NUL.
  void write_text_list(const std::string& name, const std::vector<std::string>& texts) const;

  // Names of what is directly in the group, sorted.
  [[nodiscard]] std::vector<std::string> names() const;
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
  friend class Writer;
  friend class Reader;
  struct Line;
  [[nodiscard]] Identifier open_dataset(const std::string& name) const;
  template <typename T>
  [[nodiscard]] Line open_line(const std::string& name) const;
  Group(Identifier group, std::string file, std::string path, std::uint64_t file_bytes);

  Identifier group_;
  std::string file_;
  std::string path_;
  std::uint64_t file_bytes_ = 0;  // no object of a file that is read is larger
};

// A new file, made in memory. Nothing appears under its name before commit(), and then all of it.
// The same calls give the same bytes: no times are stored and the format version is fixed (readable
// by HDF5 1.8).
class Writer {
 public:
  explicit Writer(std::filesystem::path file);

  [[nodiscard]] Group root() const;
  // Writes the file (write_text_file). Every Group must be gone. kIo.
  void commit();

 private:
  std::filesystem::path file_;
  // What the library writes to, behind a pointer since it keeps the address. A file system would
  // have it meet full disks, and it crashes at exit after a write that failed.
  std::unique_ptr<std::string> memory_ = std::make_unique<std::string>();
  Identifier identifier_;
};

// An existing file, opened to read without locks (network file systems may have none).
class Reader {
 public:
  // Errors: kIo if it cannot be opened, kInput if it is not a whole HDF5 file.
  explicit Reader(std::filesystem::path file);

  [[nodiscard]] Group root() const;

 private:
  std::filesystem::path file_;
  std::uint64_t file_bytes_ = 0;
  Identifier identifier_;
};

}  // namespace quantmill::h5
