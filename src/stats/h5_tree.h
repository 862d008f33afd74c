#pragma once

// What an HDF5 file holds, all but the values of its datasets, in plain words: the library makes it
// (h5_walk.h), in a process of its own (h5_process.h), and h5_reader.h reads files by it.

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace quantmill::h5 {

enum class ValueType : std::uint8_t { kOther, kFloat32, kFloat64, kSigned64, kUnsigned64, kText };

// Of an attribute or dataset.
struct Shape {
  bool is_scalar = false;
  std::int32_t rank = 0;
  std::uint64_t size = 0;  // of one dimension
};

struct Attribute {
  ValueType type = ValueType::kOther;
  Shape shape;
  std::string text;                   // of a scalar kText, up to its first NUL
  std::vector<std::uint64_t> values;  // of 64-bit numbers of at most one dimension, their bits
  std::string problem;                // why it can't be read, if so: the end of a message
};

// Where the values of a dataset are.
struct Storage {
  ValueType type = ValueType::kOther;
  Shape shape;
  std::uint64_t text_bytes = 0;  // of each kText
  bool is_contiguous = false;    // in this file, without filters
  std::uint64_t size_bytes = 0;
  std::uint64_t offset = 0;  // in the file, if it has bytes
};

// kOther: neither, or a group kMaxDepth steps down.
enum class ObjectKind : std::uint8_t { kOther, kGroup, kDataset, kLink };

struct Object {
  ObjectKind kind = ObjectKind::kOther;
  std::string problem;  // as of an attribute
  std::map<std::string, Attribute> attributes;
  std::map<std::string, Object> children;  // of a group
  Storage storage;                         // of a dataset
};

// Steps from the root down to the deepest object of a tree; quantmill's files have no groups there,
// and what is below is left out.
constexpr int kMaxDepth = 3;

std::vector<std::byte> serialize(const Object& root);
// kInternal if `bytes` are not of serialize().
Object deserialize_object(std::span<const std::byte> bytes);

}  // namespace quantmill::h5
