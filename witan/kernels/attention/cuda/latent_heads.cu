// Each thread copies one pack of a head, or rotates one pack of pairs. In the backward, a thread also sums a pack of
// pairs of the shared key over all heads.
#include "witan/kernels/attention/cuda/rope.cuh"
#include "witan/kernels/attention/heads.h"
#include "witan/kernels/common/cuda/early_launch.cuh"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>
struct LatentCall {
  T *q, *kv, *rope_key;  // rows
  T *hq, *hk, *hv;       // heads
  const Acc<T>* table;   // null: nothing is rotated
  int64_t tokens;
  int heads, still, turning, value;  // H, n, R, hd_v

  __host__ __device__ int hd() const { return still + turning; }
  __host__ __device__ int pairs() const { return turning / 2; }
  __device__ __forceinline__ const Acc<T>* angles(int64_t t) const {
    return table == nullptr ? nullptr : table + t * turning;
  }
};

// Rotates pairs first .. first + P - 1, in registers. Angles [cos | sin] of all pairs, or null.
template <class A, int P>
__device__ __forceinline__ void turn(A (&a)[P], A (&b)[P], const A* angles, int first, int pairs, A sign) {
  if (angles == nullptr) return;
#pragma unroll
  for (int i = 0; i < P; ++i) {
    const A cosine = angles[first + i], sine = sign * angles[pairs + first + i], x = a[i], y = b[i];
    a[i] = x * cosine - y * sine;
    b[i] = x * sine + y * cosine;
  }
}

template <class T, int P, bool kInterleaved>
__device__ __forceinline__ void turn_row(T* to, const T* from, const Acc<T>* angles, int first, int pairs,
                                         Acc<T> sign) {
  T a[P], b[P];
  load_pairs(a, b, from, first, pairs, kInterleaved);
  Acc<T> x[P], y[P];
#pragma unroll
  for (int i = 0; i < P; ++i) x[i] = convert<Acc<T>>(a[i]), y[i] = convert<Acc<T>>(b[i]);
  turn(x, y, angles, first, pairs, sign);
#pragma unroll
  for (int i = 0; i < P; ++i) a[i] = convert<T>(x[i]), b[i] = convert<T>(y[i]);
  store_pairs(to, a, b, first, pairs, kInterleaved);
}

// C: elements per pack; P: pairs per pack.
template <class T, int C, int P, bool kInterleaved>
__global__ void __launch_bounds__(kThreads) split_kernel(const __grid_constant__ LatentCall<T> n) {
  const int turned = n.pairs() / P, of_head = turned + n.still / C, of_value = n.value / C, hd = n.hd();
  const int64_t per_token = static_cast<int64_t>(n.heads) * (2 * of_head + of_value);
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n.tokens * per_token; i += stride) {
    const int64_t t = i / per_token;
    int item = static_cast<int>(i - t * per_token);
    if (item < 2 * n.heads * of_head) {
      const bool key = item >= n.heads * of_head;
      if (key) item -= n.heads * of_head;
      const int64_t head = t * n.heads + item / of_head;
      item %= of_head;
      T* const to = (key ? n.hk : n.hq) + head * hd;
      if (item < turned) {
        const T* const from = key ? n.rope_key + t * n.turning : n.q + head * hd + n.still;
        turn_row<T, P, kInterleaved>(to + n.still, from, n.angles(t), item * P, n.pairs(), Acc<T>(1));
      } else {
        const T* const from = key ? n.kv + head * (n.still + n.value) : n.q + head * hd;
        const int c = (item - turned) * C;
        store_pack(to + c, load_pack<T, C>(from + c));
      }
    } else {
      item -= 2 * n.heads * of_head;
      const int64_t head = t * n.heads + item / of_value;
      const int c = item % of_value * C;
      store_pack(n.hv + head * n.value + c, load_pack<T, C>(n.kv + head * (n.still + n.value) + n.still + c));
    }
  }
}

