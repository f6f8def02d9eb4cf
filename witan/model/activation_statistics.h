// Statistics of the activations of every layer (log_activations). Each figure is an entry of activation_statistics(),
// computed from the moments of whole activations (kernels/pointwise/activation_moments.h), which add up over
// micro-batches and ranks.
#pragma once

#include <cstdint>
#include <span>

#include "witan/tensor/tensor.h"

namespace witan {

// The activations measured in a layer: the residual stream after it, and the outputs of attention and of the MLP or the
// experts, before dropout, a norm placed post and the addition to the residual stream.
enum class Activation : uint8_t { residual, attention, mlp };
inline constexpr int kActivations = 3;

// Provides the memory in which a forward leaves the moments of its activations.
class ActivationAccess {
 public:
  virtual ~ActivationAccess() = default;
  // [kActivationMoments] float64, for this micro-batch and rank; undefined if they are not measured. MTP modules are
  // numbered after the layers.
  virtual Tensor moments(int64_t layer, Activation of) = 0;
};

// The moments of parts of an activation together: sums, and the largest magnitude. NaN is larger than any number.
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
