#include "witan/kernels/attention/cuda/attention_launch.cuh"
#include "witan/kernels/attention/cuda/attention_plain.cuh"

namespace witan::kernels::cuda {
namespace {

template <class S, int D, bool kDropout>
void launch_forward_tiles(Stream& stream, const AttentionCall<S>& call) {
  using Q = plain::Tile<Acc<S>, D>;
  constexpr int kBytes = (3 * Q::kElements + Q::kScores) * static_cast<int>(sizeof(Acc<S>));
  launch_tiles(stream, plain::forward_kernel<S, D, kDropout>, call, call.heads.groups(),
               tiles_of(call.heads.rows, Q::R), plain::kThreads, kBytes);
}

template <class S, int D, bool kDropout>
void launch_backward_tiles(Stream& stream, const AttentionCall<S>& call, int64_t groups) {
  using Q = plain::Tile<Acc<S>, D>;
  constexpr int kBytes = (4 * Q::kElements + 2 * Q::kScores) * static_cast<int>(sizeof(Acc<S>));
  launch_tiles(stream, plain::dq_kernel<S, D, kDropout>, call, groups, tiles_of(call.heads.rows, Q::R), plain::kThreads,
               kBytes);
  launch_tiles(stream, plain::dkv_kernel<S, D, kDropout>, call, groups, tiles_of(call.heads.capacity, Q::R),
               plain::kThreads, kBytes);
}

template <class T>
void forward(Stream& stream, const AttentionCall<T>& call) {
  dispatch_tile<kMostHeadSize<T>>(call,
                                  [&]<int D, bool kDropout>() { launch_forward_tiles<T, D, kDropout>(stream, call); });
}

template <class T>
void backward(Stream& stream, const AttentionCall<T>& call, int64_t groups) {
  dispatch_tile<kMostHeadSize<T>>(
      call, [&]<int D, bool kDropout>() { launch_backward_tiles<T, D, kDropout>(stream, call, groups); });
}

// 16-bit heads of more than kMostTensorHead channels.
template <class S>
void wide_forward(Stream& stream, const AttentionCall<S>& call) {
  dispatch_dropout<kMostHeadSize<S>>(
      call, [&]<int D, bool kDropout>() { launch_forward_tiles<S, D, kDropout>(stream, call); });
}

template <class S>
void wide_backward(Stream& stream, const AttentionCall<S>& call, int64_t groups) {
  dispatch_dropout<kMostHeadSize<S>>(
      call, [&]<int D, bool kDropout>() { launch_backward_tiles<S, D, kDropout>(stream, call, groups); });
}

}  // namespace

void launch_forward(Stream& stream, const AttentionCall<float>& call) {
  forward(stream, call);
}
void launch_forward(Stream& stream, const AttentionCall<double>& call) {
  forward(stream, call);
}
void launch_backward(Stream& stream, const AttentionCall<float>& call, int64_t groups) {
  backward(stream, call, groups);
}
void launch_backward(Stream& stream, const AttentionCall<double>& call, int64_t groups) {
  backward(stream, call, groups);
}

void launch_wide_forward(Stream& stream, const AttentionCall<__nv_bfloat16>& call) {
  wide_forward(stream, call);
}
void launch_wide_forward(Stream& stream, const AttentionCall<__half>& call) {
  wide_forward(stream, call);
}
void launch_wide_backward(Stream& stream, const AttentionCall<__nv_bfloat16>& call, int64_t groups) {
  wide_backward(stream, call, groups);
}
void launch_wide_backward(Stream& stream, const AttentionCall<__half>& call, int64_t groups) {
  wide_backward(stream, call, groups);
}

}  // namespace witan::kernels::cuda
