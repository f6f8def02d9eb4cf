// The products of kernels/moe/wide_linear.h on Hopper's tensor cores by warpgroups, for more than 64 experts.
#pragma once

#include "witan/kernels/moe/wide_linear.h"

namespace witan::kernels::cuda {

// Whether the product below takes these shapes and addresses, whatever number of rows there are: a row of y has the
// same bits in any company.
bool takes_wide_hopper(Stream& stream, const Tensor& x, int64_t E);
void wide_linear_hopper(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& w);

// Whether its gradients, of x or to it, fit into the stream's scratch memory besides.
bool takes_wide_backward_hopper(Stream& stream, const Tensor& x, int64_t E);
void wide_linear_backward_input_hopper(Stream& stream, const Tensor& dx, Write write, const Tensor& dy,
                                       const Tensor& w);

// Sums over strips of tokens, [strips, E, D] in the stream's scratch memory.
struct WideStrips {
  const float* sums;
  int64_t strips;
};
WideStrips wide_linear_strips_hopper(Stream& stream, const Tensor& dy, const Tensor& x);

}  // namespace witan::kernels::cuda
