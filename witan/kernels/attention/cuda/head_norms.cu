// One warp per head of a token, with V channels per lane. The channels of a rotated pair meet in shared memory. Blocks
// with blockIdx.y = 1 process keys, the others queries.
#include "witan/kernels/attention/kv_cache.h"
#include "witan/kernels/common/cuda/add_strips.cuh"
#include "witan/kernels/common/cuda/early_launch.cuh"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32, kMostChannels = 512;

struct Turn {
  int hd, dims;
  bool interleaved;
};

// Channel d of a head, rotated by its token's row of the table: [cos | sin] of dims / 2 pairs.
template <class A>
__device__ __forceinline__ A turned(const A* head, const A* table, const Turn& n, int d, A sign) {
  const A own = head[d];
  if (d >= n.dims) return own;
  const int half = n.dims / 2;
  const bool second = n.interleaved ? d % 2 != 0 : d >= half;
  const int pair = n.interleaved ? d / 2 : second ? d - half : d;
  const A other = head[n.interleaved ? (second ? d - 1 : d + 1) : (second ? d - half : d + half)];
  const A cosine = table[pair], sine = sign * table[half + pair];
  return second ? other * sine + own * cosine : own * cosine - other * sine;
}

// A lane's V channels of a row; channels beyond its end are zeros and are not stored.
template <class T, int V>
struct Channels {
  static constexpr bool kOnePack = V * sizeof(T) <= 16;
  Acc<T> at[V];

  __device__ static __forceinline__ int first() { return static_cast<int>(threadIdx.x % 32) * V; }
  __device__ __forceinline__ void load(const T* row, int hd, bool packed) {
    if constexpr (kOnePack) {
      if (packed && first() < hd) {
        const auto pack = load_pack<T, V>(row + first());
#pragma unroll
        for (int j = 0; j < V; ++j) at[j] = convert<Acc<T>>(pack.at[j]);
        return;
      }
    }
#pragma unroll
    for (int j = 0; j < V; ++j) at[j] = first() + j < hd ? convert<Acc<T>>(row[first() + j]) : Acc<T>(0);
  }
  __device__ __forceinline__ void store(T* row, int hd, bool packed) const {
    if constexpr (kOnePack) {
      if (packed && first() < hd) {
        Pack<T, V> pack;
#pragma unroll
        for (int j = 0; j < V; ++j) pack.at[j] = convert<T>(at[j]);
        return store_pack<T, V>(row + first(), pack);
      }
    }
#pragma unroll
    for (int j = 0; j < V; ++j)
      if (first() + j < hd) row[first() + j] = convert<T>(at[j]);
  }
};

// Rotates the head of a warp, whose lanes exchange channels through `shared`.
template <class T, int V>
__device__ __forceinline__ void turn(Channels<T, V>& head, Acc<T>* shared, const Acc<T>* table, const Turn& n,
                                     Acc<T> sign) {
  const int first = Channels<T, V>::first();
#pragma unroll
  for (int j = 0; j < V; ++j) shared[first + j] = head.at[j];
  __syncwarp();
#pragma unroll
  for (int j = 0; j < V; ++j)
    if (first + j < n.hd) head.at[j] = turned(shared, table, n, first + j, sign);
  __syncwarp();
}

template <class T>
struct ForwardOf {
  T* y;
  Acc<T>* r;
  const T *x, *w;
  Acc<T> added;  // to the weight
  int64_t rows;
  int heads;
};

