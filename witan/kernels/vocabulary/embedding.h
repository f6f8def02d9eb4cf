// Rows of a table, by id.
// ids [..] int32, T of them   w [V, D] floating   y, dy [.., D] of w's dtype   dw [V, D] gradient dtype
// The V rows are those of the ids [begin, begin + V): all of them, or a rank's part of a table that is divided by rows.
// What other ids name is somebody else's: their y is 0, and their dy goes nowhere.
#pragma once

#include "witan/kernels/common/launch.h"

namespace witan::kernels {

// y[t] = w[ids[t] - begin]
void embedding_forward(Stream& stream, const Tensor& y, const Tensor& ids, const Tensor& w, int64_t begin = 0);
WITAN_KERNEL_TWINS(embedding_forward)

// dw[v] (=|+=) sum over the t with ids[t] = begin + v of dy[t]; overwriting zeroes the rows that no id names. The
// tokens are sorted by id (stable) into `order`, a workspace of [V + 1 + T] int32, so that each row has one writer and
// is summed in token order, in blocks of 64.
void embedding_backward(Stream& stream, const Tensor& dw, Write write, const Tensor& order, const Tensor& dy,
                        const Tensor& ids, int64_t begin = 0);
WITAN_KERNEL_TWINS(embedding_backward)

}  // namespace witan::kernels
