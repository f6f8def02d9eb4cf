#include "witan/kernels/attention/cuda/rope.cuh"
#include "witan/kernels/attention/heads.h"
#include "witan/kernels/common/cuda/early_launch.cuh"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// The angles of `some` pairs from `first` on, of the `all` pairs of a row.
template <class A>
__global__ void __launch_bounds__(kThreads)
    table_kernel(A* table, const int32_t* positions, int64_t tokens, int first, int some, int all, double magnitude,
                 const __grid_constant__ Frequencies frequencies) {
  __shared__ double frequency[Frequencies::kMost];  // in shared memory: lanes read different ones, which constant
                                                    // memory would serialise
  for (int i = threadIdx.x; i < some; i += kThreads) frequency[i] = frequencies.at[i];
  __syncthreads();
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < tokens * some; i += stride) {
    const int64_t t = i / some;
    const int pair = static_cast<int>(i - t * some);
    double sine, cosine;
    sincos(static_cast<double>(positions[t]) * frequency[pair], &sine, &cosine);
    table[t * 2 * all + first + pair] = static_cast<A>(magnitude * cosine);
    table[t * 2 * all + all + first + pair] = static_cast<A>(magnitude * sine);
  }
}

struct Shape3 {
  int64_t tokens;
  int queries, groups, hd, hd_v, dims;
  bool interleaved;
};

// The address of channel c of a token's head `h`: among heads, and in packed.
template <class T>
__device__ T* place(T* q, T* k, T* v, const Shape3& n, int64_t t, int h, int c) {
  if (h < n.queries) return q + (t * n.queries + h) * n.hd + c;
  if (h < n.queries + n.groups) return k + (t * n.groups + h - n.queries) * n.hd + c;
  return v + (t * n.groups + h - n.queries - n.groups) * n.hd_v + c;
}
template <class T>
__device__ T* place(T* packed, const Shape3& n, int64_t t, int h, int c) {
  const int turning = n.queries + n.groups;
  T* const row = packed + t * (turning * n.hd + n.groups * n.hd_v);
  return row + (h < turning ? h * n.hd : turning * n.hd + (h - turning) * n.hd_v) + c;
}

// to = from rotated; one of them is packed, the other heads. N channels per thread: the halves of a pair are in two
// packs, and neighbours in one.
template <class T, int N, bool kSplit>
__global__ void __launch_bounds__(kThreads)
    heads_kernel(T* packed, T* q, T* k, T* v, const Acc<T>* table, const __grid_constant__ Shape3 n) {
  using A = Acc<T>;
  let_next_begin();
  wait_for_earlier();
  const int pairs = n.dims / 2;
  // Work items of a head: packs of the first halves (each with its partner), then packs of channels that do not rotate.
  const int turned = n.interleaved ? n.dims / N : pairs / N, plain = (n.hd - n.dims) / N, still = n.hd_v / N;
  const int per_turned = turned + plain;
  const int64_t per_token =
      static_cast<int64_t>(n.queries + n.groups) * per_turned + static_cast<int64_t>(n.groups) * still;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n.tokens * per_token; i += stride) {
    const int64_t t = i / per_token;
    int item = static_cast<int>(i - t * per_token), head, c;
    bool turns = false;
    const int rotating = (n.queries + n.groups) * per_turned;
    if (item < rotating) {
      head = item / per_turned;
      item -= head * per_turned;
      turns = item < turned;
      c = turns ? item * N : n.dims + (item - turned) * N;
    } else {
      item -= rotating;
      head = n.queries + n.groups + item / still;
      c = item % still * N;
    }
    T* in_packed = place(packed, n, t, head, c);
    T* in_heads = place(q, k, v, n, t, head, c);
    const T* from = kSplit ? in_packed : in_heads;
    T* to = kSplit ? in_heads : in_packed;
    const Pack<T, N> a = load_pack<T, N>(from);
    if (!turns) {
      store_pack(to, a);
      continue;
    }
    const A* cosine = table + t * n.dims;
    const A* sine = cosine + pairs;
    const A sign = kSplit ? A(1) : A(-1);
    Pack<T, N> out;
    if (n.interleaved && N == 1) {  // one channel per thread, which reads its neighbour too
      const bool second = c % 2 != 0;
      const A own = convert<A>(a.at[0]), other = convert<A>(second ? from[-1] : from[1]);
      const A cs = cosine[c / 2], sn = sign * sine[c / 2];
      out.at[0] = convert<T>(second ? other * sn + own * cs : own * cs - other * sn);
      store_pack(to, out);
      continue;
    }
    if (n.interleaved) {
#pragma unroll
      for (int j = 0; j + 1 < N; j += 2) {
        const A x = convert<A>(a.at[j]), y = convert<A>(a.at[j + 1]);
        const A cs = cosine[(c + j) / 2], sn = sign * sine[(c + j) / 2];
        out.at[j] = convert<T>(x * cs - y * sn);
        out.at[j + 1] = convert<T>(x * sn + y * cs);
      }
      store_pack(to, out);
      continue;
    }
    const Pack<T, N> b = load_pack<T, N>(from + pairs);
    Pack<T, N> second;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const A x = convert<A>(a.at[j]), y = convert<A>(b.at[j]);
      const A cs = cosine[c + j], sn = sign * sine[c + j];
      out.at[j] = convert<T>(x * cs - y * sn);
      second.at[j] = convert<T>(x * sn + y * cs);
    }
    store_pack(to, out);
    store_pack(to + pairs, second);
  }
}

