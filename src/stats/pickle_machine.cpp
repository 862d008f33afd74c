#include "stats/pickle_machine.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"

namespace quantmill {

namespace {

// Printable part of a name from outside, for messages.
std::string shown(std::string_view text) {
  std::string result;
  for (const char c : text.substr(0, 80)) {
    result += c >= 0x20 && c < 0x7f ? c : '?';
  }
  return result;
}

}  // namespace

unsigned char PickleMachine::take_opcode() {
  opcode_position_ = position_;
  return take_number<std::uint8_t>();
}

Pickle PickleMachine::finish() {
  const PickleId root = pop();
  if (!stack_.empty() || !marks_.empty()) {
    refuse("values are left over at its end");
  }
  return Pickle{std::move(values_), root};
}

void PickleMachine::refuse(std::string_view why) const {
  throw Error(ErrorCode::kInput, fmt::format("pickle, byte {}: {}", opcode_position_, why));
}

std::span<const std::byte> PickleMachine::take(std::uint64_t size) {
  const std::size_t left = bytes_.size() - position_;
  if (size > left) {
    refuse(fmt::format("{} bytes are wanted, {} are left", size, left));
  }
  const auto taken = bytes_.subspan(position_, static_cast<std::size_t>(size));
  position_ += taken.size();
  return taken;
}

std::string_view PickleMachine::take_text(std::uint64_t size) {
  const auto taken = take(size);
  return {reinterpret_cast<const char*>(taken.data()), taken.size()};
}

std::string_view PickleMachine::take_line() {
  const auto rest = bytes_.subspan(position_);
  const auto end = std::find(rest.begin(), rest.end(), std::byte{'\n'});
  if (end == rest.end()) {
    refuse("a line has no end");
  }
  const std::string_view line = take_text(static_cast<std::uint64_t>(end - rest.begin()));
  ++position_;
  return line;
}

void PickleMachine::push(PickleValue value) {
  if (values_.size() >= kNothing) {
    refuse("too many values");
  }
  stack_.push_back(static_cast<PickleId>(values_.size()));
  values_.push_back(std::move(value));
}

PickleId PickleMachine::pop() {
  if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) {
    refuse("the stack lacks a value");
  }
  const PickleId id = stack_.back();
  stack_.pop_back();
  return id;
}

std::vector<PickleId> PickleMachine::pop_to_mark() {
  if (marks_.empty()) {
    refuse("the stack lacks a MARK");
  }
  const auto first = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
  std::vector<PickleId> items(first, stack_.end());
  stack_.erase(first, stack_.end());
  marks_.pop_back();
  return items;
}

template <typename T>
const T& PickleMachine::expect(PickleId id, std::string_view what) const {
  const T* value = std::get_if<T>(&values_[id]);
  if (value == nullptr) {
    refuse(fmt::format("{} is of the wrong type", what));
  }
  return *value;
}

template <typename T>
T& PickleMachine::top(std::string_view what) {
  const PickleId id = pop();
  stack_.push_back(id);
  expect<T>(id, what);
  return std::get<T>(values_[id]);
}

std::uint64_t PickleMachine::expect_size(PickleId id, std::string_view what) const {
  const auto value = expect<std::int64_t>(id, what);
  if (value < 0) {
    refuse(fmt::format("{} is {}", what, value));
  }
  return static_cast<std::uint64_t>(value);
}

// Checks a tuple of sizes and returns how many there are.
std::size_t PickleMachine::expect_sizes(PickleId id, std::string_view what) const {
  // Tensors may share one tuple, so its length must be bounded, or checking it each time would take
  // too long.
  constexpr std::size_t kMaxDimensions = 64;
  const auto& items = expect<PickleTuple>(id, what).items;
  if (items.size() > kMaxDimensions) {
    refuse(fmt::format("{} has {} dimensions", what, items.size()));
  }
  for (const PickleId item : items) {
    (void)expect_size(item, what);
  }
  return items.size();
}

void PickleMachine::check_protocol(unsigned protocol) const {
  if (protocol < 2 || protocol > 5) {
    refuse(fmt::format("protocol {} is not supported; 2 to 5 are", protocol));
  }
}

void PickleMachine::push_long(std::uint64_t size) {
  const auto digits = take(size);
  if (digits.size() > sizeof(std::int64_t)) {
    refuse("an integer does not fit 64 bits");
  }
  std::uint64_t value =
      !digits.empty() && (digits.back() & std::byte{0x80}) != std::byte{0} ? ~std::uint64_t{0} : 0;
  for (std::size_t i = digits.size(); i-- > 0;) {
    value = value << 8 | std::to_integer<std::uint64_t>(digits[i]);
  }
  push(static_cast<std::int64_t>(value));
}

void PickleMachine::push_tuple(std::size_t size) {
  PickleTuple tuple;
  tuple.items.resize(size);
  for (std::size_t i = size; i-- > 0;) {
    tuple.items[i] = pop();
  }
  push(std::move(tuple));
}

void PickleMachine::append(const std::vector<PickleId>& items) {
  auto& list = top<PickleList>("what is appended to").items;
  list.insert(list.end(), items.begin(), items.end());
}

