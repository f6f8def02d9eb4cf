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

constexpr int kMostHeadSize = 256;

// Calls body.template operator()<D, kDropout>(). D is the larger head size rounded up to 64, 128 or 256, and the number
// of columns of all tiles; columns beyond a smaller head size hold zeros.
template <class T, class Body>
void dispatch_tile(const AttentionCall<T>& call, const Body& body) {
  const auto by_dropout = [&]<int D>() {
    if (call.dropout.step)
      body.template operator()<D, true>();
    else
      body.template operator()<D, false>();
  };
  const int widest = std::max(call.heads.hd, call.heads.hd_v);
  assert(widest <= kMostHeadSize);
  if (widest <= 64)
    by_dropout.template operator()<64>();
  else if (widest <= 128)
    by_dropout.template operator()<128>();
  else
    by_dropout.template operator()<kMostHeadSize>();
}

}  // namespace witan::kernels::cuda
