#include "stats/h5_walk.h"

#include <hdf5.h>

#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/checked.h"
#include "base/file.h"
#include "stats/h5_library.h"

namespace quantmill::h5 {
namespace {

constexpr std::string_view kDamaged = "is damaged";
constexpr std::string_view kDamagedAttribute = "the attribute is damaged";
// Any link or attribute takes more bytes of a file.
constexpr std::uint64_t kLeastBytes = 8;

void check_read(std::int64_t status, std::string_view what) {
  check(status, ErrorCode::kInput, what);
}

Identifier opened(std::int64_t identifier, std::string_view what) {
  return checked(identifier, ErrorCode::kInput, what);
}

// Runs `body`; what it refuses becomes `problem`.
template <typename Body>
void note_problem(std::string& problem, Body&& body) {
  try {
    std::forward<Body>(body)();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInput) {
      throw;
    }
    problem = error.message();
  }
}

// For the library's callbacks that are told a name: no exception passes through C.
template <typename Info>
herr_t add_name(hid_t /*of*/, const char* name, const Info* /*info*/, void* names) noexcept {
  try {
    static_cast<std::vector<std::string>*>(names)->emplace_back(name);
    return 0;
  } catch (const std::exception&) {
    return -1;
  }
}

// The names that `iterate`, H5Aiterate2 or H5Literate, tells of `of`.
template <typename Info, typename Iterate>
std::vector<std::string> list_names(Iterate iterate, hid_t of, std::string_view failure) {
  std::vector<std::string> names;
  hsize_t position = 0;
  check_read(iterate(of, H5_INDEX_NAME, H5_ITER_INC, &position, add_name<Info>, &names), failure);
  return names;
}

ValueType type_of_values(hid_t type) {
  for (const auto& [candidate, found] : {std::pair(H5T_IEEE_F32LE, ValueType::kFloat32),
                                         {H5T_IEEE_F64LE, ValueType::kFloat64},
                                         {H5T_STD_I64LE, ValueType::kSigned64},
                                         {H5T_STD_U64LE, ValueType::kUnsigned64}}) {
    if (H5Tequal(type, candidate) > 0) {
      return found;
    }
  }
  return H5Tget_class(type) == H5T_STRING ? ValueType::kText : ValueType::kOther;
}

Shape shape_of(hid_t space) {
  Shape shape;
  shape.is_scalar = H5Sget_simple_extent_type(space) == H5S_SCALAR;
  shape.rank = H5Sget_simple_extent_ndims(space);
  if (H5Sget_simple_extent_type(space) == H5S_SIMPLE && shape.rank == 1) {
    hsize_t size = 0;
    check_read(H5Sget_simple_extent_dims(space, &size, nullptr), "has no size");
    shape.size = size;
  }
  return shape;
}

struct TooMuch {};  // the file claims to hold more than it has bytes

// Walks one file, and counts what it took from it.
class Walk {
 public:
  explicit Walk(std::uint64_t file_bytes) : file_bytes_(file_bytes) {}

  Object group(hid_t opened_group, int depth) {
    Object object;
    object.kind = ObjectKind::kGroup;
    note_problem(object.problem, [&] {
      for (const std::string& name :
           list_names<H5A_info_t>(H5Aiterate2, opened_group, "its attributes cannot be listed")) {
        object.attributes.emplace(name, attribute(opened_group, name));
      }
      for (const std::string& name :
           list_names<H5L_info_t>(H5Literate, opened_group, "its contents cannot be listed")) {
        object.children.emplace(name, child(opened_group, name, depth + 1));
      }
    });
    return object;
  }

 private:
  // Objects that claim more than the file has, and groups linked from many places, are refused.
  void count(std::uint64_t num_bytes) {
    if (num_bytes > file_bytes_ - taken_bytes_) {
      throw TooMuch();
    }
    taken_bytes_ += num_bytes;
  }

  Attribute attribute(hid_t object, const std::string& name) {
    count(kLeastBytes);
    Attribute result;
    note_problem(result.problem, [&] { read_attribute(object, name, result); });
    return result;
  }

  void read_attribute(hid_t object, const std::string& name, Attribute& result) {
    const Identifier attribute =
        opened(H5Aopen(object, name.c_str(), H5P_DEFAULT), kDamagedAttribute);
    const Identifier type = opened(H5Aget_type(attribute.get()), kDamagedAttribute);
    const Identifier space = opened(H5Aget_space(attribute.get()), kDamagedAttribute);
    result.type = type_of_values(type.get());
    result.shape = shape_of(space.get());
    if (result.type == ValueType::kText) {
      if (result.shape.is_scalar) {
        result.text = read_text(attribute.get(), type.get());
      }
    } else if (result.type != ValueType::kOther && result.type != ValueType::kFloat32 &&
               (result.shape.is_scalar || result.shape.rank == 1)) {
      const std::uint64_t size = result.shape.is_scalar ? 1 : result.shape.size;
      require_in_file(size, sizeof(std::uint64_t));
      count(size * sizeof(std::uint64_t));
      result.values.resize(size);
      check_read(H5Aread(attribute.get(), type.get(), result.values.data()), kDamagedAttribute);
    }
  }

