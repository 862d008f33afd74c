#pragma once

// Private to pickle*.cpp: the state that a pickle's opcodes work on.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "base/checked.h"
#include "stats/pickle.h"

namespace quantmill {

// The stack machine that a pickle is a program for. Every member that takes or expects something
// refuses (kInput) what is not there or of another type. Handlers of opcodes are in pickle.cpp.
class PickleMachine {
 public:
  explicit PickleMachine(std::span<const std::byte> bytes) : bytes_(bytes) {}

  [[nodiscard]] bool done() const { return done_; }

  // The code of the next opcode; refusals name its position.
  unsigned char take_opcode();
  // After STOP: the one value on the stack, and all that it is made of.
  Pickle finish();

  [[noreturn]] void refuse(std::string_view why) const;
  template <typename T>
  T take_number();
  std::string_view take_text(std::uint64_t size);
  std::string_view take_line();

  void push(PickleValue value);
  PickleId pop();

  void mark() { marks_.push_back(stack_.size()); }

  std::vector<PickleId> pop_to_mark();

  void stop() { done_ = true; }

  void check_protocol(unsigned protocol) const;
  void push_long(std::uint64_t size);
  void push_tuple(std::size_t size);
  void push_global(std::string_view module, std::string_view name);
  void push_stack_global();
  void push_storage();
  void append(const std::vector<PickleId>& items);
  void set_items(const std::vector<PickleId>& items);
  void remember(std::uint64_t slot);

  void remember_next() { remember(next_slot_); }

  void recall(std::uint64_t slot);
  void call();
  void build();

 private:
  std::span<const std::byte> take(std::uint64_t size);
  template <typename T>
  const T& expect(PickleId id, std::string_view what) const;
  [[nodiscard]] std::uint64_t expect_size(PickleId id, std::string_view what) const;
  [[nodiscard]] std::size_t expect_sizes(PickleId id, std::string_view what) const;
  void rebuild_tensor(const std::vector<PickleId>& arguments);
  template <typename T>
  T& top(std::string_view what);

  static constexpr PickleId kNothing = std::numeric_limits<PickleId>::max();

  std::span<const std::byte> bytes_;
  std::size_t position_ = 0;
  std::size_t opcode_position_ = 0;
  bool done_ = false;
  std::vector<PickleValue> values_;
  std::vector<PickleId> stack_;
  std::vector<std::size_t> marks_;  // heights of the stack
  std::vector<PickleId> memo_;
  std::uint64_t next_slot_ = 0;  // what MEMOIZE uses: the number of slots in use
};

template <typename T>
T PickleMachine::take_number() {
  return load_little_endian<T>(take(sizeof(T)));
}

}  // namespace quantmill
