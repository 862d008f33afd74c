#include "stats/pickle.h"

#include <algorithm>
#include <array>
#include <bit>

#include <fmt/format.h>

#include "base/error.h"
#include "stats/pickle_machine.h"

namespace quantmill {

namespace {

struct TypeRow {
  TorchType type;
  std::size_t bytes;
  std::string_view name;
  std::string_view storage;  // class in module "torch"
};

constexpr std::array kTypes{
    TypeRow{TorchType::kF16, 2, "float16", "HalfStorage"},
    TypeRow{TorchType::kBf16, 2, "bfloat16", "BFloat16Storage"},
    TypeRow{TorchType::kF32, 4, "float32", "FloatStorage"},
    TypeRow{TorchType::kF64, 8, "float64", "DoubleStorage"},
    TypeRow{TorchType::kU8, 1, "uint8", "ByteStorage"},
    TypeRow{TorchType::kI8, 1, "int8", "CharStorage"},
    TypeRow{TorchType::kI16, 2, "int16", "ShortStorage"},
    TypeRow{TorchType::kI32, 4, "int32", "IntStorage"},
    TypeRow{TorchType::kI64, 8, "int64", "LongStorage"},
    TypeRow{TorchType::kBool, 1, "bool", "BoolStorage"},
};

const TypeRow& type_row(TorchType type) {
  const auto* row =
      std::find_if(kTypes.begin(), kTypes.end(), [&](const TypeRow& r) { return r.type == type; });
  check_invariant(row != kTypes.end(), "every torch type is in the table");
  return *row;
}

using Handler = void (*)(PickleMachine&);

struct OpcodeRow {
  unsigned char code;
  std::string_view name;
  Handler handler;  // nullptr: refused
};

// Every opcode of protocols 0 to 5.
constexpr std::array kOpcodes{
    OpcodeRow{
        0x80, "PROTO", [](PickleMachine& m) { m.check_protocol(m.take_number<std::uint8_t>()); }},
    OpcodeRow{0x95, "FRAME", [](PickleMachine& m) { m.take_number<std::uint64_t>(); }},
    OpcodeRow{'.', "STOP", [](PickleMachine& m) { m.stop(); }},
    OpcodeRow{'(', "MARK", [](PickleMachine& m) { m.mark(); }},
    OpcodeRow{'N', "NONE", [](PickleMachine& m) { m.push(PickleNone{}); }},
    OpcodeRow{0x88, "NEWTRUE", [](PickleMachine& m) { m.push(true); }},
    OpcodeRow{0x89, "NEWFALSE", [](PickleMachine& m) { m.push(false); }},
    OpcodeRow{'J',
              "BININT",
              [](PickleMachine& m) { m.push(std::int64_t{m.take_number<std::int32_t>()}); }},
    OpcodeRow{'K',
              "BININT1",
              [](PickleMachine& m) { m.push(std::int64_t{m.take_number<std::uint8_t>()}); }},
    OpcodeRow{'M',
              "BININT2",
              [](PickleMachine& m) { m.push(std::int64_t{m.take_number<std::uint16_t>()}); }},
    OpcodeRow{0x8a, "LONG1", [](PickleMachine& m) { m.push_long(m.take_number<std::uint8_t>()); }},
    OpcodeRow{'G',
              "BINFLOAT",
              [](PickleMachine& m) {
                m.push(std::bit_cast<double>(__builtin_bswap64(m.take_number<std::uint64_t>())));
              }},
    OpcodeRow{'X',
              "BINUNICODE",
              [](PickleMachine& m) { m.push(m.take_text(m.take_number<std::uint32_t>())); }},
    OpcodeRow{0x8c,
              "SHORT_BINUNICODE",
              [](PickleMachine& m) { m.push(m.take_text(m.take_number<std::uint8_t>())); }},
    OpcodeRow{0x8d,
              "BINUNICODE8",
              [](PickleMachine& m) { m.push(m.take_text(m.take_number<std::uint64_t>())); }},
    OpcodeRow{')', "EMPTY_TUPLE", [](PickleMachine& m) { m.push(PickleTuple{}); }},
    OpcodeRow{0x85, "TUPLE1", [](PickleMachine& m) { m.push_tuple(1); }},
    OpcodeRow{0x86, "TUPLE2", [](PickleMachine& m) { m.push_tuple(2); }},
    OpcodeRow{0x87, "TUPLE3", [](PickleMachine& m) { m.push_tuple(3); }},
    OpcodeRow{'t', "TUPLE", [](PickleMachine& m) { m.push(PickleTuple{m.pop_to_mark()}); }},
    OpcodeRow{']', "EMPTY_LIST", [](PickleMachine& m) { m.push(PickleList{}); }},
    OpcodeRow{'a', "APPEND", [](PickleMachine& m) { m.append({m.pop()}); }},
    OpcodeRow{'e', "APPENDS", [](PickleMachine& m) { m.append(m.pop_to_mark()); }},
    OpcodeRow{'}', "EMPTY_DICT", [](PickleMachine& m) { m.push(PickleDict{}); }},
    OpcodeRow{'s',
              "SETITEM",
              [](PickleMachine& m) {
                const PickleId value = m.pop();
                m.set_items({m.pop(), value});
              }},
    OpcodeRow{'u', "SETITEMS", [](PickleMachine& m) { m.set_items(m.pop_to_mark()); }},
    OpcodeRow{'q', "BINPUT", [](PickleMachine& m) { m.remember(m.take_number<std::uint8_t>()); }},
    OpcodeRow{
        'r', "LONG_BINPUT", [](PickleMachine& m) { m.remember(m.take_number<std::uint32_t>()); }},
    OpcodeRow{0x94, "MEMOIZE", [](PickleMachine& m) { m.remember_next(); }},
    OpcodeRow{'h', "BINGET", [](PickleMachine& m) { m.recall(m.take_number<std::uint8_t>()); }},
    OpcodeRow{
        'j', "LONG_BINGET", [](PickleMachine& m) { m.recall(m.take_number<std::uint32_t>()); }},
    OpcodeRow{'c',
              "GLOBAL",
              [](PickleMachine& m) {
                const std::string_view module = m.take_line();
                m.push_global(module, m.take_line());
              }},
    OpcodeRow{0x93, "STACK_GLOBAL", [](PickleMachine& m) { m.push_stack_global(); }},
    OpcodeRow{'Q', "BINPERSID", [](PickleMachine& m) { m.push_storage(); }},
    OpcodeRow{'R', "REDUCE", [](PickleMachine& m) { m.call(); }},
    OpcodeRow{'b', "BUILD", [](PickleMachine& m) { m.build(); }},
    OpcodeRow{'0', "POP", nullptr},
    OpcodeRow{'1', "POP_MARK", nullptr},
    OpcodeRow{'2', "DUP", nullptr},
    OpcodeRow{'F', "FLOAT", nullptr},
    OpcodeRow{'I', "INT", nullptr},
    OpcodeRow{'L', "LONG", nullptr},
    OpcodeRow{0x8b, "LONG4", nullptr},
    OpcodeRow{'S', "STRING", nullptr},
    OpcodeRow{'T', "BINSTRING", nullptr},
    OpcodeRow{'U', "SHORT_BINSTRING", nullptr},
    OpcodeRow{'B', "BINBYTES", nullptr},
    OpcodeRow{'C', "SHORT_BINBYTES", nullptr},
    OpcodeRow{0x8e, "BINBYTES8", nullptr},
    OpcodeRow{0x96, "BYTEARRAY8", nullptr},
    OpcodeRow{0x97, "NEXT_BUFFER", nullptr},
    OpcodeRow{0x98, "READONLY_BUFFER", nullptr},
    OpcodeRow{'V', "UNICODE", nullptr},
    OpcodeRow{'l', "LIST", nullptr},
    OpcodeRow{'d', "DICT", nullptr},
    OpcodeRow{0x8f, "EMPTY_SET", nullptr},
    OpcodeRow{0x90, "ADDITEMS", nullptr},
    OpcodeRow{0x91, "FROZENSET", nullptr},
    OpcodeRow{'g', "GET", nullptr},
    OpcodeRow{'p', "PUT", nullptr},
    OpcodeRow{'P', "PERSID", nullptr},
    OpcodeRow{'i', "INST", nullptr},
    OpcodeRow{'o', "OBJ", nullptr},
    OpcodeRow{0x81, "NEWOBJ", nullptr},
    OpcodeRow{0x92, "NEWOBJ_EX", nullptr},
    OpcodeRow{0x82, "EXT1", nullptr},
    OpcodeRow{0x83, "EXT2", nullptr},
    OpcodeRow{0x84, "EXT4", nullptr},
};

}  // namespace

std::size_t torch_type_bytes(TorchType type) {
  return type_row(type).bytes;
}

std::string_view torch_type_name(TorchType type) {
  return type_row(type).name;
}

std::vector<std::uint64_t> Pickle::sizes(PickleId tuple) const {
  std::vector<std::uint64_t> result;
  for (const PickleId item : std::get<PickleTuple>(values[tuple]).items) {
    result.push_back(static_cast<std::uint64_t>(std::get<std::int64_t>(values[item])));
  }
  return result;
}

std::optional<TorchType> torch_storage_type(std::string_view class_name) {
  const auto* row = std::find_if(
      kTypes.begin(), kTypes.end(), [&](const TypeRow& r) { return r.storage == class_name; });
  return row == kTypes.end() ? std::nullopt : std::optional(row->type);
}

Pickle parse_pickle(std::span<const std::byte> bytes) {
  PickleMachine machine(bytes);
  while (!machine.done()) {
    const unsigned char code = machine.take_opcode();
    const auto* row = std::find_if(
        kOpcodes.begin(), kOpcodes.end(), [&](const OpcodeRow& r) { return r.code == code; });
    if (row == kOpcodes.end()) {
      machine.refuse(fmt::format("there is no pickle opcode 0x{:02x}", code));
    }
    if (row->handler == nullptr) {
      machine.refuse(fmt::format(
          "the opcode {} is refused; tensors and integers in dicts do not need it", row->name));
    }
    row->handler(machine);
  }
  return machine.finish();
}

}  // namespace quantmill
