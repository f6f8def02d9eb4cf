// Moving blocks of a contiguous tensor, for tensors that are divided along a dim. x seen as [A, N, I]: A outer
// indices, the dim cut into N parts, I elements in a part of one outer index. Any one dtype; bytes are copied.
#pragma once

#include "witan/kernels/common/launch.h"

namespace witan::kernels {

// y[n,a,:] = x[a,n,:];  x [A, N, I], y [N, A, I]. Its inverse is itself.
void swap_blocks(Stream& stream, const Tensor& y, const Tensor& x);
WITAN_KERNEL_TWINS(swap_blocks)

// y[a,:] = x[a,part,:];  x [A, N, I], y [A, I]
void take_part(Stream& stream, const Tensor& y, const Tensor& x, int64_t part);
WITAN_KERNEL_TWINS(take_part)

// y[a,part,:] = x[a,:], zero for every other part;  x [A, I], y [A, N, I]
void place_part(Stream& stream, const Tensor& y, const Tensor& x, int64_t part);
WITAN_KERNEL_TWINS(place_part)

// y[a, y_first + i] = x[a, x_first + i] for 0 <= i < count;  x [A, M], y [A, N], whose other columns stay
struct Columns {
  int64_t y_first, x_first, count;
};
void copy_columns(Stream& stream, const Tensor& y, const Tensor& x, const Columns& columns);
WITAN_KERNEL_TWINS(copy_columns)

// y[i,:] = 0 for i >= sum(counts);  y [R, D], counts [N] int64
void zero_last_rows(Stream& stream, const Tensor& y, const Tensor& counts);
WITAN_KERNEL_TWINS(zero_last_rows)

}  // namespace witan::kernels
