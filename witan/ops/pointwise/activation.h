// Activations of feed-forward layers; mathematics in kernels/pointwise/activation.h. Throws ShapeError.
#pragma once

#include "witan/autograd/tape.h"
#include "witan/kernels/pointwise/activation.h"
#include "witan/tensor/ragged.h"

namespace witan::ops {

// h [.., 2F] = [gate | up], row_weight [rows] in the accumulator dtype or undefined -> [.., F]
// groups, if given, are the rows that exist: all other rows of the output and of the gradients of h and row_weight are
// undefined (uninitialised memory, perhaps NaN), so that later ops need the groups too.
Var swiglu(Tape& tape, const Var& h, const Var& row_weight, const RowGroups* groups = nullptr);

// SwiGLU with bounds and a sigmoid slope, as `form` says;  the rest as for swiglu
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