template <class T, int V>
__global__ void __launch_bounds__(kThreads)
    head_norms_forward_kernel(const __grid_constant__ ForwardOf<T> q, const __grid_constant__ ForwardOf<T> k,
                              const Acc<T>* table, const Turn n, Acc<T> eps, bool packed) {
  using A = Acc<T>;
  __shared__ A shared[kWarps][32 * V];
  const int warp = threadIdx.x / 32;
  const ForwardOf<T>& of = blockIdx.y == 0 ? q : k;
  Channels<T, V> weight, head;
  let_next_begin();
  weight.load(of.w, n.hd, packed);
  wait_for_earlier();
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + warp; row < of.rows;
       row += static_cast<int64_t>(gridDim.x) * kWarps) {
    head.load(of.x + row * n.hd, n.hd, packed);
    A squares = 0;
#pragma unroll
    for (int j = 0; j < V; ++j) squares += head.at[j] * head.at[j];
    const A scale = A(1) / sqrt(warp_sum(squares) / static_cast<A>(n.hd) + eps);
    if (threadIdx.x % 32 == 0) of.r[row] = scale;
#pragma unroll
    for (int j = 0; j < V; ++j) head.at[j] = convert<A>(convert<T>(head.at[j] * scale * (weight.at[j] + of.added)));
    if (n.dims > 0) turn<T, V>(head, shared[warp], table + row / of.heads * n.dims, n, A(1));
    head.store(of.y + row * n.hd, n.hd, packed);
  }
}

template <class T>
struct CacheCall {
  T *q, *keys, *values;
  const T *packed, *q_weight, *k_weight;
  Acc<T> q_added, k_added;  // to the weights
  const int32_t *rows, *positions;
  int64_t tokens;
  int queries, groups, hd, hd_v, slots;
};

// A warp per head of queries, keys or values of a token.
template <class T, int V>
__global__ void __launch_bounds__(kThreads)
    heads_to_cache_kernel(const __grid_constant__ CacheCall<T> call, const Acc<T>* table, const Turn n, Acc<T> eps,
                          bool packed) {
  using A = Acc<T>;
  __shared__ A shared[kWarps][32 * V];
  const int warp = threadIdx.x / 32, turning = call.queries + call.groups, heads = turning + call.groups;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + warp, t = item / heads;
  const int head = static_cast<int>(item % heads);
  const bool is_query = head < call.queries, is_value = head >= turning;
  Channels<T, V> weight, own;
  let_next_begin();
  if (!is_value) weight.load(is_query ? call.q_weight : call.k_weight, n.hd, packed);
  wait_for_earlier();
  if (t >= call.tokens) return;
  const T* const row = call.packed + t * (turning * call.hd + call.groups * call.hd_v);
  const int64_t slot = static_cast<int64_t>(call.rows[t]) * call.slots + call.positions[t] % call.slots;
  if (is_value) {
    own.load(row + turning * call.hd + (head - turning) * call.hd_v, call.hd_v, packed);
    return own.store(call.values + (slot * call.groups + head - turning) * call.hd_v, call.hd_v, packed);
  }
  own.load(row + head * call.hd, n.hd, packed);
  A squares = 0;
#pragma unroll
  for (int j = 0; j < V; ++j) squares += own.at[j] * own.at[j];
  const A scale = A(1) / sqrt(warp_sum(squares) / static_cast<A>(n.hd) + eps),
          added = is_query ? call.q_added : call.k_added;
#pragma unroll
  for (int j = 0; j < V; ++j) own.at[j] = convert<A>(convert<T>(own.at[j] * scale * (weight.at[j] + added)));
  if (n.dims > 0) turn<T, V>(own, shared[warp], table + t * n.dims, n, A(1));
  own.store(is_query ? call.q + (t * call.queries + head) * call.hd
                     : call.keys + (slot * call.groups + head - call.queries) * call.hd,
            n.hd, packed);
}

template <class T>
struct BackwardOf {
  T* dx;
  const T *dy, *x, *w;
  Acc<T> added;  // to the weight
  const Acc<T>* r;
  int64_t rows;
  int heads;
};

