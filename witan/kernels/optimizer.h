// Optimizer updates and the sums that gradient clipping needs. Each is one pass over contiguous tensors of equal shape.
// What changes from step to step is read from `step`, float64 on the device (step_value.h), the learning rate from its
// element `rate`.
#pragma once

#include <span>
#include <vector>

#include "witan/kernels/launch.h"
#include "witan/kernels/step_value.h"

namespace witan::kernels {

// A parameter's tensors. Moments and momentum have the accumulator dtype of value. What is updated is a number p of
// that dtype: value itself, or where value is bfloat16 the float32 master of which value is the upper half and
// remainder the lower one (tensor/split.h); undefined elsewhere. gradient is of any floating dtype.

struct AdamWTensors {
  Tensor value, remainder, m, v;  // written
  Tensor gradient;
};
struct AdamWArgs {
  double beta1, beta2, eps, weight_decay;
  int64_t rate = step_value::learning_rate;
};
// AdamW (Loshchilov & Hutter, 2019), as Apex's FusedAdam:  g = scale * gradient
//   m = beta1 m + (1 - beta1) g    v = beta2 v + (1 - beta2) g^2
//   p = p - lr ( (m / (1 - beta1^update)) / (sqrt(v / (1 - beta2^update)) + eps) + weight_decay p )
void adamw(Stream& stream, const AdamWTensors& tensors, const Tensor& step, const AdamWArgs& args);
WITAN_KERNEL_TWINS(adamw)

// adamw() of many parameters at once, each with its own weight decay in place of args'. A GPU finds them in a table of
// addresses, int64 [items, kAdamWColumns], which holds adamw_table(items) and must be written before; undefined on the
// CPU.
struct AdamWItem {
  AdamWTensors tensors;
  double weight_decay = 0;
};
inline constexpr int64_t kAdamWColumns = 8;
std::vector<int64_t> adamw_table(std::span<const AdamWItem> items);
void adamw_all(Stream& stream, std::span<const AdamWItem> items, const Tensor& table, const Tensor& step,
               const AdamWArgs& args);
WITAN_KERNEL_TWINS(adamw_all)

struct SgdTensors {
  Tensor value, remainder, momentum;  // written; momentum may be undefined: args.momentum is 0
  Tensor gradient;
};
struct SgdArgs {
  double momentum, weight_decay;
  int64_t rate = step_value::learning_rate;
};
// As torch.optim.SGD:  b = momentum b + scale * gradient + weight_decay p    p = p - lr b
void sgd(Stream& stream, const SgdTensors& tensors, const Tensor& step, const SgdArgs& args);
WITAN_KERNEL_TWINS(sgd)

// Sums of squares are formed in float64 within chunks of so many elements, which are cut from the start of a piece: the
// sums of a piece do not depend on what else a rank holds, nor on threads.
inline constexpr int64_t kChunkElements = 1 << 16;
constexpr int64_t chunks_of(int64_t elements) {
  return (elements + kChunkElements - 1) / kChunkElements;
}

// sums[p C + c, :] = (sum of squares, number of zeros) of chunk c of piece p;  x [P, N] floating, C = chunks_of(N),
// sums [P C, 2] float64
void square_sums(Stream& stream, const Tensor& sums, const Tensor& x);
WITAN_KERNEL_TWINS(square_sums)

// square_sums() of many tensors at once, each into the rows of sums from first_row. A GPU finds them in a table of
// addresses, int64 [items, kSquareSumsColumns], which holds square_sums_table(items) and must be written before;
// undefined on the CPU.
struct SquareSumsItem {
  Tensor x;  // [P, N]
  int64_t first_row;
};
inline constexpr int64_t kSquareSumsColumns = 6;
std::vector<int64_t> square_sums_table(std::span<const SquareSumsItem> items);
void square_sums_all(Stream& stream, const Tensor& sums, std::span<const SquareSumsItem> items, const Tensor& table);
WITAN_KERNEL_TWINS(square_sums_all)

// total[:] = sum_i sums[order[i], :], in the order of i, on a GPU in a fixed tree over i;  sums [C, 2] float64,
// order [C] int64, total [2] float64
void total_sums(Stream& stream, const Tensor& total, const Tensor& sums, const Tensor& order);
WITAN_KERNEL_TWINS(total_sums)

// norm = sqrt(total[0]):  step.gradient_scale = min(1, max_norm / (norm + 1e-6)), as Megatron-LM, or 1 when max_norm is
// 0;  step.skip = the norm is not finite.  total [2] of total_sums
void clip_by_norm(Stream& stream, const Tensor& step, const Tensor& total, double max_norm);
WITAN_KERNEL_TWINS(clip_by_norm)

}  // namespace witan::kernels
