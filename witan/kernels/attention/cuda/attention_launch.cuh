// Launches attention's kernels, which are in one translation unit per dtype.
#pragma once

#include "witan/kernels/attention/cuda/attention_shape.cuh"

namespace witan::kernels::cuda {

// The forward of all groups of the call.
void launch_forward(Stream& stream, const AttentionCall<float>& call);
void launch_forward(Stream& stream, const AttentionCall<double>& call);
void launch_forward(Stream& stream, const AttentionCall<__nv_bfloat16>& call);
void launch_forward(Stream& stream, const AttentionCall<__half>& call);

// dq, dk and dv of `groups` groups from call.first_group on, whose delta has been computed.
void launch_backward(Stream& stream, const AttentionCall<float>& call, int64_t groups);
void launch_backward(Stream& stream, const AttentionCall<double>& call, int64_t groups);
void launch_backward(Stream& stream, const AttentionCall<__nv_bfloat16>& call, int64_t groups);
void launch_backward(Stream& stream, const AttentionCall<__half>& call, int64_t groups);

// Launches a block per group and tile.
template <class T>
void launch_tiles(Stream& stream, void (*kernel)(AttentionCall<T>, int64_t, int), const AttentionCall<T>& call,
                  int64_t groups, int64_t tiles, int threads, int bytes) {
  if (groups * tiles == 0) return;
  witan::cuda::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
                     "attention's shared memory");
  kernel<<<static_cast<unsigned>(groups * tiles), threads, static_cast<size_t>(bytes), native(stream)>>>(
      call, groups, static_cast<int>(tiles));
}

// The widest heads: of the kernels on tensor cores, and of those on ordinary cores, whose tiles of float64 must fit in
// shared memory. 16-bit heads that are too wide for the former are computed by the latter.
constexpr int kMostTensorHead = 256;
template <class T>
inline constexpr int kMostHeadSize = sizeof(T) == 8 ? 256 : 512;

void launch_wide_forward(Stream& stream, const AttentionCall<__nv_bfloat16>& call);
void launch_wide_forward(Stream& stream, const AttentionCall<__half>& call);
void launch_wide_backward(Stream& stream, const AttentionCall<__nv_bfloat16>& call, int64_t groups);
void launch_wide_backward(Stream& stream, const AttentionCall<__half>& call, int64_t groups);

template <class T>
int widest_head(const AttentionCall<T>& call) {
  return std::max(call.heads.hd, call.heads.hd_v);
}

template <int D, class T, class Body>
void dispatch_dropout(const AttentionCall<T>& call, const Body& body) {
  if (call.dropout.step)
    body.template operator()<D, true>();
  else
    body.template operator()<D, false>();
}

// Calls body.template operator()<D, kDropout>(). D is the larger head size rounded up to 64, 128, 256 or, up to kMost,
// 512, and the number of columns of all tiles; columns beyond a smaller head size hold zeros.
template <int kMost, class T, class Body>
void dispatch_tile(const AttentionCall<T>& call, const Body& body) {
  const int widest = widest_head(call);
  assert(widest <= kMost);
  if (widest <= 64) return dispatch_dropout<64>(call, body);
  if (widest <= 128) return dispatch_dropout<128>(call, body);
  if (widest <= 256) return dispatch_dropout<256>(call, body);
  dispatch_dropout<kMost>(call, body);
}

}  // namespace witan::kernels::cuda