template <bool kSplit>
void run(Stream& stream, const Tensor& packed, const Heads& heads, const Tensor& table, const RopeArgs& args) {
  const int64_t tokens = packed.size(0);
  if (tokens == 0) return;
  const int64_t hd = heads.q.shape().last(), hd_v = heads.v.shape().last();
  const Shape3 n{tokens,
                 static_cast<int>(heads.q.elements() / (tokens * hd)),
                 static_cast<int>(heads.k.elements() / (tokens * hd)),
                 static_cast<int>(hd),
                 static_cast<int>(hd_v),
                 static_cast<int>(args.dims),
                 args.interleaved};
  dispatch_device(packed.dtype(), [&]<class T>() {
    constexpr int N = kPack<T>;
    T *p = ptr<T>(packed), *q = ptr<T>(heads.q), *k = ptr<T>(heads.k), *v = ptr<T>(heads.v);
    // Packs must be aligned wherever they begin: at heads, their rotated part, and its half.
    const int64_t unit = args.interleaved ? args.dims : args.dims / 2;
    const bool wide = packs<T>(p, hd) && packs<T>(q, hd) && packs<T>(k, hd) && packs<T>(v, hd_v) && unit % N == 0;
    const unsigned blocks = blocks_for(stream, (packed.elements() / (wide ? N : 1) + kThreads - 1) / kThreads, 16);
    if (wide)
      launch_early(stream, heads_kernel<T, N, kSplit>, blocks, kThreads, 0, p, q, k, v, ptr<Acc<T>>(table), n);
    else if (args.interleaved && hd % 2 == 0 && hd_v % 2 == 0)
      launch_early(stream, heads_kernel<T, 2, kSplit>, blocks, kThreads, 0, p, q, k, v, ptr<Acc<T>>(table), n);
    else
      launch_early(stream, heads_kernel<T, 1, kSplit>, blocks, kThreads, 0, p, q, k, v, ptr<Acc<T>>(table), n);
  });
}

template <class A>
void fill_table(Stream& stream, const Tensor& table, const Tensor& positions, const RopeArgs& args) {
  const int64_t tokens = positions.elements();
  const int pairs = static_cast<int>(args.dims / 2);
  const std::vector<double> frequencies = rope_frequencies(args);
  for (int first = 0; first < pairs; first += Frequencies::kMost) {
    const int some = std::min(pairs - first, Frequencies::kMost);
    table_kernel<<<blocks_for(stream, (tokens * some + kThreads - 1) / kThreads), kThreads, 0, native(stream)>>>(
        ptr<A>(table), ptr<int32_t>(positions), tokens, first, some, pairs, args.scaling.magnitude,
        Frequencies(frequencies, first));
  }
}

}  // namespace

void rotary_table(Stream& stream, const Tensor& table, const Tensor& positions, const RopeArgs& args) {
  if (positions.elements() * args.dims == 0) return;
  dispatch_accumulator(table.dtype(), [&]<class A>() { fill_table<A>(stream, table, positions, args); });
}

void split_heads(Stream& stream, const Heads& heads, const Tensor& packed, const Tensor& table, const RopeArgs& args) {
  run<true>(stream, packed, heads, table, args);
}

void merge_heads(Stream& stream, const Tensor& dpacked, const Heads& gradients, const Tensor& table,
                 const RopeArgs& args) {
  run<false>(stream, dpacked, gradients, table, args);
}

}  // namespace witan::kernels::cuda
