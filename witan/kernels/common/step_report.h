// What a step is told and what it tells, without the host in between.
#pragma once

#include <vector>

#include "witan/kernels/common/launch.h"

namespace witan::kernels {

// weights[t] = mask[t] / max(targets[0], 1), formed in float64;  mask [T] float32   targets [1] float64: how many
// targets the global batch has   weights [T] float32 or float64
void loss_weights(Stream& stream, const Tensor& weights, const Tensor& mask, const Tensor& targets);
WITAN_KERNEL_TWINS(loss_weights)

// out = the elements of all sources, one after the other, as float64;  out [sum of elements] float64, sources of any
// dtype, contiguous.
void collect(Stream& stream, const Tensor& out, const std::vector<Tensor>& sources);
WITAN_KERNEL_TWINS(collect)

}  // namespace witan::kernels
