#include "pipeline/arranged.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace quantmill {

namespace {

constexpr std::size_t kTile = 32;  // elements a side: what is read and written stays in the cache

std::vector<std::uint64_t> offsets(const std::vector<AxisStep>& steps,
                                   std::uint64_t first,
                                   std::uint64_t count,
                                   std::uint64_t element_bytes) {
  std::vector<std::uint64_t> result(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    result[i] = Arrangement::offset(steps, first + i) * element_bytes;
  }
  return result;
}

template <std::size_t kBytes>
void turn(const std::byte* from, std::size_t rows, std::size_t cols, std::byte* to) {
  for (std::size_t row = 0; row < rows; row += kTile) {
    for (std::size_t col = 0; col < cols; col += kTile) {
      for (std::size_t r = row; r < std::min(row + kTile, rows); ++r) {
        for (std::size_t c = col; c < std::min(col + kTile, cols); ++c) {
          std::memcpy(to + (c * rows + r) * kBytes, from + (r * cols + c) * kBytes, kBytes);
        }
      }
    }
  }
}

void turn(std::uint64_t element_bytes,
          const std::byte* from,
          std::size_t rows,
          std::size_t cols,
          std::byte* to) {
  switch (element_bytes) {
    case 1:
      return turn<1>(from, rows, cols, to);
    case 2:
      return turn<2>(from, rows, cols, to);
    case 4:
      return turn<4>(from, rows, cols, to);
    case 8:
      return turn<8>(from, rows, cols, to);
    default:
      throw Error(ErrorCode::kInternal, "internal fault: elements of an odd size are turned");
  }
}

// Puts pieces together that follow each other both in memory and in the file.
class Joiner {
 public:
  Joiner(const ArrangedPart& part, const Emit& emit) : part_(part), emit_(emit) {}

  void add(std::uint64_t offset, const std::byte* bytes, std::size_t size) {
    if (size_ > 0 && offset == offset_ + size_ && bytes == bytes_ + size_) {
      size_ += size;
      return;
    }
    flush();
    offset_ = offset;
    bytes_ = bytes;
    size_ = size;
  }

  void flush() {
    if (size_ > 0) {
      emit_(part_.shard, part_.file_offset + offset_, {bytes_, size_});
    }
    size_ = 0;
  }

 private:
  const ArrangedPart& part_;
  const Emit& emit_;
  std::uint64_t offset_ = 0;
  const std::byte* bytes_ = nullptr;
  std::size_t size_ = 0;
};

// Whether neighbours along these digits are neighbours in the tensor.
bool is_fastest(const std::vector<AxisStep>& steps) {
  for (std::size_t i = steps.size(); i-- > 0;) {
    if (steps[i].size > 1) {
      return steps[i].stride == 1;
    }
  }
  return false;
}

}  // namespace

void emit_arranged(const ArrangedPart& part,
                   const PartRange& range,
                   std::span<const std::byte> bytes,
                   std::vector<std::byte>& scratch,
                   const Emit& emit) {
  const std::uint64_t element = part.element_bytes();
  check_invariant(bytes.size() == range.rows * range.cols * element, "a matrix of another size");
  const std::vector<std::uint64_t> rows =
      offsets(part.arrangement.rows, range.row, range.rows, element);
  const std::vector<std::uint64_t> cols =
      offsets(part.arrangement.cols, range.col, range.cols, element);
  const bool turns = is_fastest(part.arrangement.rows) && range.rows > 1;
  if (turns) {
    scratch.resize(bytes.size());
    turn(element, bytes.data(), range.rows, range.cols, scratch.data());
    bytes = scratch;
  }
  const std::vector<std::uint64_t>& slow = turns ? cols : rows;
  const std::vector<std::uint64_t>& fast = turns ? rows : cols;
  std::vector<std::size_t> runs;  // where one ends, along the fast side
  for (std::size_t i = 1; i <= fast.size(); ++i) {
    if (i == fast.size() || fast[i] != fast[i - 1] + element) {
      runs.push_back(i);
    }
  }
  Joiner joiner(part, emit);
  for (std::size_t i = 0; i < slow.size(); ++i) {
    std::size_t begin = 0;
    for (const std::size_t end : runs) {
      joiner.add(slow[i] + fast[begin],
                 bytes.data() + (i * fast.size() + begin) * element,
                 (end - begin) * element);
      begin = end;
    }
  }
  joiner.flush();
}

}  // namespace quantmill