void PickleMachine::set_items(const std::vector<PickleId>& items) {
  if (items.size() % 2 != 0) {
    refuse("a key has no value");
  }
  auto& dict = top<PickleDict>("what an item is set in").items;
  for (std::size_t i = 0; i < items.size(); i += 2) {
    dict.emplace_back(items[i], items[i + 1]);
  }
}

void PickleMachine::remember(std::uint64_t slot) {
  // A pickle numbers its slots from 0, so it has fewer than bytes.
  if (slot >= bytes_.size()) {
    refuse(fmt::format("there is no memo slot {}", slot));
  }
  const PickleId id = pop();
  stack_.push_back(id);
  const auto index = static_cast<std::size_t>(slot);
  if (index >= memo_.size()) {
    memo_.resize(index + 1, kNothing);
  }
  if (memo_[index] == kNothing) {
    ++next_slot_;
  }
  memo_[index] = id;
}

void PickleMachine::recall(std::uint64_t slot) {
  if (slot >= memo_.size() || memo_[static_cast<std::size_t>(slot)] == kNothing) {
    refuse(fmt::format("memo slot {} is empty", slot));
  }
  stack_.push_back(memo_[static_cast<std::size_t>(slot)]);
}

void PickleMachine::push_global(std::string_view module, std::string_view name) {
  if (module == "torch._utils" && name == "_rebuild_tensor_v2") {
    return push(PickleGlobalValue{PickleGlobal::kRebuildTensor, {}});
  }
  if (module == "torch._utils" && name == "_rebuild_parameter") {
    return push(PickleGlobalValue{PickleGlobal::kRebuildParameter, {}});
  }
  if (module == "collections" && name == "OrderedDict") {
    return push(PickleGlobalValue{PickleGlobal::kOrderedDict, {}});
  }
  const std::optional<TorchType> type = torch_storage_type(name);
  if (module == "torch" && type) {
    return push(PickleGlobalValue{PickleGlobal::kStorageType, *type});
  }
  refuse(fmt::format("the global {}.{} is refused; save dicts of plain tensors and integers",
                     shown(module),
                     shown(name)));
}

void PickleMachine::push_stack_global() {
  const PickleId name = pop();
  const PickleId module = pop();
  push_global(expect<std::string_view>(module, "a module's name"),
              expect<std::string_view>(name, "a global's name"));
}

// ("storage", type, key, location, number of elements): torch/serialization.py, persistent_id.
void PickleMachine::push_storage() {
  const auto& items = expect<PickleTuple>(pop(), "a persistent id").items;
  if (items.size() != 5 || expect<std::string_view>(items[0], "a persistent id") != "storage") {
    refuse("a persistent id is not that of a storage");
  }
  const auto type = expect<PickleGlobalValue>(items[1], "a storage's type");
  expect<std::string_view>(items[2], "a storage's key");
  if (type.global != PickleGlobal::kStorageType) {
    refuse("a storage's type is of the wrong type");
  }
  push(TorchStorage{expect_size(items[4], "a storage's size"), items[2], type.type});
}

// Calls to the few globals there are; the value takes the place of global and arguments.
void PickleMachine::call() {
  const auto& arguments = expect<PickleTuple>(pop(), "the arguments of a call").items;
  const auto function = expect<PickleGlobalValue>(pop(), "what is called");
  switch (function.global) {
    case PickleGlobal::kRebuildTensor:
      return rebuild_tensor(arguments);
    case PickleGlobal::kRebuildParameter:
      // (data, requires_grad, backward_hooks)
      if (arguments.size() != 3) {
        refuse("_rebuild_parameter has the wrong number of arguments");
      }
      expect<TorchTensor>(arguments[0], "the data of a parameter");
      return stack_.push_back(arguments[0]);
    case PickleGlobal::kOrderedDict:
      if (!arguments.empty()) {
        refuse("OrderedDict is called with arguments");
      }
      return push(PickleDict{});
    case PickleGlobal::kStorageType:
      break;
  }
  refuse("a storage's type is called");
}

// (storage, offset, sizes, strides, requires_grad, backward_hooks[, metadata]): torch/_utils.py
void PickleMachine::rebuild_tensor(const std::vector<PickleId>& arguments) {
  if (arguments.size() != 6 && arguments.size() != 7) {
    refuse("_rebuild_tensor_v2 has the wrong number of arguments");
  }
  expect<TorchStorage>(arguments[0], "a tensor's storage");
  const std::uint64_t offset = expect_size(arguments[1], "a tensor's offset");
  if (expect_sizes(arguments[2], "a tensor's shape") !=
      expect_sizes(arguments[3], "a tensor's strides")) {
    refuse("a tensor has not as many strides as dimensions");
  }
  push(TorchTensor{offset, arguments[0], arguments[2], arguments[3]});
}

// An OrderedDict may carry attributes (a state_dict's _metadata); they say nothing about tensors.
void PickleMachine::build() {
  pop();
  top<PickleDict>("what attributes are set on");
}

}  // namespace quantmill