// The shared key's gradient: the sum over heads, in order.
template <class T, int P, bool kInterleaved>
__device__ __forceinline__ void sum_key(const LatentCall<T>& n, int64_t t, int first) {
  Acc<T> x[P] = {}, y[P] = {};
  const T* from = n.hk + t * n.heads * n.hd() + n.still;
#pragma unroll 4
  for (int head = 0; head < n.heads; ++head, from += n.hd()) {
    T a[P], b[P];
    load_pairs(a, b, from, first, n.pairs(), kInterleaved);
#pragma unroll
    for (int i = 0; i < P; ++i) x[i] += convert<Acc<T>>(a[i]), y[i] += convert<Acc<T>>(b[i]);
  }
  turn(x, y, n.angles(t), first, n.pairs(), Acc<T>(-1));
  T a[P], b[P];
#pragma unroll
  for (int i = 0; i < P; ++i) a[i] = convert<T>(x[i]), b[i] = convert<T>(y[i]);
  store_pairs(n.rope_key + t * n.turning, a, b, first, n.pairs(), kInterleaved);
}

template <class T, int C, int P, bool kInterleaved>
__global__ void __launch_bounds__(kThreads) merge_kernel(const __grid_constant__ LatentCall<T> n) {
  const int turned = n.pairs() / P, of_query = turned + n.still / C, of_kv = (n.still + n.value) / C, hd = n.hd();
  const int64_t per_token = static_cast<int64_t>(n.heads) * (of_query + of_kv) + turned;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n.tokens * per_token; i += stride) {
    const int64_t t = i / per_token;
    int item = static_cast<int>(i - t * per_token);
    if (item < turned) {  // the longest work comes first
      sum_key<T, P, kInterleaved>(n, t, item * P);
      continue;
    }
    item -= turned;
    if (item < n.heads * of_query) {
      const int64_t head = t * n.heads + item / of_query;
      item %= of_query;
      T* const to = n.q + head * hd;
      const T* const from = n.hq + head * hd;
      const int c = (item - turned) * C;
      if (item < turned)
        turn_row<T, P, kInterleaved>(to + n.still, from + n.still, n.angles(t), item * P, n.pairs(), Acc<T>(-1));
      else
        store_pack(to + c, load_pack<T, C>(from + c));
    } else {
      item -= n.heads * of_query;
      const int64_t head = t * n.heads + item / of_kv;
      const int c = item % of_kv * C;
      const T* const from = c < n.still ? n.hk + head * hd + c : n.hv + head * n.value + c - n.still;
      store_pack(n.kv + head * (n.still + n.value) + c, load_pack<T, C>(from));
    }
  }
}

template <class T, int C, int P, bool kInterleaved, bool kSplit>
void launch(Stream& stream, const LatentCall<T>& call) {
  const int64_t packs = call.tokens * call.heads * (2 * call.hd() + call.value) / C;
  const unsigned blocks = blocks_for(stream, (packs + kThreads - 1) / kThreads, 16);
  if constexpr (kSplit)
    split_kernel<T, C, P, kInterleaved><<<blocks, kThreads, 0, native(stream)>>>(call);
  else
    merge_kernel<T, C, P, kInterleaved><<<blocks, kThreads, 0, native(stream)>>>(call);
}

template <class T, bool kInterleaved, bool kSplit>
void launch_widest(Stream& stream, const LatentCall<T>& call) {
  constexpr int C = kPack<T>, P = kInterleaved ? C / 2 : C;
  const bool wide = call.pairs() % P == 0 && packs<T>(call.q, call.hd()) && packs<T>(call.hq, call.still) &&
                    packs<T>(call.hk, call.hd()) && packs<T>(call.kv, call.still + call.value) &&
                    packs<T>(call.hv, call.value) && packs<T>(call.rope_key, call.turning);
  if (wide)
    launch<T, C, P, kInterleaved, kSplit>(stream, call);
  else
    launch<T, 1, 1, kInterleaved, kSplit>(stream, call);
}