// strips[block of q or k, d] = sum over the block's rows of g x r, where g is dy rotated back
template <class T, int V>
__global__ void __launch_bounds__(kThreads)
    head_norms_backward_kernel(const __grid_constant__ BackwardOf<T> q, const __grid_constant__ BackwardOf<T> k,
                               Acc<T>* strips, const Acc<T>* table, const Turn n, bool packed) {
  using A = Acc<T>;
  __shared__ A shared[kWarps][32 * V];
  const int warp = threadIdx.x / 32;
  const BackwardOf<T>& of = blockIdx.y == 0 ? q : k;
  Channels<T, V> weight, g, in;
  A sums[V] = {};
  weight.load(of.w, n.hd, packed);
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + warp; row < of.rows;
       row += static_cast<int64_t>(gridDim.x) * kWarps) {
    g.load(of.dy + row * n.hd, n.hd, packed);
    in.load(of.x + row * n.hd, n.hd, packed);
    const A scale = of.r[row];
    if (n.dims > 0) turn<T, V>(g, shared[warp], table + row / of.heads * n.dims, n, A(-1));
    A dot = 0;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      g.at[j] = convert<A>(convert<T>(g.at[j]));
      const A product = g.at[j] * in.at[j];
      dot += (weight.at[j] + of.added) * product;
      sums[j] += product * scale;
    }
    const A pull = warp_sum(dot) / static_cast<A>(n.hd) * scale * scale;
#pragma unroll
    for (int j = 0; j < V; ++j) g.at[j] = scale * ((weight.at[j] + of.added) * g.at[j] - in.at[j] * pull);
    g.store(of.dx + row * n.hd, n.hd, packed);
  }
#pragma unroll
  for (int j = 0; j < V; ++j) shared[warp][Channels<T, V>::first() + j] = sums[j];
  __syncthreads();
  for (int d = threadIdx.x; d < n.hd; d += kThreads) {
    A sum = 0;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) sum += shared[i][d];
    strips[(static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x) * n.hd + d] = sum;
  }
}

// Calls launch.template operator()<V>() with the fewest channels per lane that hold a head.
template <class Launch>
void by_channels(int64_t hd, const Launch& launch) {
  assert(hd <= kMostChannels);
  if (hd <= 32)
    launch.template operator()<1>();
  else if (hd <= 64)
    launch.template operator()<2>();
  else if (hd <= 128)
    launch.template operator()<4>();
  else if (hd <= 256)
    launch.template operator()<8>();
  else
    launch.template operator()<16>();
}

// Whether every lane's channels of every row are an aligned pack.
template <class T, int V>
bool all_packed(int64_t hd, std::initializer_list<const Tensor*> tensors) {
  if (V * sizeof(T) > 16) return false;
  return std::ranges::all_of(tensors, [&](const Tensor* tensor) { return packs<T>(ptr<T>(*tensor), hd, V); });
}

Turn turn_of(const Tensor& x, const RopeArgs& args) {
  return {static_cast<int>(x.size(3)), static_cast<int>(args.dims), args.interleaved};
}

int64_t rows_of(const Tensor& x) {
  return x.size(0) * x.size(1) * x.size(2);
}

// The most strips for q and k together, on every device: the order of summation depends on their number.
constexpr int64_t kMostStrips = 2 * 132;

}  // namespace

void head_norms_forward(Stream& stream, const HeadNorm& q, const HeadNorm& k, const Tensor& table, const RopeArgs& args,
                        double eps) {
  const int64_t rows = std::max(rows_of(q.x), rows_of(k.x)), hd = q.x.size(3);
  if (rows == 0) return;
  dispatch_device(q.x.dtype(), [&]<class T>() {
    using A = Acc<T>;
    const auto of = [](const HeadNorm& n) {
      return ForwardOf<T>{ptr<T>(n.y),
                          ptr<A>(n.r),
                          ptr<T>(n.x),
                          ptr<T>(n.w.values),
                          n.w.added<A>(),
                          rows_of(n.x),
                          static_cast<int>(n.x.size(2))};
    };
    by_channels(hd, [&]<int V>() {
      const dim3 blocks(blocks_for(stream, (rows + kWarps - 1) / kWarps, 8), 2);
      launch_early(stream, head_norms_forward_kernel<T, V>, blocks, kThreads, 0, of(q), of(k), ptr<A>(table),
                   turn_of(q.x, args), static_cast<A>(eps),
                   all_packed<T, V>(hd, {&q.y, &q.x, &q.w.values, &k.y, &k.x, &k.w.values}));
    });
  });
}

