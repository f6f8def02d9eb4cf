// The lightning indexer. Scores are formed for tiles of keys in shared memory and several tokens; other kernels give a
// warp a head of a token, or a key, and a block a token.
#include "witan/base/error.h"
#include "witan/kernels/attention/cuda/index_call.cuh"
#include "witan/kernels/attention/cuda/unchosen.cuh"

namespace witan::kernels::cuda {
namespace {

constexpr int kIndexThreads = 128, kIndexWarps = kIndexThreads / 32;
constexpr int kTileKeys = 64, kTileTokens = 32;  // of index_scores_kernel
constexpr int kHeadsAtOnce = 8;                  // whose products a thread forms together
constexpr int kMostIndexChannels = 256;
constexpr int kLaneChannels = kMostIndexChannels / 32;

// Block (tile of keys, tile of tokens): the keys of one row at a time lie in shared memory, [channel][key].
template <class T>
__global__ void __launch_bounds__(kIndexThreads) index_scores_kernel(Acc<T>* scores, const IndexCall<T> call) {
  using A = Acc<T>;
  extern __shared__ __align__(16) unsigned char memory[];
  A* const keys = reinterpret_cast<A*>(memory);
  constexpr int kStride = kTileKeys + 1;
  const int begin = blockIdx.x * kTileKeys, mine = threadIdx.x % kTileKeys, j = begin + mine;
  const int64_t first = int64_t{blockIdx.y} * kTileTokens, end = min(first + kTileTokens, int64_t{call.tokens});
  int64_t held = -1;
  for (int64_t t = first; t < end; ++t) {
    const int64_t row = call.view.row(t);
    const int last = call.view.last(t);
    if (begin > last) {
      if (threadIdx.x < kTileKeys && j < call.view.slots) scores[t * call.view.slots + j] = -static_cast<A>(INFINITY);
      continue;
    }
    if (row != held) {
      __syncthreads();
      for (int i = threadIdx.x; i < kTileKeys * call.d; i += kIndexThreads) {
        const int key = i / call.d, c = i % call.d;
        keys[c * kStride + key] = begin + key < call.view.slots ? convert<A>(call.key(row, begin + key)[c]) : A(0);
      }
      held = row;
      __syncthreads();
    }
    // The two halves of the block take alternate groups of heads, and add their sums through shared memory.
    A sum = 0;
    for (int h = static_cast<int>(threadIdx.x) / kTileKeys * kHeadsAtOnce; h < call.heads; h += 2 * kHeadsAtOnce) {
      A dots[kHeadsAtOnce] = {};
      const T* q = call.query(t, h);
      const int heads = min(kHeadsAtOnce, call.heads - h);
      for (int c = 0; c < call.d; ++c) {
        const A k = keys[c * kStride + mine];
#pragma unroll
        for (int i = 0; i < kHeadsAtOnce; ++i) dots[i] += convert<A>(q[min(i, heads - 1) * call.d + c]) * k;
      }
      for (int i = 0; i < heads; ++i)
        sum += convert<A>(call.w[t * call.heads + h + i]) * (dots[i] > A(0) ? dots[i] : A(0));
    }
    __shared__ A others[kTileKeys];
    if (threadIdx.x >= kTileKeys) others[mine] = sum;
    __syncthreads();
    if (threadIdx.x < kTileKeys && j < call.view.slots)
      scores[t * call.view.slots + j] =
          call.view.sees(row, last, j) ? call.scale * (sum + others[mine]) : -static_cast<A>(INFINITY);
    __syncthreads();
  }
}

// A warp for each head of each token.
template <class T>
__global__ void __launch_bounds__(kIndexThreads)
    index_queries_backward_kernel(T* dq, T* dw, const Acc<T>* dscores, const IndexCall<T> call) {
  using A = Acc<T>;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kIndexWarps + threadIdx.x / 32;
  if (at >= int64_t{call.tokens} * call.heads) return;
  const int64_t t = at / call.heads, row = call.view.row(t);
  const int last = call.view.last(t), lane = threadIdx.x % 32;
  const T* q = call.q + at * call.d;
  const A* g = dscores + t * call.view.slots;
  A sums[kLaneChannels] = {}, weight = 0;
  for (int j = 0; j <= last; ++j) {
    if (g[j] == A(0)) continue;
    const T* k = call.key(row, j);
    const A s = warp_dot(q, k, call.d);
    if (!(s > A(0))) continue;
    const A scaled = g[j] * call.scale;
    weight += scaled * s;
#pragma unroll
    for (int i = 0; i < kLaneChannels; ++i)
      if (lane + 32 * i < call.d) sums[i] += scaled * convert<A>(k[lane + 32 * i]);
  }
  const A w = convert<A>(call.w[at]);
  if (lane == 0) dw[at] = convert<T>(weight);
#pragma unroll
  for (int i = 0; i < kLaneChannels; ++i)
    if (lane + 32 * i < call.d) dq[at * call.d + lane + 32 * i] = convert<T>(w * sums[i]);
}

// A warp for each key.
template <class T>
__global__ void __launch_bounds__(kIndexThreads)
    index_keys_backward_kernel(Acc<T>* dk, const Acc<T>* dscores, const IndexCall<T> call, int64_t keys) {
  using A = Acc<T>;
  const int64_t slot = static_cast<int64_t>(blockIdx.x) * kIndexWarps + threadIdx.x / 32;
  if (slot >= keys) return;
  const int64_t row = slot / call.view.slots;
  const int j = static_cast<int>(slot % call.view.slots), lane = threadIdx.x % 32;
  const T* k = call.key(row, j);
  A sums[kLaneChannels] = {};
  for (int64_t t = 0; t < call.tokens; ++t) {
    if (call.view.row(t) != row || j > call.view.last(t)) continue;
    const A g = dscores[t * call.view.slots + j];
    if (g == A(0)) continue;
    for (int h = 0; h < call.heads; ++h) {
      const T* q = call.query(t, h);
      if (!(warp_dot(q, k, call.d) > A(0))) continue;
      const A factor = g * call.scale * convert<A>(call.w[t * call.heads + h]);
#pragma unroll
      for (int i = 0; i < kLaneChannels; ++i)
        if (lane + 32 * i < call.d) sums[i] += factor * convert<A>(q[lane + 32 * i]);
    }
  }
#pragma unroll
  for (int i = 0; i < kLaneChannels; ++i)
    if (lane + 32 * i < call.d) dk[slot * call.d + lane + 32 * i] += sums[i];
}

// Numbers of the same order as scores; hidden ones are 0, and scores are never NaN.
__device__ __forceinline__ uint32_t ordered(float x) {
  const uint32_t bits = __float_as_uint(x);
  if (x == -INFINITY) return 0;
  return x == 0 ? 0x80000000u : (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ uint64_t ordered(double x) {
  const auto bits = static_cast<uint64_t>(__double_as_longlong(x));
  constexpr uint64_t kSign = uint64_t{1} << 63;
  if (x == -INFINITY) return 0;
  return x == 0 ? kSign : (bits & kSign) != 0 ? ~bits : bits | kSign;
}
template <class A>
using Ordered = decltype(ordered(A()));

constexpr int kChooseThreads = 256, kDigits = 256;

// The number of threads before this one in the block for which `flag` holds, and of all.
struct Ranked {
  int before, all;
};
__device__ __forceinline__ Ranked rank_in_block(bool flag, int* shared) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const unsigned mask = __ballot_sync(0xffffffffu, flag);
  __syncthreads();
  if (lane == 0) shared[warp] = __popc(mask);
  __syncthreads();
  Ranked ranked{__popc(mask & ((1u << lane) - 1)), 0};
  for (int i = 0; i < kChooseThreads / 32; ++i) {
    if (i < warp) ranked.before += shared[i];
    ranked.all += shared[i];
  }
  return ranked;
}

// A block for each token: the K-th largest score, digit by digit of 8 bits, then the slots above it and the first ones
// that equal it.
template <class A>
__global__ void __launch_bounds__(kChooseThreads)
    choose_keys_kernel(int32_t* chosen, const A* scores, int K, int slots) {
  using U = Ordered<A>;
  constexpr int kBits = 8 * static_cast<int>(sizeof(U));
  __shared__ int counts[kDigits], shared[kChooseThreads / 32];
  __shared__ int digit, above;
  const A* of = scores + static_cast<int64_t>(blockIdx.x) * slots;
  int32_t* to = chosen + static_cast<int64_t>(blockIdx.x) * K;
  U threshold = 0;
  int wanted = K;  // of the scores that share the threshold's digits so far
  for (int shift = kBits - 8; shift >= 0; shift -= 8) {
    for (int i = threadIdx.x; i < kDigits; i += kChooseThreads) counts[i] = 0;
    __syncthreads();
    for (int j = threadIdx.x; j < slots; j += kChooseThreads) {
      const U key = ordered(of[j]);
      const bool shares = shift == kBits - 8 || (key >> (shift + 8)) == (threshold >> (shift + 8));
      if (shares && key != 0) atomicAdd(&counts[static_cast<int>((key >> shift) & 255)], 1);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      int larger = 0, at = kDigits - 1;
      while (at > 0 && larger + counts[at] < wanted) larger += counts[at--];
      digit = at, above = larger;
    }
    __syncthreads();
    threshold |= static_cast<U>(digit) << shift;
    wanted -= above;
    __syncthreads();
  }
  int written = 0, equal = 0;
  for (int first = 0; first < slots; first += kChooseThreads) {
    const int j = first + static_cast<int>(threadIdx.x);
    const U key = j < slots ? ordered(of[j]) : U(0);
    const bool same = key != 0 && key == threshold;
    const Ranked equals = rank_in_block(same, shared);
    const bool take = key > threshold || (same && equal + equals.before < wanted);
    const Ranked taken = rank_in_block(take && key != 0, shared);
    if (take && key != 0) to[written + taken.before] = j;
    written += taken.all, equal += equals.all;
  }
  for (int m = written + static_cast<int>(threadIdx.x); m < K; m += kChooseThreads) to[m] = -1;
}

// Threads count from the token's first slot on, so that sums are formed in the same order wherever its document lies.
template <class A>
__global__ void __launch_bounds__(kIndexThreads)
    index_divergence_kernel(A* divergence, A* scores, const A* p, const int32_t* ids, int slots) {
  __shared__ A shared[kIndexWarps];
  __shared__ int begin;
  const int64_t t = blockIdx.x;
  A* of = scores + t * slots;
  const A *target = p + t * slots, hidden = -static_cast<A>(INFINITY);
  if (threadIdx.x == 0) begin = slots;
  __syncthreads();
  A top = hidden;
  int first = slots;
  for (int j = slots - 1 - static_cast<int>(threadIdx.x); j >= 0; j -= kIndexThreads) {
    top = max(top, of[j]);
    if (of[j] != hidden) first = j;
  }
  atomicMin(&begin, first);
  top = block_max(top, shared);
  if ((ids != nullptr && ids[t] < 0) || top == hidden) {
    for (int j = threadIdx.x; j < slots; j += kIndexThreads) of[j] = 0;
    if (threadIdx.x == 0) divergence[t] = 0;
    return;
  }
  __syncthreads();
  first = begin + static_cast<int>(threadIdx.x);
  A sum = 0;
  for (int j = first; j < slots; j += kIndexThreads) sum += exp(of[j] - top);
  const A lse = top + log(block_sum(sum, shared));
  A total = 0;
  for (int j = first; j < slots; j += kIndexThreads) {
    const A score = of[j], wanted = target[j];
    if (score == hidden) {
      of[j] = 0;
      continue;
    }
    if (wanted > A(0)) total += wanted * (log(wanted) - (score - lse));
    of[j] = exp(score - lse) - wanted;
  }
  for (int j = threadIdx.x; j < begin; j += kIndexThreads) of[j] = 0;
  total = block_sum(total, shared);
  if (threadIdx.x == 0) divergence[t] = total;
}

template <class A>
__global__ void __launch_bounds__(1024)
    mean_over_tokens_kernel(A* mean, A* share, const A* values, const int32_t* ids, int64_t tokens) {
  __shared__ A shared[32];
  A sum = 0, count = 0;
  for (int64_t t = threadIdx.x; t < tokens; t += blockDim.x) {
    if (ids != nullptr && ids[t] < 0) continue;
    sum += values[t];
    count += 1;
  }
  sum = block_sum(sum, shared);
  count = block_sum(count, shared);
  if (threadIdx.x > 0) return;
  share[0] = count > A(0) ? 1 / count : A(0);
  mean[0] = share[0] * sum;
}

template <class T>
__global__ void __launch_bounds__(256)
    scale_by_kernel(T* y, const T* x, const Acc<T>* a, const Acc<T>* b, int64_t elements) {
  const Acc<T> factor = a[0] * b[0];
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x; i < elements; i += int64_t{gridDim.x} * 256)
    y[i] = convert<T>(factor * convert<Acc<T>>(x[i]));
}

void check_channels(const IndexInputs& in) {
  require<DeviceError>(in.q.size(2) <= kMostIndexChannels, "indexer: heads of ", in.q.size(2),
                       " channels; a GPU's kernels take at most ", kMostIndexChannels);
}

unsigned index_warps(int64_t count) {
  return static_cast<unsigned>((count + kIndexWarps - 1) / kIndexWarps);
}

}  // namespace

void index_scores(Stream& stream, const Tensor& scores, const IndexInputs& in) {
  if (scores.elements() == 0) return;
  if (index_on_tensor_cores(in)) return index_scores_by_tiles(stream, scores, in);
  check_channels(in);
  dispatch_device(in.q.dtype(), [&]<class T>() {
    const IndexCall<T> call(in);
    const int bytes = call.d * (kTileKeys + 1) * static_cast<int>(sizeof(Acc<T>));
    cudaFuncSetAttribute(index_scores_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    const dim3 grid(static_cast<unsigned>((call.view.slots + kTileKeys - 1) / kTileKeys),
                    static_cast<unsigned>((call.tokens + kTileTokens - 1) / kTileTokens));
    index_scores_kernel<T>
        <<<grid, kIndexThreads, static_cast<size_t>(bytes), native(stream)>>>(ptr<Acc<T>>(scores), call);
  });
}

void index_scores_backward(Stream& stream, const IndexGradients& to, const Tensor& dscores, const IndexInputs& in) {
  if (dscores.elements() == 0) return;
  if (index_on_tensor_cores(in) && !in.where.positions.defined())
    return index_gradients_by_tiles(stream, to, dscores, in);
  check_channels(in);
  dispatch_device(in.q.dtype(), [&]<class T>() {
    const IndexCall<T> call(in);
    index_queries_backward_kernel<T>
        <<<index_warps(int64_t{call.tokens} * call.heads), kIndexThreads, 0, native(stream)>>>(
            ptr<T>(to.dq), ptr<T>(to.dw), ptr<Acc<T>>(dscores), call);
    const int64_t keys = in.where.rows * in.where.slots;
    index_keys_backward_kernel<T>
        <<<index_warps(keys), kIndexThreads, 0, native(stream)>>>(ptr<Acc<T>>(to.dk), ptr<Acc<T>>(dscores), call, keys);
  });
}

void choose_keys(Stream& stream, const Tensor& chosen, const Tensor& scores) {
  if (chosen.elements() == 0) return;
  dispatch_accumulator(scores.dtype(), [&]<class A>() {
    choose_keys_kernel<A><<<static_cast<unsigned>(scores.size(0)), kChooseThreads, 0, native(stream)>>>(
        ptr<int32_t>(chosen), ptr<A>(scores), static_cast<int>(chosen.size(1)), static_cast<int>(scores.size(1)));
  });
}

void keep_chosen(Stream& stream, const Tensor& scores, const Tensor& chosen) {
  if (scores.elements() == 0) return;
  dispatch_accumulator(scores.dtype(),
                       [&]<class A>() { fill_unchosen(stream, scores, chosen, -static_cast<A>(INFINITY)); });
}

void index_divergence(Stream& stream, const Tensor& divergence, const Tensor& scores, const Tensor& p,
                      const Tensor& ids) {
  if (scores.elements() == 0) return;
  dispatch_accumulator(scores.dtype(), [&]<class A>() {
    index_divergence_kernel<A><<<static_cast<unsigned>(scores.size(0)), kIndexThreads, 0, native(stream)>>>(
        ptr<A>(divergence), ptr<A>(scores), ptr<A>(p), ptr<int32_t>(ids), static_cast<int>(scores.size(1)));
  });
}

void mean_over_tokens(Stream& stream, const Tensor& mean, const Tensor& share, const Tensor& values,
                      const Tensor& ids) {
  dispatch_accumulator(values.dtype(), [&]<class A>() {
    mean_over_tokens_kernel<A><<<1, 1024, 0, native(stream)>>>(ptr<A>(mean), ptr<A>(share), ptr<A>(values),
                                                               ptr<int32_t>(ids), values.elements());
  });
}

void scale_by(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& a, const Tensor& b) {
  if (x.elements() == 0) return;
  dispatch_device(x.dtype(), [&]<class T>() {
    scale_by_kernel<T><<<blocks_for(stream, (x.elements() + 255) / 256), 256, 0, native(stream)>>>(
        ptr<T>(y), ptr<T>(x), ptr<Acc<T>>(a), ptr<Acc<T>>(b), x.elements());
  });
}

}  // namespace witan::kernels::cuda
