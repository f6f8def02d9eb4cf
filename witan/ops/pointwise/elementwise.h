// Sums, scalings and conversions. Throws ShapeError.
#pragma once

#include <utility>
#include <vector>

#include "witan/autograd/tape.h"

namespace witan::ops {

Var add(Tape& tape, const Var& a, const Var& b);     // a, b [..] of one shape and dtype -> a + b
Var scale(Tape& tape, const Var& x, double factor);  // x [..] -> factor * x
Var cast(Tape& tape, const Var& x, DType dtype);     // floating to floating; the gradient is cast back
Var sum(Tape& tape, const Var& x);                   // x [..] -> [1] accumulator dtype

// sum_i factor_i * x_i of scalars [1] of one dtype: a loss and its auxiliary losses. At least one term.
Var weighted_sum(Tape& tape, const std::vector<std::pair<Var, double>>& terms);

}  // namespace witan::ops