void heads_to_cache(Stream& stream, const Tensor& q, const Tensor& keys, const Tensor& values,
                    const CachedProjections& from, const CacheTokens& tokens) {
  const int64_t T = from.packed.size(0), G = keys.size(2), hd = keys.size(3), hd_v = values.size(3);
  if (T == 0) return;
  dispatch_device(q.dtype(), [&]<class E>() {
    using A = Acc<E>;
    CacheCall<E> call{};
    call.q = ptr<E>(q), call.keys = ptr<E>(keys), call.values = ptr<E>(values), call.packed = ptr<E>(from.packed);
    call.q_weight = ptr<E>(from.q_norm.values), call.k_weight = ptr<E>(from.k_norm.values);
    call.q_added = from.q_norm.added<A>(), call.k_added = from.k_norm.added<A>();
    call.rows = ptr<int32_t>(tokens.rows), call.positions = ptr<int32_t>(tokens.positions);
    call.tokens = T, call.queries = static_cast<int>(q.elements() / (T * hd)), call.groups = static_cast<int>(G);
    call.hd = static_cast<int>(hd), call.hd_v = static_cast<int>(hd_v), call.slots = static_cast<int>(keys.size(1));
    const Turn turn{call.hd, static_cast<int>(from.rope.dims), from.rope.interleaved};
    const int64_t heads = T * (call.queries + 2 * G);
    by_channels(std::max(hd, hd_v), [&]<int V>() {
      const bool packed = all_packed<E, V>(hd, {&q, &keys, &from.packed, &from.q_norm.values, &from.k_norm.values}) &&
                          all_packed<E, V>(hd_v, {&values, &from.packed});
      launch_early(stream, heads_to_cache_kernel<E, V>, static_cast<unsigned>((heads + kWarps - 1) / kWarps), kThreads,
                   0, call, ptr<A>(from.table), turn, static_cast<A>(from.eps), packed);
    });
  });
}

void head_norms_backward(Stream& stream, const HeadNormGradient& q, const HeadNormGradient& k, const Tensor& table,
                         const RopeArgs& args) {
  const int64_t rows = std::max(rows_of(q.x), rows_of(k.x)), hd = q.x.size(3);
  dispatch_device(q.x.dtype(), [&]<class T>() {
    using A = Acc<T>;
    const auto of = [](const HeadNormGradient& n) {
      return BackwardOf<T>{ptr<T>(n.dx),   ptr<T>(n.dy), ptr<T>(n.x),  ptr<T>(n.w.values),
                           n.w.added<A>(), ptr<A>(n.r),  rows_of(n.x), static_cast<int>(n.x.size(2))};
    };
    const int64_t count = std::min(kMostStrips, (rows + kWarps - 1) / kWarps);
    Strips<A> of_q(stream, 2 * count, hd);
    of_q.count = count;
    Strips<A> of_k = of_q;
    of_k.strips += count * hd;
    by_channels(hd, [&]<int V>() {
      if (count > 0)
        head_norms_backward_kernel<T, V><<<dim3(static_cast<unsigned>(count), 2), kThreads, 0, native(stream)>>>(
            of(q), of(k), of_q.strips, ptr<A>(table), turn_of(q.x, args),
            all_packed<T, V>(hd, {&q.dx, &q.dy, &q.x, &q.w.values, &k.dx, &k.dy, &k.x, &k.w.values}));
    });
    add_strips(stream, q.dw, q.write, of_q);
    add_strips(stream, k.dw, k.write, of_k);
  });
}

}  // namespace witan::kernels::cuda
