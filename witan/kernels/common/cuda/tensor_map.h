// Tensor maps: how the copy engine of Hopper and later sees a matrix. A kernel takes them by value, as
// `const __grid_constant__ CUtensorMap`; a captured graph keeps its own.
#pragma once

#include <cuda.h>

#include "witan/tensor/tensor.h"

namespace witan::kernels::cuda {

// Whether maps of this matrix of bfloat16, float16 or float8, or of these matrices [slices, rows, columns], can be
// made: strides and address in whole 16 bytes, and nothing empty.
bool can_map(const Tensor& matrices);

// Boxes of `rows` (at most 256) by 64 columns, in shared memory rows of 128 bytes with the 128-byte
// swizzle. Coordinates are (column, row, slice); outside the tensor there are zeros. Columns are of 16 bits: two
// float8 are one.
CUtensorMap tensor_map(const Tensor& matrices, int rows);

// Matrices [slices, rows, columns] of 16-bit numbers outside of a tensor, as in scratch memory, of contiguous rows.
struct MappedMatrices {
  const void* data;
  int64_t slices, rows, columns;
  int64_t rows_apart = 0;  // from a matrix to the next; 0: `rows`
};
CUtensorMap tensor_map(const MappedMatrices& matrices, int rows);

}  // namespace witan::kernels::cuda
