// Rows of a table, by id.
// ids [..] int32, T of them, each in [0, V)   w [V, D] floating   y, dy [.., D] of w's dtype   dw [V, D] gradient dtype
#pragma once

#include "witan/kernels/launch.h"

namespace witan::kernels {

// y[t] = w[ids[t]]
void embedding_forward(Stream& stream, const Tensor& y, const Tensor& ids, const Tensor& w);
WITAN_KERNEL_TWINS(embedding_forward)

// dw[v] (=|+=) sum over the t with ids[t] = v of dy[t]; overwriting zeroes the rows that no id names. The tokens are
// sorted by id (stable) into `order`, a workspace of [V + 1 + T] int32, so that each row has one writer and is summed
// in token order, in blocks of 64.
void embedding_backward(Stream& stream, const Tensor& dw, Write write, const Tensor& order, const Tensor& dy,
                        const Tensor& ids);
WITAN_KERNEL_TWINS(embedding_backward)

}  // namespace witan::kernels
