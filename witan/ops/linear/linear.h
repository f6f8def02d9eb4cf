// Affine maps of the last dim. Throws ShapeError.
#pragma once

#include <vector>

#include "witan/autograd/tape.h"

namespace witan::ops {

// y = x w^T + bias;  x [.., K], w [N, K], bias [N] or undefined -> [.., N]
Var linear(Tape& tape, const Var& x, const Var& w, const Var& bias);

// y = x [w1; w2; …]^T, the weights one below the other;  x [.., K] contiguous, w [N, K] each -> [.., N1 + N2 + …].
// Weights that lie side by side, and gradients that do, are used as one matrix.
Var joined_linear(Tape& tape, const Var& x, const std::vector<Var>& ws);

// y = x + bias;  x [.., N] contiguous, bias [N] -> [.., N]. For a bias that cannot be fused with its product.
Var add_bias(Tape& tape, const Var& x, const Var& bias);

// y = x w^T in the accumulator dtype of x, which is w's dtype;  x [.., K], w [N, K] -> [.., N]. The backward keeps x in
// its own dtype.
Var wide_linear(Tape& tape, const Var& x, const Var& w);

// A block-diagonal map: block i of y's columns is block i of x's columns times block i of w's rows, transposed.
// x [.., g K] contiguous, w [g N, K] -> [.., g N]
Var block_linear(Tape& tape, const Var& x, const Var& w, int64_t blocks);

// Adds the product of two low-rank factors to a linear map's output (Hu et al., "LoRA", 2021, arXiv:2106.09685):
// y[.., first + n] += scale (x a^T) b^T [.., n], in place: no other op may need the former y.
// y [.., M] contiguous, x [.., K], a [r, K], b [N, r] of one dtype -> [.., M]. Backward keeps x and scale x a^T.
Var add_low_rank(Tape& tape, Var y, const Var& x, const Var& a, const Var& b, double scale, int64_t first = 0);

// The squares of a matrix's rows, |w[n]|^2 and |w[n] + scale b[n] a|^2: [2, N] in the accumulator dtype. If ranks
// divide K, this rank's summands. w [N, K], a [r, K], b [N, r] of one dtype.
Tensor row_squares(Stream& stream, const Tensor& w, const Tensor& a, const Tensor& b, double scale);

// The magnitudes to which the rows of an adapted matrix are rescaled (Liu et al., "DoRA", 2024, arXiv:2402.09353).
struct Magnitude {
  Var change;         // [n] of y's dtype: the trained part of the magnitude |w[n]| + change[n]
  Tensor squares;     // [2, n] of all K, from row_squares()
  int64_t first = 0;  // the column of y that row 0 makes
};

// y[.., first + n] times (|w[n]| + change[n]) / |w[n] + scale b[n] a|, for y = x (w + scale b a)^T [.., N], contiguous;
// columns without a magnitude stay as they are. -> [.., N]. The divisor counts as a constant: it passes no gradient on
// (section 4.3 of the paper). The backward keeps y if a change is trained.
Var rescale_columns(Tape& tape, const Var& y, const std::vector<Magnitude>& magnitudes);

}  // namespace witan::ops
