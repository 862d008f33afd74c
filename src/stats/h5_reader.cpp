#include "stats/h5_reader.h"

#include <algorithm>
#include <bit>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include "base/checked.h"
#include "base/error.h"
#include "stats/h5_process.h"

namespace quantmill::h5 {
namespace {

template <typename T>
constexpr ValueType type_of() {
  if constexpr (std::is_same_v<T, float>) {
    return ValueType::kFloat32;
  } else if constexpr (std::is_same_v<T, double>) {
    return ValueType::kFloat64;
  } else if constexpr (std::is_same_v<T, std::int64_t>) {
    return ValueType::kSigned64;
  } else {
    static_assert(std::is_same_v<T, std::uint64_t>);
    return ValueType::kUnsigned64;
  }
}

struct TypeName {
  std::string_view name;
  std::size_t size_bytes = 0;
};

TypeName describe_type(ValueType type) {
  switch (type) {
    case ValueType::kFloat32:
      return {"32-bit float", sizeof(float)};
    case ValueType::kFloat64:
      return {"64-bit float", sizeof(double)};
    case ValueType::kSigned64:
      return {"signed 64-bit integer", sizeof(std::int64_t)};
    case ValueType::kUnsigned64:
      return {"unsigned 64-bit integer", sizeof(std::uint64_t)};
    case ValueType::kText:
      return {"text", 1};
    case ValueType::kOther:
      break;
  }
  return {};
}

// Each of these gives the end of a message, empty if nothing is wrong, as `problem` of a tree is.

std::string problem_of_type(ValueType found, ValueType wanted) {
  return found == wanted ? std::string()
                         : fmt::format("its values are not of type {}", describe_type(wanted).name);
}

std::string problem_of_line(const Shape& shape) {
  return !shape.is_scalar && shape.rank == 1
             ? std::string()
             : fmt::format("has {} dimensions; one is expected", shape.rank);
}

// Plain storage only: nothing compressed (a small file may then not unfold into a large one), and
// nothing outside.
std::string problem_of_storage(const Storage& storage,
                               std::size_t element_bytes,
                               std::uint64_t file_bytes) {
  if (std::string problem = problem_of_line(storage.shape); !problem.empty()) {
    return problem;
  }
  const std::uint64_t size = storage.shape.size;
  if (size > file_bytes / std::max<std::size_t>(1, element_bytes)) {
    return fmt::format(
        "claims {} values, more than the file ({} bytes) can hold", size, file_bytes);
  }
  const std::uint64_t wanted_bytes = size * element_bytes;
  if (!storage.is_contiguous || storage.size_bytes != wanted_bytes) {
    return "is not stored contiguously in this file; write it without chunks, compression or "
           "external storage";
  }
  if (wanted_bytes > 0 &&
      (storage.offset > file_bytes || wanted_bytes > file_bytes - storage.offset)) {
    return "its values lie outside the file, which is damaged or cut short";
  }
  return {};
}

}  // namespace

Group::Group(const Object& group, const OpenFile& file, std::string path)
    : group_(&group), file_(&file), path_(std::move(path)) {
  require_none({}, group.problem);
}

std::string Group::describe(std::string_view child) const {
  const std::string_view separator = path_.ends_with('/') || child.empty() ? "" : "/";
  return fmt::format("\"{}\": {}{}{}", file_->file.path().string(), path_, separator, child);
}

void Group::refuse(std::string_view child, std::string_view problem) const {
  throw Error(ErrorCode::kInput, fmt::format("{}: {}", describe(child), problem));
}

void Group::require(bool holds, std::string_view child, std::string_view problem) const {
  if (!holds) {
    refuse(child, problem);
  }
}

void Group::require_none(std::string_view child, std::string_view problem) const {
  require(problem.empty(), child, problem);
}

const Object* Group::find(const std::string& name) const {
  const auto found = group_->children.find(name);
  if (found == group_->children.end()) {
    return nullptr;
  }
  require(found->second.kind != ObjectKind::kLink, name, "is a link to another place");
  return &found->second;
}

const Object& Group::find_object(const std::string& name,
                                 ObjectKind kind,
                                 std::string_view kind_name) const {
  const Object* const object = find(name);
  if (object == nullptr) {
    refuse(name, fmt::format("the {} is missing", kind_name));
  }
  require_none(name, object->problem);
  if (object->kind != kind) {
    refuse(name, fmt::format("is not a readable {}", kind_name));
  }
  return *object;
}

const Attribute& Group::find_attribute(const std::string& attribute) const {
  const auto found = group_->attributes.find(attribute);
  require(found != group_->attributes.end(), attribute, "the attribute is missing");
  require_none(attribute, found->second.problem);
  return found->second;
}

const Attribute& Group::find_value(const std::string& attribute) const {
  const Attribute& found = find_attribute(attribute);
  require(found.shape.is_scalar, attribute, "the attribute is not a single value");
  return found;
}

const Storage& Group::find_dataset(const std::string& name) const {
  return find_object(name, ObjectKind::kDataset, "dataset").storage;
}

const Storage& Group::find_line(const std::string& name, ValueType type) const {
  const Storage& storage = find_dataset(name);
  require_none(name, problem_of_type(storage.type, type));
  require_none(name,
               problem_of_storage(storage, describe_type(type).size_bytes, file_->size_bytes));
  return storage;
}

std::vector<std::string> Group::names() const {
  std::vector<std::string> names;
  names.reserve(group_->children.size());
  for (const auto& [name, child] : group_->children) {
    names.push_back(name);
  }
  return names;
}

bool Group::has(const std::string& name) const {
  return find(name) != nullptr;
}

bool Group::has_attribute(const std::string& attribute) const {
  return group_->attributes.contains(attribute);
}

Group Group::open_group(const std::string& name) const {
  return {find_object(name, ObjectKind::kGroup, "group"),
          *file_,
          path_.ends_with('/') ? path_ + name : path_ + '/' + name};
}

std::string Group::read_text(const std::string& attribute) const {
  const Attribute& found = find_value(attribute);
  require(found.type == ValueType::kText, attribute, "is not text");
  return found.text;
}

template <typename T>
T Group::read_attribute(const std::string& attribute) const {
  const Attribute& found = find_value(attribute);
  require_none(attribute, problem_of_type(found.type, type_of<T>()));
  require(found.values.size() == 1, attribute, "the attribute is damaged");
  return std::bit_cast<T>(found.values.front());
}

template std::int64_t Group::read_attribute(const std::string&) const;
template std::uint64_t Group::read_attribute(const std::string&) const;
template double Group::read_attribute(const std::string&) const;

std::vector<std::uint64_t> Group::read_attribute_list(const std::string& attribute) const {
  const Attribute& found = find_attribute(attribute);
  require_none(attribute, problem_of_type(found.type, ValueType::kUnsigned64));
  require_none(attribute, problem_of_line(found.shape));
  return found.values;
}

template <typename T>
std::vector<T> Group::read_dataset(const std::string& name, std::optional<Range> part) const {
  const Storage& storage = find_line(name, type_of<T>());
  const Range range = part.value_or(Range{0, storage.shape.size});
  check_invariant(
      range.first <= storage.shape.size && range.size <= storage.shape.size - range.first,
      "a part of a dataset is not in it");
  std::vector<T> values(narrow<std::size_t>(range.size));
  if (!values.empty()) {
    file_->file.read_at(storage.offset + range.first * sizeof(T),
                        std::as_writable_bytes(std::span(values)));
  }
  return values;
}

template <typename T>
std::uint64_t Group::dataset_size(const std::string& name) const {
  return find_line(name, type_of<T>()).shape.size;
}

template std::vector<float> Group::read_dataset(const std::string&, std::optional<Range>) const;
template std::vector<double> Group::read_dataset(const std::string&, std::optional<Range>) const;
template std::vector<std::uint64_t> Group::read_dataset(const std::string&,
                                                        std::optional<Range>) const;
template std::uint64_t Group::dataset_size<float>(const std::string&) const;
template std::uint64_t Group::dataset_size<double>(const std::string&) const;

std::vector<std::string> Group::read_text_list(const std::string& name) const {
  const Storage& storage = find_dataset(name);
  require(storage.type == ValueType::kText, name, "is not text of one length");
  const std::size_t length = storage.text_bytes;
  require_none(name, problem_of_storage(storage, length, file_->size_bytes));
  std::string text(storage.size_bytes, '\0');
  if (!text.empty()) {
    file_->file.read_at(storage.offset, std::as_writable_bytes(std::span(text)));
  }
  std::vector<std::string> texts;
  texts.reserve(storage.shape.size);
  for (std::size_t i = 0; i < storage.shape.size; ++i) {
    const std::string_view padded = std::string_view(text).substr(i * length, length);
    texts.emplace_back(padded.substr(0, padded.find('\0')));
  }
  return texts;
}

Reader::Reader(const std::filesystem::path& file)
    : file_{File::open_to_read(file)}, root_(read_tree(file)) {
  file_.size_bytes = file_.file.size_bytes();
}

Group Reader::root() const {
  return {root_, file_, "/"};
}

}  // namespace quantmill::h5
