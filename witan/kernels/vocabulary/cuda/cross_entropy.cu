// One block per row; the forward reads the row once, the backward reads and writes it once.
#include <type_traits>

#include "witan/kernels/vocabulary/cuda/cross_entropy.cuh"
#include "witan/kernels/vocabulary/vocabulary.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 512, kWarps = kThreads / 32, kFlight = 4;
constexpr int kOwn = kLanes / kThreads;  // lanes of a thread: threadIdx.x and those kThreads after it
static_assert(kOwn == 2);

// Divides a row of V elements into whole packs, from the first aligned address on, and the elements before and after
// them.
template <class T>
struct AlignedRow {
  int head, packs, loose;
  __device__ AlignedRow(const T* row, int V, bool vectors) {
    const auto past = static_cast<int>(reinterpret_cast<uintptr_t>(row) % 16);
    head = vectors ? min((16 - past) % 16 / static_cast<int>(sizeof(T)), V) : V;
    packs = (V - head) / kPack<T>;
    loose = V - packs * kPack<T>;
  }
  __device__ int pack(int i) const { return head + i * kPack<T>; }                    // its first element
  __device__ int single(int i) const { return i < head ? i : i + packs * kPack<T>; }  // of the loose ones
};

// A pack at an address that is not aligned, from the two aligned ones that it lies across: both hold elements of it.
template <class T>
__device__ __forceinline__ Pack<T, kPack<T>> load_across(const T* from) {
  const auto past = static_cast<unsigned>(reinterpret_cast<uintptr_t>(from) % 16);
  const auto* aligned = reinterpret_cast<const uint4*>(reinterpret_cast<uintptr_t>(from) - past);
  const uint4 low = aligned[0], high = aligned[1];
  uint32_t words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  // Registers have no addresses: moved by two words, by one, and by bytes.
  if (past & 8) {
#pragma unroll
    for (int i = 0; i < 6; ++i) words[i] = words[i + 2];
  }
  if (past & 4) {
#pragma unroll
    for (int i = 0; i < 5; ++i) words[i] = words[i + 1];
  }
  uint4 out;
  const unsigned bits = 8 * (past & 3);
  out.x = __funnelshift_r(words[0], words[1], bits);
  out.y = __funnelshift_r(words[1], words[2], bits);
  out.z = __funnelshift_r(words[2], words[3], bits);
  out.w = __funnelshift_r(words[3], words[4], bits);
  return reinterpret_cast<const Pack<T, kPack<T>>&>(out);
}

// Adds the next two packs of both lanes; the four loads are in flight together. `kWhole`: all four are within the
// words.
template <bool kAligned, bool kWhole, class T>
__device__ __forceinline__ void add_packs(LogSumExp<Acc<T>> (&lanes)[kOwn], const T* row, int words, int first) {
  constexpr int N = kPack<T>;
  Pack<T, N> packs[2][kOwn];
#pragma unroll
  for (int i = 0; i < 2 * kOwn; ++i) {
    const int begin = (first + i * kThreads) * N;
    Pack<T, N>& pack = packs[i / kOwn][i % kOwn];
    if (kWhole || begin + N <= words) {
      pack = kAligned ? load_pack<T, N>(row + begin) : load_across(row + begin);
    } else {
#pragma unroll
      for (int n = 0; n < N; ++n)
        pack.at[n] = begin + n < words ? row[begin + n] : convert<T>(-std::numeric_limits<float>::infinity());
    }
  }
#pragma unroll
  for (int lane = 0; lane < kOwn; ++lane) {
    Acc<T> x[2 * N];
#pragma unroll
    for (int i = 0; i < 2 * N; ++i) x[i] = convert<Acc<T>>(packs[i / N][lane].at[i % N]);
    lanes[lane].add(x);
  }
}

// A thread's lanes of a row. Their elements and order depend on the number of words alone, not on the row's address, so
// that a row has the same bits in every place.
template <bool kAligned, class T>
__device__ __forceinline__ void add_row(LogSumExp<Acc<T>> (&lanes)[kOwn], const T* row, int words) {
  const int packs = words / kPack<T>;
  int pack = threadIdx.x;
  for (; pack + (2 * kOwn - 1) * kThreads < packs; pack += 2 * kOwn * kThreads)
    add_packs<kAligned, true>(lanes, row, words, pack);
  if (pack * kPack<T> < words) add_packs<kAligned, false>(lanes, row, words, pack);
}

// The result for a token's logits: its loss, or the target's logit, which is 0 if no column has the target's id.
enum class Found { loss, at_target };

