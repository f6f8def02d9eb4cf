// linear() and grouped_linear() with operands in 8 bits (kernels/fp8/fp8.h), forward and backward; inputs, weights,
// outputs and gradients keep their dtypes. Gradients are those of the map as if nothing were rounded
// (straight-through). Backward keeps the rows by columns, a byte a number, not the rows. `quantiser`: how operands are
// scaled; null: blockwise in e4m3, with copies of w made for each use. Throws ShapeError.
#pragma once

#include <memory>

#include "witan/autograd/tape.h"
#include "witan/ops/fp8/fp8_quantiser.h"
#include "witan/tensor/ragged.h"

namespace witan::ops {

// y = x w^T;  x [.., K], w [N, K] -> [.., N];  K and N are multiples of kernels::kFp8Multiple.
Var fp8_linear(Tape& tape, const Var& x, const Var& w, const std::shared_ptr<const Fp8Quantiser>& quantiser = nullptr);

// y[i,:] = w[e] rows[i,:], as grouped_linear() has it; K and N as above.
Var fp8_grouped_linear(Tape& tape, const Var& rows, const RowGroups& groups, const Var& w,
                       const std::shared_ptr<const Fp8Quantiser>& quantiser = nullptr);

}  // namespace witan::ops
