// Elementwise ops: sums, scalings, conversions, bounds, gates, dropout and jitter. All throw ShapeError.
#pragma once

#include <utility>
#include <vector>

#include "witan/autograd/tape.h"
#include "witan/kernels/pointwise/dropout.h"

namespace witan::ops {

Var add(Tape& tape, const Var& a, const Var& b);     // a, b [..] of one shape and dtype -> a + b
Var scale(Tape& tape, const Var& x, double factor);  // x [..] -> factor * x
// The same, written over x, and its gradient over y's, where there is no other reference: move x in.
Var scale_over(Tape& tape, Var x, double factor);
Var cast(Tape& tape, const Var& x, DType dtype);  // floating to floating; the gradient is cast back
Var sum(Tape& tape, const Var& x);                // x [..] -> [1] accumulator dtype

// sum_i factor_i * x_i of scalars [1] of one dtype: a loss and its auxiliary losses. At least one term.
Var weighted_sum(Tape& tape, const std::vector<std::pair<Var, double>>& terms);

// x [..] -> [..], clamped to [-bound, bound];  bound above 0. The gradient is 0 where x is out of bounds.
Var clamp(Tape& tape, const Var& x, double bound);

// The soft cap of logits:  x [..] -> cap tanh(scale x / cap). Written over x if it has no other reference: move x in.
Var soft_cap(Tape& tape, Var x, double scale, double cap);

// A tensor times a learned factor.
struct ScaledTerm {
  Var x;  // [..]
  Var w;  // [1] of x's dtype; undefined: 1
};

// a.w a.x + b.w b.x;  both x of one shape and dtype. If b.x is undefined, its term is left out.
Var scaled_sum(Tape& tape, const ScaledTerm& a, const ScaledTerm& b = {});

// A gate for each row:  y = sigmoid(gate) x;  x [.., D], gate [.., 1] of x's dtype -> [.., D]
Var row_gate(Tape& tape, const Var& x, const Var& gate);

// A gate for each element:  y = sigmoid(gate) x;  x, gate [..] of one dtype -> [..]
Var sigmoid_gate(Tape& tape, const Var& x, const Var& gate);

// x [..] floating, contiguous -> [..];  mathematics in kernels/pointwise/dropout.h. Nothing is saved: the backward
// draws the mask again, and must find the same iteration in how.step. Returns x itself if how.p is 0.
Var dropout(Tape& tape, const Var& x, const kernels::Dropout& how);

// Throws ShapeError unless p is in [0, 1) and, for p above 0, the step is defined.
void check_dropout(const char* op, const kernels::Dropout& how);

// x [..], floating and contiguous, times noise in [1 - eps, 1 + eps), eps below 1, or with noise in [-eps, eps) added
// -> [..];  mathematics in kernels/pointwise/dropout.h. Returns x itself if eps is 0.
Var jitter(Tape& tape, const Var& x, const kernels::Dropout& where, const kernels::Jitter& noise);

}  // namespace witan::ops