template <Found kFound, class T>
__global__ void __launch_bounds__(kThreads, 2)
    forward_kernel(Acc<T>* lse, Acc<T>* found, const T* logits, const int32_t* targets, const Acc<T>* weights, int V,
                   int begin, int words) {
  using A = Acc<T>;
  __shared__ A partials[2 * kWarpsOfLanes];
  const int64_t t = blockIdx.x;
  if (weights[t] == A(0)) {
    if (threadIdx.x == 0) lse[t] = found[t] = 0;
    return;
  }
  const T* row = logits + t * V;
  const bool aligned = reinterpret_cast<uintptr_t>(row) % 16 == 0;
  LogSumExp<A> lanes[kOwn];
  if (aligned)
    add_row<true>(lanes, row, words);
  else
    add_row<false>(lanes, row, words);
  const A log_sum = log_sum_exp(lanes, partials);
  if (threadIdx.x != 0) return;
  lse[t] = log_sum;
  const int target = targets[t] - begin;
  const A at_target = target >= 0 && target < words ? convert<A>(row[target]) : A(0);
  found[t] = kFound == Found::loss ? log_sum - at_target : at_target;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    entropies_kernel(Acc<T>* entropies, const T* logits, const Acc<T>* lse, const Acc<T>* weights, int V, int words) {
  using A = Acc<T>;
  __shared__ A shared[kWarps];
  const int64_t t = blockIdx.x;
  const T* row = logits + t * V;
  A sum = 0;
  for (int v = threadIdx.x; v < words && weights[t] != A(0); v += kThreads) {
    // A logit of minus infinity has no part, where 0 x infinity would be NaN.
    const A log_p = max(convert<A>(row[v]) - lse[t], std::numeric_limits<A>::lowest());
    sum -= quick_exp(log_p) * log_p;
  }
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) entropies[t] = sum;
}

// One thread per token.
template <class A>
__global__ void __launch_bounds__(kThreads)
    combine_kernel(A* losses, A* lse, const A* parts, const A* weights, int64_t ranks, int64_t tokens) {
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (t >= tokens) return;
  LogSumExp<A> total;
  A at_target = 0;
  for (int64_t r = 0; r < ranks; ++r) {
    const A log_sum[1] = {parts[2 * r * tokens + t]};
    total.add(log_sum);
    at_target += parts[(2 * r + 1) * tokens + t];
  }
  const A log_sum = total.most + log(total.sum);
  const bool counts = weights[t] != A(0);
  lse[t] = counts ? log_sum : A(0);
  losses[t] = counts ? log_sum - at_target : A(0);
}

constexpr int kSumThreads = 1024;

template <class A>
__global__ void __launch_bounds__(kSumThreads)
    weighted_sum_kernel(A* loss, const A* losses, const A* weights, int64_t tokens) {
  __shared__ double shared[kSumThreads / 32];
  double sum = 0;
  for (int64_t t = threadIdx.x; t < tokens; t += kSumThreads)
    sum += static_cast<double>(weights[t]) * static_cast<double>(losses[t]);
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) *loss = static_cast<A>(sum);
}

template <int kCount, class T>
__device__ __forceinline__ void write_packs(T* out, const T* row, const AlignedRow<T>& cut, int first,
                                            const Gradient<T>& gradient) {
  constexpr int N = kPack<T>;
  Pack<T, N> packs[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) packs[i] = load_pack<T, N>(row + cut.pack(first + i * kThreads));
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int v = cut.pack(first + i * kThreads);
#pragma unroll
    for (int n = 0; n < N; ++n) packs[i].at[n] = gradient.at(packs[i].at[n], v + n);
    store_pack(out + v, packs[i]);
  }
}

// `out` may be `row`: each element is read and written by the same thread.
template <class T>
__global__ void __launch_bounds__(kThreads, 2)
    backward_kernel(T* dlogits, const Acc<T>* dloss, const T* logits, const Acc<T>* lse, const int32_t* targets,
                    const Acc<T>* weights, int V, int begin, int words) {
  using A = Acc<T>;
  const int64_t t = blockIdx.x;
  const T* row = logits + t * V;
  T* out = dlogits + t * V;
  for (int v = words + threadIdx.x; v < V; v += kThreads) out[v] = convert<T>(0.0f);
  const AlignedRow<T> cut(row, words, (reinterpret_cast<uintptr_t>(row) - reinterpret_cast<uintptr_t>(out)) % 16 == 0);
  if (weights[t] == A(0)) {
    for (int i = threadIdx.x; i < cut.packs; i += kThreads) store_pack(out + cut.pack(i), Pack<T, kPack<T>>{});
    for (int i = threadIdx.x; i < cut.loose; i += kThreads) out[cut.single(i)] = convert<T>(0.0f);
    return;
  }
  const Gradient<T> gradient{dloss ? *dloss * weights[t] : weights[t], lse[t], targets[t] - begin};  // without dloss: 1
  int pack = threadIdx.x;
  for (; pack + (kFlight - 1) * kThreads < cut.packs; pack += kFlight * kThreads)
    write_packs<kFlight>(out, row, cut, pack, gradient);
  for (; pack < cut.packs; pack += kThreads) write_packs<1>(out, row, cut, pack, gradient);
  for (int i = threadIdx.x; i < cut.loose; i += kThreads)
    out[cut.single(i)] = gradient.at(row[cut.single(i)], cut.single(i));
}

