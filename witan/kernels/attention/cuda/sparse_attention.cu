// Attention to chosen keys. A warp has a head of a token, whose chosen keys it takes one after another, or a head of a
// key, whose tokens it takes.
#include "witan/base/error.h"
#include "witan/kernels/attention/cuda/seen_slots.cuh"
#include "witan/kernels/attention/cuda/sparse_tiles.cuh"

namespace witan::kernels::cuda {
namespace {

constexpr int kSparseThreads = 128, kSparseWarps = kSparseThreads / 32;
constexpr int kMostChannels = 256, kLaneParts = kMostChannels / 32;

template <class T>
struct SparseCall {
  explicit SparseCall(const SparseInputs& in)
      : q(ptr<const T>(in.q)),
        k(ptr<const T>(in.k)),
        v(ptr<const T>(in.v)),
        chosen(ptr<const int32_t>(in.chosen)),
        tokens(in.q.size(0)),
        heads(static_cast<int>(in.q.size(1))),
        hd(static_cast<int>(in.q.size(2))),
        hd_v(in.v.defined() ? static_cast<int>(in.v.size(3)) : 0),
        K(in.chosen.defined() ? static_cast<int>(in.chosen.size(1)) : 0),
        scale(static_cast<Acc<T>>(in.scale)),
        view(in.where) {}

  __device__ int64_t sum_at(int64_t t, int n) const {  // in lse
    return (view.row(t) * heads + n) * view.slots + view.last(t);
  }
  __device__ int64_t key_head(int64_t row, int j, int n) const { return (row * view.slots + j) * heads + n; }

  const T *q, *k, *v;
  const int32_t* chosen;
  int64_t tokens;
  int heads, hd, hd_v, K;
  Acc<T> scale;
  SlotView view;
};

// A lane's channels of a row, which is d long.
template <class T, class Use>
__device__ __forceinline__ void for_channels(int d, const Use& use) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kLaneParts; ++i)
    if (lane + 32 * i < d) use(i, lane + 32 * i);
}

template <class T>
__global__ void __launch_bounds__(kSparseThreads) sparse_forward_kernel(T* y, Acc<T>* lse, const SparseCall<T> call) {
  using A = Acc<T>;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kSparseWarps + threadIdx.x / 32;
  if (at >= call.tokens * call.heads) return;
  const int64_t t = at / call.heads, row = call.view.row(t);
  const int n = static_cast<int>(at % call.heads);
  const int32_t* chosen = call.chosen + t * call.K;
  const T* q = call.q + at * call.hd;
  A top = -static_cast<A>(INFINITY), sum = 0, sums[kLaneParts] = {};
  for (int m = 0; m < call.K && chosen[m] >= 0; ++m) {
    const int64_t key = call.key_head(row, chosen[m], n);
    const A s = call.scale * warp_dot(q, call.k + key * call.hd, call.hd), most = max(top, s);
    const A keep = exp(top - most), weight = exp(s - most);
    top = most;
    sum = sum * keep + weight;
    for_channels<T>(call.hd_v,
                    [&](int i, int c) { sums[i] = sums[i] * keep + weight * convert<A>(call.v[key * call.hd_v + c]); });
  }
  for_channels<T>(call.hd_v, [&](int i, int c) { y[at * call.hd_v + c] = convert<T>(sums[i] / sum); });
  if (lse && threadIdx.x % 32 == 0) lse[call.sum_at(t, n)] = top + log(sum);
}

// p of a token's head and a key, and the gradient of its logit.
template <class T>
struct PairGradient {
  Acc<T> p, ds;
};
template <class T>
__device__ __forceinline__ PairGradient<T> pair_gradient(const SparseCall<T>& call, int64_t query, int64_t key,
                                                         const T* dy, Acc<T> lse, Acc<T> delta) {
  using A = Acc<T>;
  const A s = call.scale * warp_dot(call.q + query * call.hd, call.k + key * call.hd, call.hd);
  const A p = exp(s - lse);
  return {p, p * (warp_dot(dy + query * call.hd_v, call.v + key * call.hd_v, call.hd_v) - delta) * call.scale};
}

template <class T>
__global__ void __launch_bounds__(kSparseThreads)
    sparse_queries_backward_kernel(T* dq, Acc<T>* delta, const T* dy, const T* y, const Acc<T>* lse,
                                   const SparseCall<T> call) {
  using A = Acc<T>;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kSparseWarps + threadIdx.x / 32;
  if (at >= call.tokens * call.heads) return;
  const int64_t t = at / call.heads, row = call.view.row(t);
  const int n = static_cast<int>(at % call.heads);
  const int32_t* chosen = call.chosen + t * call.K;
  const A of_output = warp_dot(dy + at * call.hd_v, y + at * call.hd_v, call.hd_v), log_sum = lse[call.sum_at(t, n)];
  A sums[kLaneParts] = {};
  for (int m = 0; m < call.K && chosen[m] >= 0; ++m) {
    const int64_t key = call.key_head(row, chosen[m], n);
    const A ds = pair_gradient(call, at, key, dy, log_sum, of_output).ds;
    for_channels<T>(call.hd, [&](int i, int c) { sums[i] += ds * convert<A>(call.k[key * call.hd + c]); });
  }
  for_channels<T>(call.hd, [&](int i, int c) { dq[at * call.hd + c] = convert<T>(sums[i]); });
  if (threadIdx.x % 32 == 0) delta[at] = of_output;
}

