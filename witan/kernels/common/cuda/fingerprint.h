// What tells whether two kernels wrote the same bits.
#pragma once

#include "witan/tensor/tensor.h"

namespace witan::kernels::cuda {

// A number that every bit of a matrix [M, N] of any strides has a say in: equal for equal bits. Waits for the device.
// Uses the stream's scratch.
uint64_t fingerprint(Stream& stream, const Tensor& matrix);

}  // namespace witan::kernels::cuda
