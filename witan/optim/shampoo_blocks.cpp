#include "witan/optim/shampoo_blocks.h"

#include <algorithm>
#include <utility>

namespace witan {

std::vector<ShampooBlock> shampoo_blocks(int64_t rows, int64_t columns, int64_t most) {
  std::vector<ShampooBlock> blocks;
  int64_t at = 0;
  for (int64_t row = 0; row < rows; row += most) {
    for (int64_t column = 0; column < columns; column += most) {
      ShampooBlock block{row, std::min(most, rows - row), column, std::min(most, columns - column), -1, -1};
      if (block.rows > 1) block.left_at = std::exchange(at, at + block.rows * block.rows);
      if (block.columns > 1 || block.rows == 1) block.right_at = std::exchange(at, at + block.columns * block.columns);
      blocks.push_back(block);
    }
  }
  return blocks;
}

int64_t shampoo_factor_elements(int64_t rows, int64_t columns, int64_t most) {
  int64_t elements = 0;
  for (const ShampooBlock& block : shampoo_blocks(rows, columns, most)) {
    if (block.left_at >= 0) elements += block.rows * block.rows;
    if (block.right_at >= 0) elements += block.columns * block.columns;
  }
  return elements;
}

}  // namespace witan
