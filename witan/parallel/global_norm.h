// The norm of the whole model's gradients or values, every parameter counted once, however it is replicated or divided.
//
// Sums of squares of 64Ki-element chunks are added in the order of parameters, experts and chunks: the same bits on
// every rank, and in every layout in which the gradients are the same.
#pragma once

#include <vector>

#include "witan/kernels/device_table.h"
#include "witan/optim/clip.h"
#include "witan/parallel/groups.h"

namespace witan {

class GlobalNorm {
 public:
  enum class Of : uint8_t { gradients, values };

  // Parameters and groups must outlive it.
  GlobalNorm(Stream& stream, const std::vector<Parameter*>& parameters, const Groups& groups);

  // total [2] float64 on the device: the sum of squares and the number of zeros, for clip() and read_norm();
  // overwritten by the next call. Communicates over the expert axis: a call of all its ranks.
  const Tensor& compute(Stream& stream, Of what);

 private:
  std::vector<kernels::SquareSumsItem> items_of(Of what) const;

  std::vector<Parameter*> dense_, experts_;
  Group& expert_group_;
  Tensor sums_;   // [C, 2] float64: rows of dense parameters, then of experts by expert rank
  Tensor order_;  // [C] int64: in which they are added
  Tensor total_;  // [2] float64
  int64_t dense_chunks_ = 0, expert_chunks_ = 0;  // of this rank
  kernels::DeviceTable gradients_, values_;
};

}  // namespace witan