template <bool kSplit>
void run(Stream& stream, const LatentRows& rows, const Heads& heads, const Tensor& table, const RopeArgs& args) {
  const int64_t tokens = rows.rope_key.size(0), turning = rows.rope_key.size(1), hd = heads.q.shape().last();
  if (tokens * heads.q.elements() == 0) return;
  dispatch_device(rows.q.dtype(), [&]<class T>() {
    const LatentCall<T> call{ptr<T>(rows.q),
                             ptr<T>(rows.kv),
                             ptr<T>(rows.rope_key),
                             ptr<T>(heads.q),
                             ptr<T>(heads.k),
                             ptr<T>(heads.v),
                             table.defined() ? ptr<Acc<T>>(table) : nullptr,
                             tokens,
                             static_cast<int>(heads.q.elements() / (tokens * hd)),
                             static_cast<int>(hd - turning),
                             static_cast<int>(turning),
                             static_cast<int>(heads.v.shape().last())};
    if (args.interleaved)
      launch_widest<T, true, kSplit>(stream, call);
    else
      launch_widest<T, false, kSplit>(stream, call);
  });
}

// Turns the queries' heads and, as head H of each token, the shared key.
template <class T, int P, bool kInterleaved>
__global__ void __launch_bounds__(kThreads) turn_kernel(const __grid_constant__ LatentCall<T> n) {
  let_next_begin();
  wait_for_earlier();
  const int packs = n.pairs() / P;
  const int64_t per_token = static_cast<int64_t>(n.heads + 1) * packs;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n.tokens * per_token; i += stride) {
    const int64_t t = i / per_token;
    const int head = static_cast<int>(i - t * per_token) / packs, first = static_cast<int>(i % packs) * P;
    const int64_t of_q = t * n.heads + head;
    const bool key = head == n.heads;
    turn_row<T, P, kInterleaved>(key ? n.hk + t * n.turning : n.hq + of_q * n.turning,
                                 key ? n.rope_key + t * n.turning : n.q + of_q * n.hd() + n.still, n.angles(t), first,
                                 n.pairs(), Acc<T>(1));
  }
}

template <class T, bool kInterleaved>
void launch_turns(Stream& stream, const LatentCall<T>& call) {
  constexpr int P = kInterleaved ? kPack<T> / 2 : kPack<T>;
  const bool wide = call.pairs() % P == 0 && packs<T>(call.q, call.hd()) && packs<T>(call.hq, call.still) &&
                    packs<T>(call.hk, call.turning) && packs<T>(call.rope_key, call.turning);
  const auto launch = [&]<int kEach>() {
    const int64_t units = call.tokens * (call.heads + 1) * call.pairs() / kEach;
    launch_early(stream, turn_kernel<T, kEach, kInterleaved>, blocks_for(stream, (units + kThreads - 1) / kThreads),
                 kThreads, 0, call);
  };
  wide ? launch.template operator()<P>() : launch.template operator()<1>();
}

}  // namespace

void turn_latent_channels(Stream& stream, const TurnedChannels& turned, const Tensor& q, const Tensor& rope_key,
                          const Tensor& table, const RopeArgs& args) {
  const int64_t tokens = rope_key.size(0), turning = rope_key.size(1), heads = turned.q.size(1);
  if (tokens * turning == 0) return;
  dispatch_device(q.dtype(), [&]<class T>() {
    LatentCall<T> call{};
    call.q = ptr<T>(q), call.rope_key = ptr<T>(rope_key), call.hq = ptr<T>(turned.q), call.hk = ptr<T>(turned.key);
    call.table = table.defined() ? ptr<Acc<T>>(table) : nullptr;
    call.tokens = tokens, call.heads = static_cast<int>(heads), call.turning = static_cast<int>(turning);
    call.still = static_cast<int>(q.elements() / (tokens * heads) - turning);
    args.interleaved ? launch_turns<T, true>(stream, call) : launch_turns<T, false>(stream, call);
  });
}

void latent_heads(Stream& stream, const Heads& heads, const LatentRows& rows, const Tensor& table,
                  const RopeArgs& args) {
  run<true>(stream, rows, heads, table, args);
}

void latent_heads_backward(Stream& stream, const LatentRows& to, const Heads& gradients, const Tensor& table,
                           const RopeArgs& args) {
  run<false>(stream, to, gradients, table, args);
}

}  // namespace witan::kernels::cuda
