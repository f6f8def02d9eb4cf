// Elementwise optimizer updates, and the sums that gradient clipping needs. Each is one pass over contiguous tensors of
// equal shape.
// Values that change from step to step are read from `step`, float64 on the device (step_report.h), the learning rate
// from its element `rate`.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "witan/kernels/common/launch.h"
#include "witan/kernels/common/step_report.h"

namespace witan::kernels {

inline constexpr int kMostStates = 3;

// A parameter's tensors. The updates compute a number p of the accumulator dtype of value: value itself or, if value
// has 16 bits, the float32 master, which value and remainder store as two parts (tensor/host.h); otherwise remainder is
// undefined. state has the algorithm's tensors, in the order of its formula, and is undefined after the last: in the
// accumulator dtype or, where the update allows it, bfloat16, rounded to the nearest, ties to even. gradient has any
// floating dtype.
struct UpdateTensors {
  Tensor value, remainder;                // written
  std::array<Tensor, kMostStates> state;  // written
  Tensor gradient;
};

// The updates below update many parameters at once, each with its own weight decay. All have states of the same dtypes,
// relative to those of their values. A GPU finds them in a table of addresses, int64 [items, kUpdateColumns], which
// holds update_table(items) and must be written before; it is undefined on the CPU.
struct UpdateItem {
  UpdateTensors tensors;
  double weight_decay = 0;
};
inline constexpr int64_t kUpdateColumns = 6 + kMostStates;
std::vector<int64_t> update_table(std::span<const UpdateItem> items);

struct AdamWArgs {
  double beta1, beta2, eps;
  int64_t rate = step_value::learning_rate;
};
// AdamW (Loshchilov & Hutter, 2019, arXiv:1711.05101), as Apex's FusedAdam; state m, v, each of which may be bfloat16:
//   g = scale * gradient    m = beta1 m + (1 - beta1) g    v = beta2 v + (1 - beta2) g^2
//   p = p - lr ( (m / (1 - beta1^update)) / (sqrt(v / (1 - beta2^update)) + eps) + weight_decay p )
void adamw_all(Stream& stream, std::span<const UpdateItem> items, const Tensor& table, const Tensor& step,
               const AdamWArgs& args);
WITAN_KERNEL_TWINS(adamw_all)

struct SgdArgs {
  double momentum;  // where it is 0 there is no state
  int64_t rate = step_value::learning_rate;
};
// SGD as torch.optim.SGD computes it; state b:
//   b = momentum b + scale * gradient + weight_decay p    p = p - lr b
void sgd_all(Stream& stream, std::span<const UpdateItem> items, const Tensor& table, const Tensor& step,
             const SgdArgs& args);
WITAN_KERNEL_TWINS(sgd_all)

struct LionArgs {
  double beta1, beta2;
  int64_t rate = step_value::learning_rate;
};
// Lion (Chen et al., 2023, arXiv:2302.06675, algorithm 2); state m:
//   g = scale * gradient    p = p - lr ( sign(beta1 m + (1 - beta1) g) + weight_decay p )    m = beta2 m + (1 - beta2)
//   g
void lion_all(Stream& stream, std::span<const UpdateItem> items, const Tensor& table, const Tensor& step,
              const LionArgs& args);
WITAN_KERNEL_TWINS(lion_all)

struct AdEMAMixArgs {
  double beta1, beta2, beta3, alpha, eps;
  double warmup = 0;  // updates in which alpha rises from 0, and beta3 from beta1
  int64_t rate = step_value::learning_rate;
};
// AdEMAMix (Pagliardini et al., 2024, arXiv:2409.03137), as github.com/apple/ml-ademamix; state m, slow, v: m and v as
// AdamW's,
//   slow = beta3 slow + (1 - beta3) g
//   p = p - lr ( (m / (1 - beta1^update) + alpha slow) / (sqrt(v / (1 - beta2^update)) + eps) + weight_decay p )
// In the warmup alpha grows in proportion to the update, and beta3 so that its half-life does.
void ademamix_all(Stream& stream, std::span<const UpdateItem> items, const Tensor& table, const Tensor& step,
                  const AdEMAMixArgs& args);
WITAN_KERNEL_TWINS(ademamix_all)

// Sums of squares are formed in float64 within chunks of this many elements, counted from the start of a piece: the
// sums of a piece depend neither on the rank's other pieces nor on threads.
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
// 0;  step.skip = the norm is not finite; below 0 it stays.  total [2] of total_sums
void clip_by_norm(Stream& stream, const Tensor& step, const Tensor& total, double max_norm);
WITAN_KERNEL_TWINS(clip_by_norm)

// The loss scale of float16 models (Micikevicius et al., "Mixed precision training", 2018, arXiv:1710.03740), adapted
// as in Megatron-LM's DynamicGradScaler. `scaler` [3] float64 holds the scale, which multiplies losses before the
// backward, and the counts that decide how it changes, so that a step needs no host:
namespace loss_scaler {
inline constexpr int64_t scale = 0;
inline constexpr int64_t growth = 1;      // steps without an overflow since the last one, or since the scale grew
inline constexpr int64_t hysteresis = 2;  // overflows until the scale falls; from 0 down each one lowers it
}  // namespace loss_scaler
inline constexpr int64_t kLossScalerValues = 3;

struct LossScaleArgs {
  double least = 1;        // the scale falls no lower
  int64_t window = 1000;   // steps without an overflow after which the scale doubles and hysteresis is reset
  int64_t hysteresis = 2;  // the number of overflows from which on each one halves the scale
  bool dynamic = true;     // false: the scale never changes
};

// scaled[i] = scale weights[i], the gradients with which backwards begin;  scaled, weights [n] of one floating dtype
void scale_losses(Stream& stream, const Tensor& scaled, const Tensor& weights, const Tensor& scaler);
WITAN_KERNEL_TWINS(scale_losses)

// total[0] /= scale^2: the norm is that of the gradients without the scale.  total [2] of total_sums
void unscale_total(Stream& stream, const Tensor& total, const Tensor& scaler);
WITAN_KERNEL_TWINS(unscale_total)

// Called after clip_by_norm(), whose skip reports an overflow:  step.gradient_scale /= scale, then the scale and its
// counts are adapted, except in a step that will be repeated (receive_buffer.h).
void adapt_loss_scale(Stream& stream, const Tensor& step, const Tensor& scaler, const LossScaleArgs& args);
WITAN_KERNEL_TWINS(adapt_loss_scale)

// The history of skip_spikes(): the number of steps it has seen, and the losses and norms of the last `window` of them,
// step s in slot s % window.
constexpr int64_t spike_history_elements(int64_t window) {
  return 1 + 2 * window;
}
// Skips spikes as OLMo-core's SkipStepOptimizer does: step.skip = 1 if the loss or the norm of the gradients is more
// than sigma standard deviations (of a sample: n - 1) above its mean over the history, once that has window / 2 - 1
// steps, and at least 2. The step then joins the history, skipped or not, unless its loss or norm is not finite, which
// skips it too. A step that will be repeated (step.skip above 1, kernels/moe/receive_buffer.h) is neither judged nor
// added.
//   norm = sqrt(total[0]),  total [2] of total_sums   loss = sum_i losses[order[i]]   losses float64, order int64 [M]
//   history [spike_history_elements(window)] float64, begins as zeros
void skip_spikes(Stream& stream, const Tensor& step, const Tensor& history, const Tensor& total, const Tensor& losses,
                 const Tensor& order, double sigma);
WITAN_KERNEL_TWINS(skip_spikes)

}  // namespace witan::kernels
