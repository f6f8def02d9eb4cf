// Chooses the kernels that compute attention, and computes delta before the backward.

#include "witan/base/error.h"
#include "witan/kernels/attention/attention.h"
#include "witan/kernels/attention/cuda/attention_backend.h"
#include "witan/kernels/attention/cuda/attention_launch.cuh"
#include "witan/kernels/common/cuda/common.cuh"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// delta[i] = dy[i, :] . y[i, :], one warp per row, for the rows of the launch's groups in the order of lse.
template <class T>
__global__ void __launch_bounds__(kThreads) delta_kernel(const AttentionCall<T> call, int64_t rows) {
  using A = Acc<T>;
  constexpr int V = kPack<T>;
  const Heads& heads = call.heads;
  const int lane = threadIdx.x % 32;
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  if (row >= rows) return;
  const int64_t group = call.first_group + row / heads.rows;
  const int of_group = static_cast<int>(row % heads.rows);
  const int r = of_group % heads.S * heads.rep + of_group / heads.S;
  const T *dy = call.dy + heads.query(group, r, heads.hd_v), *y = call.y + heads.query(group, r, heads.hd_v);
  A sum = 0;
  if (call.packed) {
    for (int d = lane * V; d < heads.hd_v; d += 32 * V) {
      const auto a = load_pack<T, V>(dy + d), b = load_pack<T, V>(y + d);
#pragma unroll
      for (int e = 0; e < V; ++e) sum += convert<A>(a.at[e]) * convert<A>(b.at[e]);
    }
  } else {
    for (int d = lane; d < heads.hd_v; d += 32) sum += convert<A>(dy[d]) * convert<A>(y[d]);
  }
  sum = warp_sum(sum);
  if (lane == 0) call.delta[row] = sum;
}

template <class T>
void check_head_sizes(const Heads& heads) {
  require<DeviceError>(std::max(heads.hd, heads.hd_v) <= kMostHeadSize<T>, "attention: heads of ", heads.hd,
                       " for queries and keys and of ", heads.hd_v, " for values; a GPU's kernels take at most ",
                       kMostHeadSize<T>);
}

template <class T>
void forward(Stream& stream, const Tensor& y, const Tensor& lse, const AttentionInputs& in) {
  AttentionCall<T> call(in);
  if (call.heads.empty()) return;
  check_head_sizes<T>(call.heads);
  call.y = ptr<T>(y);
  call.lse = ptr<Acc<T>>(lse);
  call.packed = call.packed && packs<T>(call.y, call.heads.hd_v);
  launch_forward(stream, call);
}

template <class T>
void backward(Stream& stream, const AttentionGradients& to, const Tensor& dy, const Tensor& y, const Tensor& lse,
              const AttentionInputs& in) {
  using A = Acc<T>;
  AttentionCall<T> call(in);
  const Heads& heads = call.heads;
  if (heads.empty()) return;
  check_head_sizes<T>(heads);
  call.y = ptr<T>(y), call.lse = ptr<A>(lse), call.dy = ptr<T>(dy);
  call.dq = ptr<T>(to.dq), call.dk = ptr<T>(to.dk), call.dv = ptr<T>(to.dv);
  for (const T* tensor : {static_cast<const T*>(call.dq), static_cast<const T*>(call.dk)})
    call.packed = call.packed && packs<T>(tensor, heads.hd);
  for (const T* tensor : {static_cast<const T*>(call.y), call.dy, static_cast<const T*>(call.dv)})
    call.packed = call.packed && packs<T>(tensor, heads.hd_v);
  // Groups whose delta fits in scratch: all of them, except in batches of many millions of tokens.
  const int64_t group_bytes = std::max(heads.rows, 1) * static_cast<int64_t>(sizeof(A));
  const int64_t at_once = std::min(heads.groups(), Stream::kScratchBytes / group_bytes);
  require<DeviceError>(at_once > 0, "attention: a sequence of ", heads.S, " tokens with ", heads.rep,
                       " query heads per key head is too long for the backward");
  call.delta = reinterpret_cast<A*>(stream.scratch(at_once * group_bytes));
  for (; call.first_group < heads.groups(); call.first_group += at_once) {
    const int64_t groups = std::min(at_once, heads.groups() - call.first_group), rows = groups * heads.rows;
    const int64_t blocks = (rows + kThreads / 32 - 1) / (kThreads / 32);
    if (rows > 0) delta_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, native(stream)>>>(call, rows);
    launch_backward(stream, call, groups);
  }
}

}  // namespace

