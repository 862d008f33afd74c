#pragma once

// Blocks of a matrix that share one scale, and the largest magnitude of each. What a format makes
// of a magnitude is in its own header.

#include <cstddef>

#include "device/context.h"
#include "kernels/matrix.h"

namespace quantmill {

// Blocks of rows x cols from the matrix's first element on; those at the lower and the right edge
// may be cut. 1 x all columns: one block per row; as many rows as the matrix or more, and all
// columns: one block.
struct BlockGrid {
  std::size_t rows = 1;
  std::size_t cols = 1;
  // Where a kernel is given only some rows of a larger matrix: the number of the first of them.
  // Blocks are counted from row 0 of the larger one, and a matrix of scales is that of the larger
  // one.
  std::size_t first_row = 0;
};

// Blocks side by side, and one above the other down to the last of `num_rows` rows from the grid's
// first_row on.
constexpr std::size_t num_block_cols(const BlockGrid& grid, std::size_t num_cols) {
  return num_cols / grid.cols + (num_cols % grid.cols != 0 ? 1 : 0);
}

constexpr std::size_t num_block_rows(const BlockGrid& grid, std::size_t num_rows) {
  const std::size_t end = grid.first_row + num_rows;
  return end / grid.rows + (end % grid.rows != 0 ? 1 : 0);
}

// Raises amax [at least num_block_rows, num_block_cols] to the largest magnitude of the values of
// each block, so that a matrix can come in pieces; the caller starts with zeros. values must be
// finite.
void block_amax(const Context& context,
                ConstFloatMatrix values,
                const BlockGrid& grid,
                FloatMatrix amax);

}  // namespace quantmill
