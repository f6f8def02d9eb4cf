// Statistics of activations (log_activations): what is measured of every layer, and the figures that are recorded of
// it. A figure is an entry of activation_statistics(); what it is computed from are the moments of whole activations
// (kernels/pointwise/activation_moments.h), which add up over micro-batches and ranks.
#pragma once

#include <cstdint>
#include <span>

#include "witan/tensor/tensor.h"

namespace witan {

// Of a layer: the residual stream behind it, and what attention and what the MLP or the experts give, before dropout, a
// norm placed behind them and the addition to the residual stream.
enum class Activation : uint8_t { residual, attention, mlp };
inline constexpr int kActivations = 3;

// Where a forward leaves the moments of what it computes.
class ActivationAccess {
 public:
  virtual ~ActivationAccess() = default;
  // [kActivationMoments] float64, of this micro-batch and rank; undefined: nobody wants them. MTP modules follow the
  // layers.
  virtual Tensor moments(int64_t layer, Activation of) = 0;
};

// Of parts of an activation together: sums, and the largest. NaN is larger than any number.
struct ActivationMoments {
  double square_sum = 0, largest = 0, zeros = 0, elements = 0;

  static ActivationMoments read(const double* moments);  // kernels/pointwise/activation_moments.h
  void add(const ActivationMoments& part);
};

struct ActivationStatistic {
  const char* name;  // key in metrics.jsonl
  Activation of;
  double (*compute)(const ActivationMoments& moments);  // not called without elements
};
std::span<const ActivationStatistic> activation_statistics();

}  // namespace witan
