// A residual stream of n parallel streams, mixed by manifold-constrained hyper-connections (mHC, arXiv:2512.24880,
// after arXiv:2409.19606; DeepSeek-V4). A half of a block reads a weighted sum of the streams, and its output is added
// to each of them with a weight of its own, while a doubly stochastic matrix mixes the streams. All weights depend on
// the token.
//
// T tokens   n streams of D channels, W = n D   A: accumulator dtype of x
// x, dx [T, W] floating: the streams side by side   y, dy [T, D] of x's dtype
// logits [T, C] A, C = n (n + 2), from which the weights follow: n to read the streams, n to write to them, n x n to
// mix them; or C = n, to read them alone
// pre [T, n] A: the weights that read   mix [T, n + n n] A: those that write, then the matrix in rows
// Sums in float32 or wider.
#pragma once

#include "witan/kernels/common/launch.h"

namespace witan::kernels {

inline constexpr int64_t kMostStreams = 8, kMostSinkhornIterations = 32;

// Parts in which the gradient of a projection is summed, on every device.
inline constexpr int64_t kStreamParts = 16;

// logits[t,c] = r[t] sum_i x[t,i] w[c,i],  r[t] = 1 / sqrt(mean_i x[t,i]^2 + eps).  w [C, W] A   r [T] A
void stream_logits_forward(Stream& stream, const Tensor& logits, const Tensor& r, const Tensor& x, const Tensor& w,
                           double eps);
WITAN_KERNEL_TWINS(stream_logits_forward)

// dx[t,i] += r[t] sum_c dlogits[t,c] w[c,i] - r[t]^2 x[t,i] / W sum_c dlogits[t,c] logits[t,c]
void stream_logits_backward_input(Stream& stream, const Tensor& dx, const Tensor& dlogits, const Tensor& logits,
                                  const Tensor& r, const Tensor& x, const Tensor& w);
WITAN_KERNEL_TWINS(stream_logits_backward_input)

// dw[c,i] (=|+=) sum_t dlogits[t,c] r[t] x[t,i].  parts [kStreamParts, C W] A: workspace
void stream_logits_backward_weight(Stream& stream, const Tensor& dw, Write write, const Tensor& parts,
                                   const Tensor& dlogits, const Tensor& r, const Tensor& x);
WITAN_KERNEL_TWINS(stream_logits_backward_weight)

struct StreamMixing {
  int64_t streams = 4;
  int64_t iterations = 20;  // of Sinkhorn and Knopp: normalisations of columns, with those of rows between them
  double eps = 1e-6;
};

// z[t,c] = logits[t,c] scale[g] + base[c], where g = 0, 1, 2 for the logits that read, write and mix:
//   pre = sigmoid(z) + eps,  writing weights = 2 sigmoid(z),
//   matrix = softmax(z) + eps over each row, then alternately columns and rows divided by their sums + eps.
// base [C] A   scale [3] A, or [1] for C = n, where mix is undefined
void stream_weights_forward(Stream& stream, const Tensor& pre, const Tensor& mix, const Tensor& logits,
                            const Tensor& base, const Tensor& scale, const StreamMixing& mixing);
WITAN_KERNEL_TWINS(stream_weights_forward)

// dz [T, C] A, and dlogits = dz scale. dpre or dmix undefined: zeros
void stream_weights_backward(Stream& stream, const Tensor& dz, const Tensor& dlogits, const Tensor& dpre,
                             const Tensor& dmix, const Tensor& logits, const Tensor& base, const Tensor& scale,
                             const StreamMixing& mixing);
WITAN_KERNEL_TWINS(stream_weights_backward)

// dscale[g] (=|+=) sum_t sum_(c of g) dz[t,c] logits[t,c]
void stream_scale_backward(Stream& stream, const Tensor& dscale, Write write, const Tensor& dz, const Tensor& logits,
                           int64_t streams);
WITAN_KERNEL_TWINS(stream_scale_backward)

// y[t,d] = sum_k pre[t,k] x[t,kD+d].  pre undefined: ones
void collapse_streams(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& pre);
WITAN_KERNEL_TWINS(collapse_streams)

// dx[t,kD+d] = pre[t,k] dy[t,d],  dpre[t,k] = sum_d dy[t,d] x[t,kD+d].  dx may be undefined
void collapse_streams_backward(Stream& stream, const Tensor& dx, const Tensor& dpre, const Tensor& dy, const Tensor& x,
                               const Tensor& pre);
WITAN_KERNEL_TWINS(collapse_streams_backward)

// out[t,kD+d] = write[t,k] y[t,d] + sum_j matrix[t,j,k] x[t,jD+d].  x and mix undefined: y in each stream
void expand_streams(Stream& stream, const Tensor& out, const Tensor& x, const Tensor& y, const Tensor& mix);
WITAN_KERNEL_TWINS(expand_streams)

// dx[t,jD+d] = sum_k matrix[t,j,k] dout[t,kD+d],  dy[t,d] = sum_k write[t,k] dout[t,kD+d],
// dmix: sum_d dout[t,kD+d] y[t,d], then sum_d dout[t,kD+d] x[t,jD+d].  dx may be undefined
void expand_streams_backward(Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& dmix, const Tensor& dout,
                             const Tensor& x, const Tensor& y, const Tensor& mix);
WITAN_KERNEL_TWINS(expand_streams_backward)

}  // namespace witan::kernels
