#pragma once

// The part of Python's pickle format that torch.save needs for dicts of tensors and numbers, as
// data: nothing is ever imported or called. Not for the tensors' bytes: those lie beside the pickle
// (torch_archive.h). Opcodes and their layout: CPython's Lib/pickletools.py; what torch writes:
// torch/serialization.py, torch/_utils.py.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace quantmill {

enum class TorchType : std::uint8_t { kF16, kBf16, kF32, kF64, kU8, kI8, kI16, kI32, kI64, kBool };

// Bytes of one element.
std::size_t torch_type_bytes(TorchType type);

// As in torch: "float32", "int64" …
std::string_view torch_type_name(TorchType type);

// The type of a class of module torch ("FloatStorage"); nothing for another name.
std::optional<TorchType> torch_storage_type(std::string_view class_name);

// Index of a value of a Pickle. Values are shared, never copied, so cycles and bombs cost what they
// cost in the file.
using PickleId = std::uint32_t;

struct PickleNone {};

struct PickleTuple {
  std::vector<PickleId> items;
};

struct PickleList {
  std::vector<PickleId> items;
};

// Keys may repeat; the last one counts, as in Python.
struct PickleDict {
  std::vector<std::pair<PickleId, PickleId>> items;
};

// A function or class from the table of those that tensors need.
enum class PickleGlobal : std::uint8_t {
  kRebuildTensor,
  kRebuildParameter,
  kOrderedDict,
  kStorageType,
};

struct PickleGlobalValue {
  PickleGlobal global = PickleGlobal::kOrderedDict;
  TorchType type = TorchType::kF32;  // kStorageType
};

// Bytes that lie outside the pickle, under the text `key`.
struct TorchStorage {
  std::uint64_t num_elements = 0;
  PickleId key = 0;
  TorchType type = TorchType::kF32;
};

// A view into a storage; offset and strides in elements. Whether it stays inside is for its reader
// to check.
struct TorchTensor {
  std::uint64_t offset = 0;
  PickleId storage = 0;
  PickleId sizes = 0;    // a tuple of integers that are not negative
  PickleId strides = 0;  // the same, of the same length
};

using PickleValue = std::variant<PickleNone,
                                 bool,
                                 std::int64_t,
                                 double,
                                 std::string_view,
                                 PickleTuple,
                                 PickleList,
                                 PickleDict,
                                 PickleGlobalValue,
                                 TorchStorage,
                                 TorchTensor>;

// The values of a pickle and the one that it stands for. Texts point into the bytes that were
// parsed.
struct Pickle {
  std::vector<PickleValue> values;
  PickleId root = 0;

  // The value if it is a T, or nullptr.
  template <typename T>
  [[nodiscard]] const T* get_if(PickleId id) const {
    return std::get_if<T>(&values[id]);
  }

  // The numbers of a TorchTensor's sizes or strides.
  [[nodiscard]] std::vector<std::uint64_t> sizes(PickleId tuple) const;
};

// Protocols 2 to 5. Time and memory are proportional to the size of `bytes` (about 40 bytes a byte
// at worst), whatever they hold; nothing recurses. Errors, kInput, saying where: an opcode or
// global that tensors in dicts do not need (by name), arguments of the wrong type, a stack or memo
// that lacks what is asked of it, an end without STOP.
Pickle parse_pickle(std::span<const std::byte> bytes);

}  // namespace quantmill
