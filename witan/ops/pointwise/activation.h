// Activations of feed-forward layers; mathematics in kernels/pointwise/activation.h. Throws ShapeError.
#pragma once

#include "witan/autograd/tape.h"
#include "witan/kernels/pointwise/activation.h"
#include "witan/tensor/ragged.h"

namespace witan::ops {

// h [.., 2F] = [gate | up], row_weight [rows] in the accumulator dtype or undefined -> [.., F]
// groups, if any, names the rows that exist: in the output and in the gradients of h and row_weight all other rows are
// undefined (uninitialised memory, NaN perhaps), and whoever reads on must know the groups too.
Var swiglu(Tape& tape, const Var& h, const Var& row_weight, const RowGroups* groups = nullptr);

// SwiGLU in another form;  the rest as for swiglu
Var clamped_swiglu(Tape& tape, const Var& h, const Var& row_weight, const RowGroups* groups, const SwigluForm& form);

// h [.., F] -> [.., F];  the rest as for swiglu
Var squared_relu(Tape& tape, const Var& h, const Var& row_weight, const RowGroups* groups = nullptr);

// h [.., F] -> [.., F];  the rest as for swiglu
Var silu(Tape& tape, const Var& h, const Var& row_weight, const RowGroups* groups = nullptr);

// h [.., F] -> [.., F];  the rest as for swiglu
Var gelu(Tape& tape, const Var& h, const Var& row_weight, const RowGroups* groups = nullptr,
         GeluKind kind = GeluKind::exact);

// h [.., 2F] = [gate | up] -> [.., F];  the rest as for swiglu
Var squared_reglu(Tape& tape, const Var& h, const Var& row_weight, const RowGroups* groups = nullptr);

// h [.., 2F] = [gate | up] -> [.., F];  the rest as for swiglu
Var geglu(Tape& tape, const Var& h, const Var& row_weight, const RowGroups* groups = nullptr,
          GeluKind kind = GeluKind::exact);

}  // namespace witan::ops