template <class T>
__global__ void __launch_bounds__(kSparseThreads)
    sparse_keys_backward_kernel(T* dk, T* dv, const Acc<T>* delta, const T* dy, const Acc<T>* lse,
                                const SparseCall<T> call, const int64_t* begin, const int32_t* tokens, int64_t slots) {
  using A = Acc<T>;
  const int64_t key = static_cast<int64_t>(blockIdx.x) * kSparseWarps + threadIdx.x / 32;
  if (key >= slots * call.heads) return;
  const int64_t slot = key / call.heads;
  const int n = static_cast<int>(key % call.heads);
  A of_k[kLaneParts] = {}, of_v[kLaneParts] = {};
  for (int64_t i = begin[slot]; i < begin[slot + 1]; ++i) {
    const int64_t query = int64_t{tokens[i]} * call.heads + n;
    const PairGradient<T> pair = pair_gradient(call, query, key, dy, lse[call.sum_at(tokens[i], n)], delta[query]);
    for_channels<T>(call.hd, [&](int part, int c) { of_k[part] += pair.ds * convert<A>(call.q[query * call.hd + c]); });
    for_channels<T>(call.hd_v, [&](int part, int c) { of_v[part] += pair.p * convert<A>(dy[query * call.hd_v + c]); });
  }
  for_channels<T>(call.hd, [&](int part, int c) { dk[key * call.hd + c] = convert<T>(of_k[part]); });
  for_channels<T>(call.hd_v, [&](int part, int c) { dv[key * call.hd_v + c] = convert<T>(of_v[part]); });
}

// A warp for each slot, which asks the tokens of its row from the slot's own on, 32 at a time. Counts them into
// begin[slot + 1] if `tokens` is null, else writes them.
__global__ void __launch_bounds__(kSparseThreads)
    choosers_kernel(int64_t* begin, int32_t* tokens, const int32_t* chosen, int K, int slots, int64_t all) {
  const int64_t slot = static_cast<int64_t>(blockIdx.x) * kSparseWarps + threadIdx.x / 32;
  if (slot >= all) return;
  const int64_t row_begin = slot / slots * slots;
  const int j = static_cast<int>(slot % slots), lane = threadIdx.x % 32;
  int64_t count = tokens ? begin[slot] : 0;
  for (int first = j; first < slots; first += 32) {
    const int64_t t = row_begin + first + lane;
    const bool has = first + lane < slots && has_slot(chosen + t * K, K, j);
    const unsigned mask = __ballot_sync(0xffffffffu, has);
    if (tokens && has) tokens[count + __popc(mask & ((1u << lane) - 1))] = static_cast<int32_t>(t);
    count += __popc(mask);
  }
  if (!tokens && lane == 0) begin[slot + 1] = count;
}

// One block turns counts in begin[1 ..] into begins, each thread those of a stretch of slots.
__global__ void __launch_bounds__(1024) begins_kernel(int64_t* begin, int64_t all) {
  __shared__ int64_t sums[1024];
  const int64_t each = (all + blockDim.x - 1) / blockDim.x, first = threadIdx.x * each, end = min(first + each, all);
  int64_t sum = 0;
  for (int64_t i = first; i < end; ++i) sum += begin[i + 1];
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x < 32)
    warp_exclusive_scan(
        static_cast<int>(blockDim.x), [&](int i) { return sums[i]; }, [&](int i, int64_t before) { sums[i] = before; });
  __syncthreads();
  sum = sums[threadIdx.x];
  for (int64_t i = first; i < end; ++i) begin[i + 1] = sum += begin[i + 1];
  if (threadIdx.x == 0) begin[0] = 0;
}

