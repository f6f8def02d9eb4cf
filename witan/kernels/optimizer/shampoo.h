// Kernels of optimizers that precondition matrices (optim/shampoo.cpp). Matrices are row-major; views whose rows are
// farther apart have unit stride inside a row. What changes from step to step is read from `step`, float64 on the
// device (step_report.h). A is the accumulator dtype of the value: float32, or float64 of float64.
#pragma once

#include "witan/kernels/common/launch.h"
#include "witan/kernels/common/step_report.h"

namespace witan::kernels {

// At which updates preconditioners are made: the start-th, and from then on every one that `frequency` divides.
struct RootSchedule {
  int64_t frequency, start;

  bool due(int64_t update) const { return update == start || (update > start && update % frequency == 0); }
};

struct ShampooMoments {
  Tensor m, v;               // A, written; m undefined: beta1 is 0; v undefined where no second moment is kept
  Tensor gradient;           // any floating dtype
  Tensor outer;              // A, written: the gradient times the root of a factor's weight for a new one
  Tensor filtered, grafted;  // A, written; grafted undefined where v is
};
struct ShampooMomentArgs {
  double beta1, beta2, eps;
  double factor_weight;
};
// With g = gradient_scale * gradient:   outer = sqrt(factor_weight) g
//   m = beta1 m + (1 - beta1) g     filtered = m / (1 - beta1^update)
//   v = beta2 v + (1 - beta2) g^2   grafted = filtered / (sqrt(v / (1 - beta2^update)) + eps)
// In a skipped step m and v stay, and what is computed from them is 0. Contiguous tensors of equal shape.
void shampoo_moments(Stream& stream, const ShampooMoments& tensors, const Tensor& step, const ShampooMomentArgs& args);
WITAN_KERNEL_TWINS(shampoo_moments)

// x = beta x, except in a skipped step;  x contiguous, A
void decay_factor(Stream& stream, const Tensor& x, const Tensor& step, double beta);
WITAN_KERNEL_TWINS(decay_factor)

// From update `start` on   direction = direction * |grafted| / (|direction| + 1e-16)   (Frobenius norms; `scales` off:
// unchanged), before it   direction = grafted.  Both [R, C], A, views. `sums` is a workspace, float64 [R, 2]: the norms
// are sums of rows in their order.
struct GraftArgs {
  int64_t start;
  bool scales;
};
void graft(Stream& stream, const Tensor& direction, const Tensor& grafted, const Tensor& sums, const Tensor& step,
           const GraftArgs& args);
WITAN_KERNEL_TWINS(graft)

struct DirectedTensors {
  Tensor value, remainder;  // written; as of kernels/optimizer/optimizer.h
  Tensor direction;         // A
};
struct DirectedArgs {
  double weight_decay;
  int64_t rate = step_value::learning_rate;
  int64_t first = 1;
};
// p = p - lr (direction + weight_decay p), except in a skipped step and before update `first`
void apply_direction(Stream& stream, const DirectedTensors& tensors, const Tensor& step, const DirectedArgs& args);
WITAN_KERNEL_TWINS(apply_direction)

}  // namespace witan::kernels
