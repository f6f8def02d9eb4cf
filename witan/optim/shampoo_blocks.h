// How a matrix is cut into blocks for Shampoo, and where the factors of each block are in the flat state of the matrix.
#pragma once

#include <cstdint>
#include <vector>

namespace witan {

// Rows [row, row + rows) and columns [column, column + columns) of a matrix. A block has a factor for each of its dims
// that is longer than 1: left [rows, rows], right [columns, columns]; a number has the right one.
struct ShampooBlock {
  int64_t row, rows, column, columns;
  int64_t left_at, right_at;  // where its factors begin; -1: it has none

  int order() const { return (left_at >= 0) + (right_at >= 0); }
};

// Blocks of at most `most` rows and columns, the last of a row or column as large as is left (torch.split); row by row.
std::vector<ShampooBlock> shampoo_blocks(int64_t rows, int64_t columns, int64_t most);
// Of all factors of a matrix.
int64_t shampoo_factor_elements(int64_t rows, int64_t columns, int64_t most);

}  // namespace witan