// A block for each token, and a warp for each of its keys.
template <class T>
__global__ void __launch_bounds__(kSparseThreads)
    distribution_kernel(Acc<T>* p, const Acc<T>* lse, const SparseCall<T> call, Acc<T> share) {
  using A = Acc<T>;
  const int64_t t = blockIdx.x, row = call.view.row(t);
  const int last = call.view.last(t), slots = call.view.slots, warp = threadIdx.x / 32;
  A* to = p + t * slots;
  if (call.chosen) {
    for (int j = threadIdx.x; j < slots; j += kSparseThreads) to[j] = 0;
    __syncthreads();
  }
  const int count = call.chosen ? call.K : slots;
  for (int m = warp; m < count; m += kSparseWarps) {
    const int j = call.chosen ? call.chosen[t * call.K + m] : m;
    if (j < 0) break;
    A sum = 0;
    if (call.chosen || call.view.sees(row, last, j))
      for (int n = 0; n < call.heads; ++n) {
        const int64_t query = t * call.heads + n;
        const T* k = call.k + call.key_head(row, j, n) * call.hd;
        sum += exp(call.scale * warp_dot(call.q + query * call.hd, k, call.hd) - lse[call.sum_at(t, n)]);
      }
    if (threadIdx.x % 32 == 0) to[j] = sum * share;
  }
}

void check_heads(const SparseInputs& in) {
  const int64_t widest = std::max(in.q.size(2), in.v.defined() ? in.v.size(3) : 0);
  require<DeviceError>(widest <= kMostChannels, "sparse attention: heads of ", widest,
                       " channels; a GPU's kernels take at most ", kMostChannels);
}

unsigned sparse_warps(int64_t count) {
  return static_cast<unsigned>((count + kSparseWarps - 1) / kSparseWarps);
}

}  // namespace

void sparse_attention_forward(Stream& stream, const Tensor& y, const Tensor& lse, const SparseInputs& in,
                              const SparseMemory& memory) {
  if (y.elements() == 0) return;
  if (memory.mask.defined()) return sparse_forward_by_tiles(stream, y, lse, in, memory);
  check_heads(in);
  dispatch_device(y.dtype(), [&]<class T>() {
    const SparseCall<T> call(in);
    sparse_forward_kernel<T><<<sparse_warps(call.tokens * call.heads), kSparseThreads, 0, native(stream)>>>(
        ptr<T>(y), ptr<Acc<T>>(lse), call);
  });
}

void choosers_of_keys(Stream& stream, const ChoosersOfKeys& to, const Tensor& chosen, const KeyRows& where) {
  const int64_t all = where.rows * where.slots;
  if (all == 0) return;
  const auto pass = [&](int32_t* tokens) {
    choosers_kernel<<<sparse_warps(all), kSparseThreads, 0, native(stream)>>>(
        ptr<int64_t>(to.begin), tokens, ptr<int32_t>(chosen), static_cast<int>(chosen.size(1)),
        static_cast<int>(where.slots), all);
  };
  pass(nullptr);
  begins_kernel<<<1, 1024, 0, native(stream)>>>(ptr<int64_t>(to.begin), all);
  pass(ptr<int32_t>(to.tokens));
}

void sparse_attention_backward(Stream& stream, const SparseGradients& to, const Tensor& dy, const Tensor& y,
                               const Tensor& lse, const SparseInputs& in, const ChoosersOfKeys& choosers) {
  if (dy.elements() == 0) return;
  if (to.memory.mask.defined()) return sparse_backward_by_tiles(stream, to, dy, y, lse, in, to.memory);
  check_heads(in);
  dispatch_device(dy.dtype(), [&]<class T>() {
    using A = Acc<T>;
    const SparseCall<T> call(in);
    sparse_queries_backward_kernel<T><<<sparse_warps(call.tokens * call.heads), kSparseThreads, 0, native(stream)>>>(
        ptr<T>(to.dq), ptr<A>(to.delta), ptr<T>(dy), ptr<T>(y), ptr<A>(lse), call);
    const int64_t slots = in.where.rows * in.where.slots;
    sparse_keys_backward_kernel<T><<<sparse_warps(slots * call.heads), kSparseThreads, 0, native(stream)>>>(
        ptr<T>(to.dk), ptr<T>(to.dv), ptr<A>(to.delta), ptr<T>(dy), ptr<A>(lse), call, ptr<int64_t>(choosers.begin),
        ptr<int32_t>(choosers.tokens), slots);
  });
}

void attention_distribution(Stream& stream, const Tensor& p, const Tensor& lse, const SparseInputs& in, int64_t heads) {
  if (p.elements() == 0) return;
  if (size_of(in.q.dtype()) == 2 && in.q.size(2) % 8 == 0 && in.q.size(2) <= kMostChannels)
    return distribution_by_tiles(stream, p, lse, in, heads);
  check_heads(in);
  dispatch_device(in.q.dtype(), [&]<class T>() {
    using A = Acc<T>;
    distribution_kernel<T><<<static_cast<unsigned>(p.size(0)), kSparseThreads, 0, native(stream)>>>(
        ptr<A>(p), ptr<A>(lse), SparseCall<T>(in), A(1) / static_cast<A>(heads));
  });
}

}  // namespace witan::kernels::cuda