  std::string read_text(hid_t attribute, hid_t type) {
    const htri_t is_variable = H5Tis_variable_str(type);
    check_read(is_variable, kDamagedAttribute);
    if (is_variable > 0) {
      return read_variable_text(attribute, type);
    }
    const std::size_t size = H5Tget_size(type);
    require_in_file(size, 1);
    count(size);
    std::string text(size, '\0');
    check_read(H5Aread(attribute, type, text.data()), kDamagedAttribute);
    text.resize(std::min(text.find('\0'), text.size()));
    return text;
  }

  // Text whose length is stored with it, the library's to allocate and free.
  std::string read_variable_text(hid_t attribute, hid_t type) {
    const Identifier in_memory = opened(H5Tcopy(H5T_C_S1), kDamagedAttribute);
    check_property(H5Tset_size(in_memory.get(), H5T_VARIABLE));
    check_property(H5Tset_cset(in_memory.get(), H5Tget_cset(type)));
    char* value = nullptr;
    check_read(H5Aread(attribute, in_memory.get(), &value), kDamagedAttribute);
    if (value == nullptr) {
      return {};
    }
    const std::unique_ptr<char, decltype(&H5free_memory)> owner(value, &H5free_memory);
    const std::string_view text(value);
    count(text.size());
    return std::string(text);
  }

  Object child(hid_t group_of_it, const std::string& name, int depth) {
    count(kLeastBytes);
    Object object;
    note_problem(object.problem, [&] {
      H5L_info_t info;
      check_read(H5Lget_info(group_of_it, name.c_str(), &info, H5P_DEFAULT), "cannot be looked up");
      if (info.type != H5L_TYPE_HARD) {
        object.kind = ObjectKind::kLink;
        return;
      }
      const Identifier found =
          opened(H5Oopen(group_of_it, name.c_str(), H5P_DEFAULT), "cannot be opened");
      const H5I_type_t kind = H5Iget_type(found.get());
      if (kind == H5I_DATASET) {
        object.kind = ObjectKind::kDataset;
        object.storage = storage(found.get());
      } else if (kind == H5I_GROUP && depth < kMaxDepth) {
        object = group(found.get(), depth);
      }
    });
    return object;
  }

  [[nodiscard]] static Storage storage(hid_t dataset) {
    Storage storage;
    const Identifier type = opened(H5Dget_type(dataset), kDamaged);
    const Identifier space = opened(H5Dget_space(dataset), kDamaged);
    const Identifier properties = opened(H5Dget_create_plist(dataset), kDamaged);
    storage.type = type_of_values(type.get());
    if (storage.type == ValueType::kText) {
      storage.text_bytes = H5Tget_size(type.get());
      if (H5Tis_variable_str(type.get()) != 0) {
        storage.type = ValueType::kOther;
      }
    }
    storage.shape = shape_of(space.get());
    storage.is_contiguous = H5Pget_layout(properties.get()) == H5D_CONTIGUOUS &&
                            H5Pget_external_count(properties.get()) == 0;
    storage.size_bytes = H5Dget_storage_size(dataset);
    storage.offset = H5Dget_offset(dataset);
    return storage;
  }

  void require_in_file(std::uint64_t num_values, std::uint64_t value_bytes) const {
    if (num_values > file_bytes_ / value_bytes) {
      throw Error(
          ErrorCode::kInput,
          fmt::format(
              "claims {} values, more than the file ({} bytes) can hold", num_values, file_bytes_));
    }
  }

  std::uint64_t file_bytes_;
  std::uint64_t taken_bytes_ = 0;
};

}  // namespace

Object walk_file(const std::filesystem::path& file) {
  silence_library();
  const std::uint64_t file_bytes = File::open_to_read(file).size_bytes();
  const std::string where = fmt::format("\"{}\"", file.string());
  const Identifier access = file_access();
  const Identifier opened_file =
      opened(H5Fopen(file.c_str(), H5F_ACC_RDONLY, access.get()),
             where + ": is not an HDF5 file, or is damaged or cut short");
  const Identifier root =
      opened(H5Gopen2(opened_file.get(), "/", H5P_DEFAULT), where + ": has no root group");
  try {
    return Walk(file_bytes).group(root.get(), 0);
  } catch (const TooMuch&) {
    throw Error(
        ErrorCode::kInput,
        fmt::format(
            "{}: what is in it claims more than its {} bytes; it is damaged", where, file_bytes));
  }
}

}  // namespace quantmill::h5
