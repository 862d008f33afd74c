#include "stats/h5_tree.h"

#include "base/packing.h"

namespace quantmill::h5 {
namespace {

// Every field, for a Packer or an Unpacker.

template <typename Archive, typename AnyShape>
void transfer_shape(Archive& archive, AnyShape& shape) {
  archive.value(shape.is_scalar);
  archive.value(shape.rank);
  archive.value(shape.size);
}

template <typename Archive, typename AnyStorage>
void transfer_storage(Archive& archive, AnyStorage& storage) {
  archive.enumeration(storage.type, ValueType::kText);
  transfer_shape(archive, storage.shape);
  archive.value(storage.text_bytes);
  archive.value(storage.is_contiguous);
  archive.value(storage.size_bytes);
  archive.value(storage.offset);
}

template <typename Archive, typename AnyAttribute>
void transfer_attribute(Archive& archive, AnyAttribute& attribute) {
  archive.enumeration(attribute.type, ValueType::kText);
  transfer_shape(archive, attribute.shape);
  archive.sequence(attribute.text);
  archive.sequence(attribute.values);
  archive.sequence(attribute.problem);
}

template <typename Archive, typename AnyObject>
void transfer_object(Archive& archive, AnyObject& object, int depth) {
  check_invariant(depth <= kMaxDepth, "an HDF5 file's tree is too deep");
  archive.enumeration(object.kind, ObjectKind::kLink);
  archive.sequence(object.problem);
  archive.map(object.attributes,
              [](Archive& fields, auto& attribute) { transfer_attribute(fields, attribute); });
  archive.map(object.children,
              [depth](Archive& fields, auto& child) { transfer_object(fields, child, depth + 1); });
  transfer_storage(archive, object.storage);
}

}  // namespace

std::vector<std::byte> serialize(const Object& root) {
  Packer packer;
  transfer_object(packer, root, 0);
  return packer.take();
}

Object deserialize_object(std::span<const std::byte> bytes) {
  Object root;
  Unpacker unpacker(bytes);
  transfer_object(unpacker, root, 0);
  check_invariant(unpacker.is_at_end(), "an HDF5 file's tree has bytes after its end");
  return root;
}

}  // namespace quantmill::h5
