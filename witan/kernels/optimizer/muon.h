// Muon's updates of matrices before and after their orthogonalization (optim/newton_schulz.h), for many parameters at
// once. Values that change from step to step are read from `step`, as in kernels/optimizer/optimizer.h.
#pragma once

#include <span>
#include <vector>

#include "witan/kernels/common/launch.h"
#include "witan/kernels/common/step_report.h"

namespace witan::kernels {

// Flat tensors of equal size. value, remainder and gradient are those of an update (kernels/optimizer/optimizer.h),
// momentum has the accumulator dtype of value. direction and orthogonal are both of muon_direction_dtype() of value's,
// or both of its accumulator dtype.
struct MuonItem {
  Tensor value, remainder, momentum;  // written
  Tensor gradient;
  Tensor direction;   // written by muon_momentum
  Tensor orthogonal;  // what became of it: read by muon_update
  double weight_decay = 0;
  double scale = 1;  // of the orthogonal matrix
};
// In float16 the momentum of small gradients would be 0; bfloat16 has the range of float32.
constexpr DType muon_direction_dtype(DType value) {
  return value == DType::f16 ? DType::bf16 : value;
}
struct MuonArgs {
  double momentum = 0;
  bool nesterov = true;
  int64_t rate = step_value::learning_rate;
};

// A GPU finds the items in a table, int64 [items, kMuonColumns], which holds muon_table(items) and must be written
// before; undefined on the CPU. Items of one call have the same dtypes.
inline constexpr int64_t kMuonColumns = 10;
std::vector<int64_t> muon_table(std::span<const MuonItem> items);

// g = gradient_scale * gradient:  momentum = args.momentum momentum + g,  direction = g + args.momentum momentum with
// Nesterov's look ahead, else momentum. In a skipped step momentum stays and direction is 0.
void muon_momentum(Stream& stream, std::span<const MuonItem> items, const Tensor& table, const Tensor& step,
                   const MuonArgs& args);
WITAN_KERNEL_TWINS(muon_momentum)

// p = p - lr (scale orthogonal + weight_decay p), p as in kernels/optimizer/optimizer.h
void muon_update(Stream& stream, std::span<const MuonItem> items, const Tensor& table, const Tensor& step,
                 const MuonArgs& args);
WITAN_KERNEL_TWINS(muon_update)

// x[i] = x[i] / (margin ||x[i]||_F + eps);  x [n, E] floating, sums = square_sums(x) [n chunks_of(E), 2]
struct NormalizeArgs {
  double margin, eps;
};
void normalize_matrices(Stream& stream, const Tensor& x, const Tensor& sums, const NormalizeArgs& args);
WITAN_KERNEL_TWINS(normalize_matrices)

// squares[r] = sum_k x[r,k]^2;  x [R, K] floating, squares [R] float64
void row_squares(Stream& stream, const Tensor& squares, const Tensor& x);
WITAN_KERNEL_TWINS(row_squares)

// NorMuon's second moment of rows (Li et al., 2025), and what they are multiplied by. For each row r of matrix i:
//   v = beta2 v + (1 - beta2) squares / columns,   factor = 1 / (sqrt(v) + 1e-8)
//   totals[i] = (sum_r squares, sum_r squares factor^2)
// factors, squares [n, R] float64, totals [n, 2] float64, v [n, R] floating. In a skipped step v stays.
struct NorMuonArgs {
  double beta2 = 0;
  int64_t columns = 0;  // of the whole matrix
};
struct NorMuonTensors {
  Tensor v, factors, totals;  // written
  Tensor squares;
};
void normuon_moments(Stream& stream, const NorMuonTensors& tensors, const Tensor& step, const NorMuonArgs& args);
WITAN_KERNEL_TWINS(normuon_moments)

// x[i,r,:] = x[i,r,:] factors[i,r] sqrt(totals[i,0]) / max(sqrt(totals[i,1]), 1e-8);  x [n, R, K] floating
void scale_rows(Stream& stream, const Tensor& x, const Tensor& factors, const Tensor& totals);
WITAN_KERNEL_TWINS(scale_rows)

// A row of the table by which a GPU finds the items.
struct MuonRow {
  int64_t value, remainder, momentum, gradient, direction, orthogonal;  // addresses; remainder 0 where there is none
  int64_t elements;
  int64_t first_chunk;
  double weight_decay, scale;
};
static_assert(sizeof(MuonRow) == kMuonColumns * sizeof(int64_t));

}  // namespace witan::kernels