template <Found kFound>
void launch_forward(Stream& stream, const Tensor& logits, const Tensor& targets, const Tensor& weights,
                    const WordColumns& columns, void* lse, void* found) {
  const int64_t T = logits.size(0);
  if (T == 0) return;
  dispatch_device(logits.dtype(), [&]<class E>() {
    using A = Acc<E>;
    forward_kernel<kFound><<<static_cast<unsigned>(T), kThreads, 0, native(stream)>>>(
        static_cast<A*>(lse), static_cast<A*>(found), ptr<E>(logits), ptr<int32_t>(targets), ptr<A>(weights),
        static_cast<int>(logits.size(1)), static_cast<int>(columns.begin), static_cast<int>(columns.words));
  });
}

}  // namespace

void sum_losses(Stream& stream, const Tensor& loss, const Tensor& losses, const Tensor& weights) {
  dispatch_accumulator(weights.dtype(), [&]<class A>() {
    weighted_sum_kernel<<<1, kSumThreads, 0, native(stream)>>>(ptr<A>(loss), ptr<A>(losses), ptr<A>(weights),
                                                               losses.elements());
  });
}

void cross_entropy_forward(Stream& stream, const Tensor& loss, const Tensor& losses, const Tensor& lse,
                           const Tensor& logits, const Tensor& targets, const Tensor& weights, int64_t words) {
  launch_forward<Found::loss>(stream, logits, targets, weights, {0, words}, lse.raw(), losses.raw());
  sum_losses(stream, loss, losses, weights);
}

void cross_entropy_backward(Stream& stream, const Tensor& dlogits, const Tensor& dloss, const Tensor& logits,
                            const Tensor& lse, const Tensor& targets, const Tensor& weights,
                            const WordColumns& columns) {
  if (logits.elements() == 0) return;
  dispatch_device(logits.dtype(), [&]<class E>() {
    using A = Acc<E>;
    backward_kernel<<<static_cast<unsigned>(logits.size(0)), kThreads, 0, native(stream)>>>(
        ptr<E>(dlogits), ptr<A>(dloss), ptr<E>(logits), ptr<A>(lse), ptr<int32_t>(targets), ptr<A>(weights),
        static_cast<int>(logits.size(1)), static_cast<int>(columns.begin), static_cast<int>(columns.words));
  });
}

void token_entropies(Stream& stream, const Tensor& entropies, const Tensor& logits, const Tensor& lse,
                     const Tensor& weights, int64_t words) {
  if (entropies.elements() == 0) return;
  dispatch_device(logits.dtype(), [&]<class E>() {
    using A = Acc<E>;
    entropies_kernel<<<static_cast<unsigned>(entropies.elements()), kThreads, 0, native(stream)>>>(
        ptr<A>(entropies), ptr<E>(logits), ptr<A>(lse), ptr<A>(weights), static_cast<int>(logits.size(1)),
        static_cast<int>(words));
  });
}

void cross_entropy_part(Stream& stream, const Tensor& part, const Tensor& logits, const Tensor& targets,
                        const Tensor& weights, const WordColumns& columns) {
  launch_forward<Found::at_target>(stream, logits, targets, weights, columns, part.raw(),
                                   part.raw() + part.bytes() / 2);
}

void cross_entropy_combine(Stream& stream, const Tensor& loss, const Tensor& losses, const Tensor& lse,
                           const Tensor& parts, const Tensor& weights) {
  const int64_t T = losses.elements();
  dispatch_accumulator(weights.dtype(), [&]<class A>() {
    if (T > 0)
      combine_kernel<<<static_cast<unsigned>((T + kThreads - 1) / kThreads), kThreads, 0, native(stream)>>>(
          ptr<A>(losses), ptr<A>(lse), ptr<A>(parts), ptr<A>(weights), parts.size(0), T);
  });
  sum_losses(stream, loss, losses, weights);
}

}  // namespace witan::kernels::cuda
