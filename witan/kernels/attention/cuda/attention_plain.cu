#include "witan/kernels/attention/cuda/attention_launch.cuh"
#include "witan/kernels/attention/cuda/attention_plain.cuh"

namespace witan::kernels::cuda {
namespace {

template <class T>
void forward(Stream& stream, const AttentionCall<T>& call) {
  dispatch_tile(call, [&]<int D, bool kDropout>() {
    using Q = plain::Tile<T, D>;
    constexpr int kBytes = (3 * Q::kElements + Q::kScores) * static_cast<int>(sizeof(T));
    launch_tiles(stream, plain::forward_kernel<T, D, kDropout>, call, call.heads.groups(),
                 tiles_of(call.heads.rows, Q::R), plain::kThreads, kBytes);
  });
}

template <class T>
void backward(Stream& stream, const AttentionCall<T>& call, int64_t groups) {
  dispatch_tile(call, [&]<int D, bool kDropout>() {
    using Q = plain::Tile<T, D>;
    constexpr int kBytes = (4 * Q::kElements + 2 * Q::kScores) * static_cast<int>(sizeof(T));
    launch_tiles(stream, plain::dq_kernel<T, D, kDropout>, call, groups, tiles_of(call.heads.rows, Q::R),
                 plain::kThreads, kBytes);
    launch_tiles(stream, plain::dkv_kernel<T, D, kDropout>, call, groups, tiles_of(call.heads.capacity, Q::R),
                 plain::kThreads, kBytes);
  });
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

}  // namespace witan::kernels::cuda
