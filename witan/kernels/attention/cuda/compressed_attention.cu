// A warp has a head of a token, whose keys and entries it takes one after another; backward a block has a key or an
// entry, and its warps the heads of the tokens that attend to it.
#include "witan/base/error.h"
#include "witan/kernels/attention/cuda/seen_slots.cuh"
#include "witan/kernels/attention/cuda/sequence_place.cuh"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;
constexpr int kMostChannels = 512, kLaneParts = kMostChannels / 32;

template <class T>
struct Call {
  explicit Call(const CompressedInputs& in)
      : q(ptr<const T>(in.q)),
        keys(ptr<const T>(in.keys)),
        sinks(ptr<const T>(in.sinks)),
        entries(ptr<const T>(in.entries)),
        chosen(ptr<const int32_t>(in.chosen)),
        places(in.places),
        C(in.keys.size(1)),
        E(in.entries.defined() ? in.entries.size(1) : 0),
        heads(static_cast<int>(in.q.size(1))),
        d(static_cast<int>(in.q.size(2))),
        K(in.chosen.defined() ? static_cast<int>(in.chosen.size(1)) : 0),
        window(static_cast<int>(in.window)),
        m(static_cast<int>(in.m)),
        scale(static_cast<Acc<T>>(in.scale)) {}

  __device__ const T* key(const Place& at, int position) const {
    return keys + (at.row * C + (at.begin + position) % C) * d;
  }
  __device__ const T* entry(const Place& at, int i) const { return entries + (at.row * E + at.first_entry(m) + i) * d; }
  __device__ int64_t sum_at(const Place& at, int n) const {  // in lse
    return (static_cast<int64_t>(at.row) * heads + n) * C + at.begin + at.position;
  }
  __device__ bool chose(int64_t t, int i) const { return K == 0 || has_slot(chosen + t * K, K, i); }
  // Calls use(key) for the keys and entries that token t attends to.
  template <class Use>
  __device__ void for_seen(int64_t t, const Place& at, const Use& use) const {
    if (at.padding()) return;
    for (int p = max(at.position - window + 1, 0); p <= at.position; ++p) use(key(at, p));
    if (E == 0) return;
    if (K > 0) {
      for (int i = 0; i < K && chosen[t * K + i] >= 0; ++i) use(entry(at, chosen[t * K + i]));
    } else {
      for (int i = 0; i < at.entries(m); ++i) use(entry(at, i));
    }
  }

  const T *q, *keys, *sinks, *entries;
  const int32_t* chosen;
  Places places;
  int64_t C, E;
  int heads, d, K, window, m;
  Acc<T> scale;
};

// A lane's channels of a row of d, in registers.
template <class A>
struct LaneRow {
  A at[kLaneParts];

