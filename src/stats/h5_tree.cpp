#include "stats/h5_tree.h"

#include "base/packing.h"

namespace quantmill::h5 {
namespace {

void put(std::vector<std::byte>& bytes, const Shape& shape) {
  pack(bytes, shape.is_scalar);
  pack(bytes, shape.rank);
  pack(bytes, shape.size);
}

void put(std::vector<std::byte>& bytes, const Storage& storage) {
  pack(bytes, storage.type);
  put(bytes, storage.shape);
  pack(bytes, storage.text_bytes);
  pack(bytes, storage.is_contiguous);
  pack(bytes, storage.size_bytes);
  pack(bytes, storage.offset);
}

void put(std::vector<std::byte>& bytes, const Attribute& attribute) {
  pack(bytes, attribute.type);
  put(bytes, attribute.shape);
  pack_sequence(bytes, attribute.text);
  pack_sequence(bytes, attribute.values);
  pack_sequence(bytes, attribute.problem);
}

void put(std::vector<std::byte>& bytes, const Object& object) {
  pack(bytes, object.kind);
  pack_sequence(bytes, object.problem);
  pack(bytes, object.attributes.size());
  for (const auto& [name, attribute] : object.attributes) {
    pack_sequence(bytes, name);
    put(bytes, attribute);
  }
  pack(bytes, object.children.size());
  for (const auto& [name, child] : object.children) {
    pack_sequence(bytes, name);
    put(bytes, child);
  }
  put(bytes, object.storage);
}

template <typename Enum>
Enum take_enum(Unpacker& packed, Enum last) {
  const auto value = packed.take<Enum>();
  check_invariant(value <= last, "an HDF5 file's tree has a kind that does not exist");
  return value;
}

bool take_bool(Unpacker& packed) {
  return packed.take<std::uint8_t>() != 0;
}

Shape take_shape(Unpacker& packed) {
  Shape shape;
  shape.is_scalar = take_bool(packed);
  shape.rank = packed.take<std::int32_t>();
  shape.size = packed.take<std::uint64_t>();
  return shape;
}

Storage take_storage(Unpacker& packed) {
  Storage storage;
  storage.type = take_enum(packed, ValueType::kText);
  storage.shape = take_shape(packed);
  storage.text_bytes = packed.take<std::uint64_t>();
  storage.is_contiguous = take_bool(packed);
  storage.size_bytes = packed.take<std::uint64_t>();
  storage.offset = packed.take<std::uint64_t>();
  return storage;
}

Attribute take_attribute(Unpacker& packed) {
  Attribute attribute;
  attribute.type = take_enum(packed, ValueType::kText);
  attribute.shape = take_shape(packed);
  attribute.text = packed.take_sequence<std::string>();
  attribute.values = packed.take_sequence<std::vector<std::uint64_t>>();
  attribute.problem = packed.take_sequence<std::string>();
  return attribute;
}

Object take_object(Unpacker& packed, int depth) {
  check_invariant(depth <= kMaxDepth, "an HDF5 file's tree is too deep");
  Object object;
  object.kind = take_enum(packed, ObjectKind::kLink);
  object.problem = packed.take_sequence<std::string>();
  for (auto left = packed.take<std::size_t>(); left > 0; --left) {
    auto name = packed.take_sequence<std::string>();
    object.attributes.emplace_hint(
        object.attributes.end(), std::move(name), take_attribute(packed));
  }
  for (auto left = packed.take<std::size_t>(); left > 0; --left) {
    auto name = packed.take_sequence<std::string>();
    object.children.emplace_hint(
        object.children.end(), std::move(name), take_object(packed, depth + 1));
  }
  object.storage = take_storage(packed);
  return object;
}

}  // namespace

std::vector<std::byte> serialize(const Object& root) {
  std::vector<std::byte> bytes;
  put(bytes, root);
  return bytes;
}

Object deserialize_object(std::span<const std::byte> bytes) {
  Unpacker packed(bytes);
  Object root = take_object(packed, 0);
  check_invariant(packed.is_at_end(), "an HDF5 file's tree has bytes after its end");
  return root;
}

}  // namespace quantmill::h5
