#pragma once

// HDF5 files to be written: a tree of groups with attributes and one-dimensional datasets. Not for
// schemas: those are in store.h and scales.h. Files are read by h5_reader.h.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stats/h5_library.h"

namespace quantmill::h5 {

// A group of a file that is being made. Must not outlive its Writer.
// Values are little-endian; datasets are contiguous; text is of fixed length, UTF-8, padded with
// NUL. Errors: kIo, naming file and object.
class GroupWriter {
 public:
  [[nodiscard]] GroupWriter create_group(const std::string& name) const;
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

 private:
  friend class Writer;
  GroupWriter(Identifier group, std::string path);
  // "calib.h5: /inputs/fc cannot be written".
  [[nodiscard]] std::string failure(std::string_view child) const;

  Identifier group_;
  std::string path_;  // "calib.h5: /inputs", for messages
};

// A new file, made in memory. Nothing appears under its name before commit(), and then all of it.
// The same calls give the same bytes: no times are stored and the format version is fixed (readable
// by HDF5 1.8).
class Writer {
 public:
  explicit Writer(std::filesystem::path file);

  [[nodiscard]] GroupWriter root() const;
  // Writes the file (write_text_file). Every GroupWriter must be gone. kIo.
  void commit();

 private:
  std::filesystem::path file_;
  // What the library writes to, behind a pointer since it keeps the address. A file system would
  // have it meet full disks, and it crashes at exit after a write that failed.
  std::unique_ptr<std::string> memory_ = std::make_unique<std::string>();
  Identifier identifier_;
};

}  // namespace quantmill::h5