  template <class T>
  __device__ __forceinline__ void load(const T* row, int d) {
#pragma unroll
    for (int i = 0; i < kLaneParts; ++i) {
      const int c = threadIdx.x % 32 + 32 * i;
      at[i] = c < d ? convert<A>(row[c]) : A(0);
    }
  }
  __device__ __forceinline__ A dot(const LaneRow& other) const {
    A sum = 0;
#pragma unroll
    for (int i = 0; i < kLaneParts; ++i) sum += at[i] * other.at[i];
    return warp_sum(sum);
  }
  __device__ __forceinline__ void add(A factor, const LaneRow& other) {
#pragma unroll
    for (int i = 0; i < kLaneParts; ++i) at[i] += factor * other.at[i];
  }
  template <class T>
  __device__ __forceinline__ void store(T* row, int d, A factor = A(1)) const {
#pragma unroll
    for (int i = 0; i < kLaneParts; ++i) {
      const int c = threadIdx.x % 32 + 32 * i;
      if (c < d) row[c] = convert<T>(factor * at[i]);
    }
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads) forward_kernel(T* y, Acc<T>* lse, const Call<T> call, int64_t S) {
  using A = Acc<T>;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (at >= call.places.tokens * call.heads) return;
  const int64_t t = at / call.heads;
  const int n = static_cast<int>(at % call.heads);
  const Place place = call.places[t];
  LaneRow<A> q, key, sums = {};
  q.load(call.q + at * call.d, call.d);
  A top = convert<A>(call.sinks[n]), sum = 1;
  call.for_seen(t, place, [&](const T* from) {
    key.load(from, call.d);
    const A s = call.scale * q.dot(key), most = max(top, s), keep = exp(top - most), weight = exp(s - most);
    top = most;
    sum = sum * keep + weight;
#pragma unroll
    for (int i = 0; i < kLaneParts; ++i) sums.at[i] = sums.at[i] * keep + weight * key.at[i];
  });
  sums.store(y + at * call.d, call.d, A(1) / sum);
  if (lse == nullptr || threadIdx.x % 32 != 0) return;
  const int64_t to =
      place.padding() ? (static_cast<int64_t>(place.row) * call.heads + n) * call.C + t % S : call.sum_at(place, n);
  lse[to] = top + log(sum);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    queries_backward_kernel(T* dq, Acc<T>* delta, const T* dy, const T* y, const Acc<T>* lse, const Call<T> call) {
  using A = Acc<T>;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (at >= call.places.tokens * call.heads) return;
  const int64_t t = at / call.heads;
  const Place place = call.places[t];
  LaneRow<A> q, g, key, sums = {};
  g.load(dy + at * call.d, call.d);
  key.load(y + at * call.d, call.d);
  const A of_output = g.dot(key);
  q.load(call.q + at * call.d, call.d);
  const A log_sum = place.padding() ? A(0) : lse[call.sum_at(place, static_cast<int>(at % call.heads))];
  call.for_seen(t, place, [&](const T* from) {
    key.load(from, call.d);
    const A p = exp(call.scale * q.dot(key) - log_sum);
    sums.add(call.scale * p * (g.dot(key) - of_output), key);
  });
  sums.store(dq + at * call.d, call.d);
  if (threadIdx.x % 32 == 0) delta[at] = of_output;
}

// The tokens that attend to a key: first .. last of its sequence; of an entry those that chose it.
struct Range {
  int64_t first, last;
  int number;  // of the entry; -1: a key
};

// The gradient of one key or entry. A key is also its value.
template <class T>
__device__ void key_gradient(T* to, const T* from, const Range& range, const Acc<T>* delta, const T* dy,
                             const Acc<T>* lse, const Call<T>& call) {
  using A = Acc<T>;
  __shared__ A shared[kWarps][kMostChannels];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  LaneRow<A> key, q, g, sums = {};
  key.load(from, call.d);
  for (int64_t t = range.first; t <= range.last; ++t) {
    if (range.number >= 0 && !call.chose(t, range.number)) continue;
    const Place place = call.places[t];
    for (int n = warp; n < call.heads; n += kWarps) {
      const int64_t at = t * call.heads + n;
      q.load(call.q + at * call.d, call.d);
      g.load(dy + at * call.d, call.d);
      const A p = exp(call.scale * q.dot(key) - lse[call.sum_at(place, n)]);
      sums.add(call.scale * p * (g.dot(key) - delta[at]), q);
      sums.add(p, g);
    }
  }
#pragma unroll
  for (int i = 0; i < kLaneParts; ++i) shared[warp][lane + 32 * i] = sums.at[i];
  __syncthreads();
  for (int c = threadIdx.x; c < call.d; c += kThreads) {
    A sum = 0;
#pragma unroll
    for (int of = 0; of < kWarps; ++of) sum += shared[of][c];
    to[c] = convert<T>(sum);
  }
}

// The last token, from t on and at most `reach` after it, of t's sequence.
template <class T>
__device__ int64_t last_of_sequence(const Call<T>& call, int64_t t, int64_t reach) {
  const Place here = call.places[t];
  const auto same = [&](int64_t other) {
    const Place there = call.places[other];
    return there.row == here.row && there.begin == here.begin && !there.padding();
  };
  int64_t low = t, high = min(t + reach, call.places.tokens - 1);  // sequences are runs of tokens
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    if (same(middle))
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    keys_backward_kernel(T* dkeys, const Acc<T>* delta, const T* dy, const Acc<T>* lse, const Call<T> call) {
  const int64_t j = blockIdx.x;
  const bool padding = call.places[j].padding();
  const Range range{j, padding ? j - 1 : last_of_sequence(call, j, call.window - 1), -1};
  key_gradient(dkeys + j * call.d, call.keys + j * call.d, range, delta, dy, lse, call);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    entries_backward_kernel(T* dentries, const int32_t* slots, const int32_t* positions, const Acc<T>* delta,
                            const T* dy, const Acc<T>* lse, const Call<T> call) {
  const int64_t slot = blockIdx.x, first = slots[slot];
  Range range{0, -1, positions[slot] / call.m};
  if (first >= 0) range.first = first + call.m - 1, range.last = last_of_sequence(call, range.first, call.C);
  key_gradient(dentries + slot * call.d, call.entries + slot * call.d, range, delta, dy, lse, call);
}

void check_channels(const CompressedInputs& in) {
  require<ShapeError>(in.q.size(2) <= kMostChannels, "compressed attention on GPUs has heads of at most ",
                      kMostChannels, " channels, got ", in.q.size(2));
}

template <class T>
unsigned warps_for(const Call<T>& call) {
  return static_cast<unsigned>((call.places.tokens * call.heads + kWarps - 1) / kWarps);
}

}  // namespace

void compressed_attention_forward(Stream& stream, const Tensor& y, const Tensor& lse, const CompressedInputs& in) {
  if (y.elements() == 0) return;
  check_channels(in);
  dispatch_device(in.q.dtype(), [&]<class T>() {
    const Call<T> call(in);
    forward_kernel<T><<<warps_for(call), kThreads, 0, native(stream)>>>(ptr<T>(y), ptr<Acc<T>>(lse), call, call.C);
  });
}

void compressed_attention_backward(Stream& stream, const CompressedGradients& to, const Tensor& dy, const Tensor& y,
                                   const Tensor& lse, const CompressedInputs& in, const EntryPlaces& entries) {
  if (dy.elements() == 0) return;
  check_channels(in);
  dispatch_device(in.q.dtype(), [&]<class T>() {
    using A = Acc<T>;
    const Call<T> call(in);
    queries_backward_kernel<T><<<warps_for(call), kThreads, 0, native(stream)>>>(
        ptr<T>(to.dq), ptr<A>(to.delta), ptr<const T>(dy), ptr<const T>(y), ptr<const A>(lse), call);
    keys_backward_kernel<T><<<static_cast<unsigned>(call.places.tokens), kThreads, 0, native(stream)>>>(
        ptr<T>(to.dkeys), ptr<const A>(to.delta), ptr<const T>(dy), ptr<const A>(lse), call);
    if (to.dentries.defined() && to.dentries.elements() > 0)
      entries_backward_kernel<T><<<static_cast<unsigned>(entries.slots.elements()), kThreads, 0, native(stream)>>>(
          ptr<T>(to.dentries), ptr<const int32_t>(entries.slots), ptr<const int32_t>(entries.positions),
          ptr<const A>(to.delta), ptr<const T>(dy), ptr<const A>(lse), call);
  });
}

}  // namespace witan::kernels::cuda