void own::attention_forward(Stream& stream, const Tensor& y, const Tensor& lse, const AttentionInputs& in) {
  dispatch_device(y.dtype(), [&]<class T>() { forward<T>(stream, y, lse, in); });
}

void own::attention_backward(Stream& stream, const AttentionGradients& to, const Tensor& dy, const Tensor& y,
                             const Tensor& lse, const AttentionInputs& in) {
  dispatch_device(y.dtype(), [&]<class T>() { backward<T>(stream, to, dy, y, lse, in); });
}

void attention_forward(Stream& stream, const Tensor& y, const Tensor& lse, const AttentionInputs& in) {
  if (!cudnn::attention_forward(stream, y, lse, in)) own::attention_forward(stream, y, lse, in);
}

void attention_backward(Stream& stream, const AttentionGradients& to, const Tensor& dy, const Tensor& y,
                        const Tensor& lse, const AttentionInputs& in) {
  if (!cudnn::attention_backward(stream, to, dy, y, lse, in)) own::attention_backward(stream, to, dy, y, lse, in);
}

std::string attention_backend(Stream& stream, const AttentionInputs& in) {
  return cudnn::has_attention(stream, in) ? cat("cudnn ", cudnn::version()) : "witan";
}

void attention_decode(Stream& stream, const Tensor& y, const Tensor& q, const Tensor& k_cache, const Tensor& v_cache,
                      int64_t past, double scale, int64_t window, const Tensor& lse) {
  assert(past >= 0 && past + q.size(1) <= k_cache.size(1));
  dispatch_device(y.dtype(), [&]<class T>() {
    forward<T>(stream, y, lse, {q, k_cache, v_cache, Tensor(), scale, {}, {}, {.queries = {past}}, window});
  });
}

namespace {

// One warp per row of y [B, S, H]. N elements at a time: 1, or 16 bytes of the accumulator dtype.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    merge_kernel(Acc<T>* y, Acc<T>* lse, const T* y_part, const Acc<T>* lse_part, int64_t rows, int S, int H, int hd) {
  using A = Acc<T>;
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  if (row >= rows) return;
  const int lane = threadIdx.x % 32;
  const int64_t sequence = row / H / S, at = (sequence * H + row % H) * S + row / H % S;
  const A sum = lse[at], part = lse_part[at];
  if (part == -static_cast<A>(INFINITY)) return;
  const A top = sum > part ? sum : part, joined = top + log(exp(sum - top) + exp(part - top));
  const A keep = exp(sum - joined), take = exp(part - joined);
  for (int d = lane * N; d < hd; d += 32 * N) {
    auto to = load_pack<A, N>(y + row * hd + d);
    const auto from = load_pack<T, N>(y_part + row * hd + d);
#pragma unroll
    for (int e = 0; e < N; ++e) to.at[e] = keep * to.at[e] + take * convert<A>(from.at[e]);
    store_pack(y + row * hd + d, to);
  }
  __syncwarp();  // all lanes have read the row's lse
  if (lane == 0) lse[at] = joined;
}

}  // namespace

void attention_merge(Stream& stream, const Tensor& y, const Tensor& lse, const Tensor& y_part, const Tensor& lse_part) {
  const int64_t S = y.size(1), H = y.size(2), hd = y.size(3), rows = y.size(0) * S * H;
  if (rows == 0) return;
  dispatch_device(y_part.dtype(), [&]<class T>() {
    using A = Acc<T>;
    constexpr int N = kPack<A>;
    const bool packed = packs<A>(y.raw(), hd, N) && packs<T>(y_part.raw(), hd, N);
    const auto kernel = packed ? merge_kernel<T, N> : merge_kernel<T, 1>;
    kernel<<<static_cast<unsigned>((rows * 32 + kThreads - 1) / kThreads), kThreads, 0, native(stream)>>>(
        ptr<A>(y), ptr<A>(lse), ptr<T>(y_part), ptr<A>(lse_part), rows, static_cast<int>(S), static_cast<int>(H),
        static_cast<int>(hd));
  });
}

}  // namespace witan::kernels::cuda
