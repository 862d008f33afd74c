#pragma once

// Sends the elements of a matrix where an arrangement puts them, in pieces as large as lie
// together.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "plan/arrangement.h"

namespace quantmill {

// Receives finished bytes: they belong at `file_offset` of output shard `shard`.
using Emit = std::function<void(
    std::size_t shard, std::uint64_t file_offset, std::span<const std::byte> bytes)>;

// Rows and columns of a part, the first of which are these of the part.
struct PartRange {
  std::uint64_t row = 0;
  std::uint64_t rows = 0;
  std::uint64_t col = 0;
  std::uint64_t cols = 0;
};

// `bytes`: the elements of the range, row after row. `scratch` is used for what has to be turned.
void emit_arranged(const ArrangedPart& part,
                   const PartRange& range,
                   std::span<const std::byte> bytes,
                   std::vector<std::byte>& scratch,
                   const Emit& emit);

}  // namespace quantmill
