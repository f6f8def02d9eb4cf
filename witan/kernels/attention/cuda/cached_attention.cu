// Attention of single tokens is bound by reading their keys and values. Blocks divide the keys of a token ("split-K",
// Dao et al., "Flash-Decoding", 2023), and a second kernel merges them. cached_tiles.cuh and latent_tiles.cuh have
// the blocks on the tensor cores. In the others, teams of lanes take a few keys at a time, and each lane some of their
// channels, for several query heads of the group; teams are merged in shared memory.

#include "witan/base/error.h"
#include "witan/kernels/attention/cuda/cached_tiles.cuh"
#include "witan/kernels/attention/cuda/latent_tiles.cuh"
#include "witan/kernels/attention/kv_cache.h"
#include "witan/kernels/common/cuda/copy.cuh"
#include "witan/kernels/common/fp8_scale.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kKeys = 4;        // per team at a time, all of whose loads are in flight together
constexpr int kLeastKeys = 64;  // per block, unless it has all keys
constexpr int kMostParts = 64;  // blocks per token and group
constexpr int kBlocksPerProcessor = 4;
constexpr int kMostChannels = 512;
constexpr int kMergeThreads = 128;

// Head sizes up to D; R query heads at a time.
template <class T, int D, int R_>
struct TokenShape {
  using A = Acc<T>;
  static constexpr int R = R_, N = kPack<T>;
  static constexpr int kLanes = D / N < 32 ? D / N : 32, kPacks = D / N / kLanes;  // per team, per lane
  static constexpr int kTeams = kThreads / kLanes;
  static constexpr int kRow = D + 2;  // per head in shared memory: its sums, the largest score, the sum of weights
  static constexpr int kBytes = kTeams * R * kRow * static_cast<int>(sizeof(A));
};

// Loads N channels of a row of `size`, from channel d on, with zeros beyond its end.
template <int N, class T>
__device__ __forceinline__ Pack<T, N> load_channels(const T* row, int d, int size, bool packed) {
  Pack<T, N> pack;
  if (packed && d < size) return load_pack<T, N>(row + d);
#pragma unroll
  for (int e = 0; e < N; ++e) pack.at[e] = d + e < size ? row[d + e] : convert<T>(0.0f);
  return pack;
}

// A team's state of its heads after the keys so far.
template <class Shape>
struct Running {
  using A = typename Shape::A;
  A top[Shape::R], sum[Shape::R], y[Shape::R][Shape::kPacks * Shape::N];
};

// Queries of `width` channels, of all heads of all tokens.
template <class Shape, class T, class C>
__device__ __forceinline__ void load_heads(typename Shape::A (&q)[Shape::R][Shape::kPacks * Shape::N],
                                           const CachedCall<T, C>& call, const T* queries, int width, int64_t token,
                                           int head, int heads) {
  using A = typename Shape::A;
  const int lane = threadIdx.x % Shape::kLanes;
#pragma unroll
  for (int r = 0; r < Shape::R; ++r)
#pragma unroll
    for (int p = 0; p < Shape::kPacks; ++p) {
      const T* row = queries + (token * call.H + head + min(r, heads - 1)) * width;
      const auto pack = load_channels<Shape::N>(row, (p * Shape::kLanes + lane) * Shape::N, width, call.packed);
#pragma unroll
      for (int e = 0; e < Shape::N; ++e) q[r][p * Shape::N + e] = convert<A>(pack.at[e]) * call.scale;
    }
}

// The sum over all of a team's channels of q k, on every lane.
template <class Shape, class C>
__device__ __forceinline__ typename Shape::A dot_product(const typename Shape::A (&q)[Shape::kPacks * Shape::N],
                                                         const Pack<C, Shape::N> (&k)[Shape::kPacks]) {
  using A = typename Shape::A;
  A dot = 0;
#pragma unroll
  for (int p = 0; p < Shape::kPacks; ++p)
#pragma unroll
    for (int e = 0; e < Shape::N; ++e) dot += q[p * Shape::N + e] * convert<A>(k[p].at[e]);
#pragma unroll
  for (int apart = Shape::kLanes / 2; apart > 0; apart /= 2) dot += __shfl_xor_sync(0xffffffffu, dot, apart);
  return dot;
}

// Processes the kKeys keys first, first + kTeams, … that are below `end`. value_q is read only with kOfValues.
template <bool kOfValues, class Shape, class T, class C>
__device__ __forceinline__ void meet_keys(Running<Shape>& run,
                                          const typename Shape::A (&q)[Shape::R][Shape::kPacks * Shape::N],
                                          const typename Shape::A (&value_q)[Shape::R][Shape::kPacks * Shape::N],
                                          const CachedCall<T, C>& call, int64_t cache_row, int group, int first,
                                          int end) {
  using A = typename Shape::A;
  constexpr int N = Shape::N;
  constexpr bool kScaled = !std::is_same_v<T, C>;
  const int lane = threadIdx.x % Shape::kLanes;
  Pack<C, N> k[kKeys][Shape::kPacks], v[kKeys][Shape::kPacks];
  A key_scale[kKeys], value_scale[kKeys];
#pragma unroll
  for (int j = 0; j < kKeys; ++j) {
    const int position = min(first + j * Shape::kTeams, end - 1);
    const int64_t row = (cache_row * call.slots + position % call.slots) * call.G + group;
#pragma unroll
    for (int p = 0; p < Shape::kPacks; ++p) {
      const int d = (p * Shape::kLanes + lane) * N;
      k[j][p] = load_channels<N>(call.keys + row * call.hd, d, call.hd, call.packed);
      v[j][p] = load_channels<N>(call.values + row * call.hd_v, d, call.hd_v, call.packed);
    }
    if constexpr (kScaled) key_scale[j] = call.key_scales[row], value_scale[j] = call.value_scales[row];
  }
#pragma unroll
  for (int r = 0; r < Shape::R; ++r) {
    A s[kKeys], largest = run.top[r];
#pragma unroll
    for (int j = 0; j < kKeys; ++j) {
      A dot = dot_product<Shape>(q[r], k[j]);
      if constexpr (kScaled) dot *= key_scale[j];
      if constexpr (kOfValues) {
        const A of_value = dot_product<Shape>(value_q[r], v[j]);
        dot += kScaled ? of_value * value_scale[j] : of_value;
      }
      s[j] = first + j * Shape::kTeams < end ? dot : -static_cast<A>(INFINITY);
      largest = max(largest, s[j]);
    }
    const A base = largest == -static_cast<A>(INFINITY) ? A(0) : largest, rescale = exp(run.top[r] - base);
    run.top[r] = largest;
    run.sum[r] *= rescale;
#pragma unroll
    for (auto& value : run.y[r]) value *= rescale;
#pragma unroll
    for (int j = 0; j < kKeys; ++j) {
      const A weight = exp(s[j] - base);
      const A factor = kScaled ? weight * value_scale[j] : weight;
      run.sum[r] += weight;
#pragma unroll
      for (int p = 0; p < Shape::kPacks; ++p)
#pragma unroll
        for (int e = 0; e < N; ++e) run.y[r][p * N + e] += factor * convert<A>(v[j][p].at[e]);
    }
  }
}

template <class Shape>
__device__ __forceinline__ void share(const Running<Shape>& run, typename Shape::A* shared) {
  const int lane = threadIdx.x % Shape::kLanes, team = threadIdx.x / Shape::kLanes;
#pragma unroll
  for (int r = 0; r < Shape::R; ++r) {
    auto* to = shared + (team * Shape::R + r) * Shape::kRow;
    if (lane == 0) to[0] = run.top[r], to[1] = run.sum[r];
#pragma unroll
    for (int p = 0; p < Shape::kPacks; ++p)
#pragma unroll
      for (int e = 0; e < Shape::N; ++e) to[2 + (p * Shape::kLanes + lane) * Shape::N + e] = run.y[r][p * Shape::N + e];
  }
}

// Stores the block's y and lse of a head, over the block's keys.
template <class Shape, class T, class C>
__device__ __forceinline__ void finish(const CachedCall<T, C>& call, const typename Shape::A* shared, int64_t head_row,
                                       int r, int part) {
  using A = typename Shape::A;
  const A* mine = shared + r * Shape::kRow;
  constexpr int kApart = Shape::R * Shape::kRow;
  A top = -static_cast<A>(INFINITY), sum = 0;
  for (int team = 0; team < Shape::kTeams; ++team) top = max(top, mine[team * kApart]);
  const A base = top == -static_cast<A>(INFINITY) ? A(0) : top;
  for (int team = 0; team < Shape::kTeams; ++team) sum += mine[team * kApart + 1] * exp(mine[team * kApart] - base);
  const A factor = sum == 0 ? A(0) : 1 / sum, lse = sum == 0 ? -static_cast<A>(INFINITY) : base + log(sum);
  for (int d = threadIdx.x; d < call.hd_v; d += kThreads) {
    A y = 0;
    for (int team = 0; team < Shape::kTeams; ++team) y += mine[team * kApart + 2 + d] * exp(mine[team * kApart] - base);
    y *= factor;
    if (call.parts == 1)
      call.y[head_row * call.hd_v + d] = convert<T>(y);
    else
      call.part_y[(head_row * call.parts + part) * call.hd_v + d] = y;
  }
  if (threadIdx.x > 0) return;
  if (call.parts > 1)
    call.part_lse[head_row * call.parts + part] = lse;
  else if (call.lse)
    call.lse[head_row] = lse;
}

// Block (part, group and chunk of its heads, token).
template <class T, class C, int D, int R, bool kOfValues>
__global__ void __launch_bounds__(kThreads) token_kernel(const CachedCall<T, C> call) {
  using Shape = TokenShape<T, D, R>;
  using A = typename Shape::A;
  extern __shared__ __align__(16) unsigned char memory[];
  A* shared = reinterpret_cast<A*>(memory);
  let_next_begin();
  wait_for_earlier();
  const int64_t token = blockIdx.z;
  const int part = blockIdx.x, group = blockIdx.y / call.chunks, chunk = blockIdx.y % call.chunks;
  const int head = group * call.rep + chunk * R, heads = min(R, call.rep - chunk * R);
  const int position = call.positions[token];
  const int from = call.window > 0 ? max(position + 1 - call.window, 0) : 0, seen = position + 1 - from;
  const int share_of_part = (seen + call.parts - 1) / call.parts;
  const int begin = from + part * share_of_part, end = min(begin + share_of_part, position + 1);

  A q[R][Shape::kPacks * Shape::N], value_q[R][Shape::kPacks * Shape::N];
  load_heads<Shape>(q, call, call.q, call.hd, token, head, heads);
  if constexpr (kOfValues) load_heads<Shape>(value_q, call, call.value_q, call.hd_v, token, head, heads);
  Running<Shape> run;
#pragma unroll
  for (int r = 0; r < R; ++r) {
    run.top[r] = -static_cast<A>(INFINITY), run.sum[r] = 0;
#pragma unroll
    for (auto& value : run.y[r]) value = 0;
  }
  // All teams of a warp make the same number of rounds, because they exchange lanes' sums.
  const int team = threadIdx.x / Shape::kLanes;
  for (int first = begin; first < end; first += Shape::kTeams * kKeys)
    meet_keys<kOfValues>(run, q, value_q, call, call.rows[token], group, first + team, end);
  share(run, shared);
  __syncthreads();
  for (int r = 0; r < heads; ++r) finish<Shape>(call, shared, token * call.H + head + r, r, part);
}

// One block per head of each token. Parts without keys are zeros with a weight of 0.
template <class T, class C>
__global__ void __launch_bounds__(kMergeThreads) merge_parts_kernel(const CachedCall<T, C> call) {
  using A = Acc<T>;
  __shared__ A weights[kMostParts];
  let_next_begin();
  wait_for_earlier();
  const int64_t row = blockIdx.x;
  if (threadIdx.x < 32) {
    constexpr int kEach = kMostParts / 32;
    A lse[kEach], top = -static_cast<A>(INFINITY), sum = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int part = static_cast<int>(threadIdx.x) + 32 * i;
      lse[i] = part < call.parts ? call.part_lse[row * call.parts + part] : -static_cast<A>(INFINITY);
      top = max(top, lse[i]);
    }
    top = warp_max(top);
#pragma unroll
    for (A& value : lse) sum += value = exp(value - top);
    sum = warp_sum(sum);
#pragma unroll
    for (int i = 0; i < kEach; ++i) weights[threadIdx.x + 32 * i] = lse[i] / sum;
    if (threadIdx.x == 0 && call.lse) call.lse[row] = top + log(sum);
  }
  __syncthreads();
  for (int d = threadIdx.x; d < call.hd_v; d += kMergeThreads) {
    A y = 0;
#pragma unroll 8
    for (int part = 0; part < call.parts; ++part)
      y += weights[part] * call.part_y[(row * call.parts + part) * call.hd_v + d];
    call.y[row * call.hd_v + d] = convert<T>(y);
  }
}

// Divides the keys among as many blocks as fill the GPU, `per_processor` each.
template <class T, class C>
void divide(Stream& stream, CachedCall<T, C>& call, int64_t blocks, int64_t per_processor) {
  const int64_t keys = call.window > 0 ? std::min(call.window, call.slots) : call.slots;
  const int64_t wanted = (multiprocessors(stream) * per_processor + blocks - 1) / blocks;
  call.parts = static_cast<int>(std::min<int64_t>({wanted, (keys + kLeastKeys - 1) / kLeastKeys, kMostParts}));
  const int64_t heads = int64_t{call.T_} * call.H;
  if (call.parts > 1) {
    const int64_t sums = heads * call.parts * call.hd_v;
    call.part_y =
        reinterpret_cast<Acc<T>*>(stream.scratch((sums + heads * call.parts) * static_cast<int64_t>(sizeof(Acc<T>))));
    call.part_lse = call.part_y + sums;
  }
}

template <class T, class C>
void merge_parts(Stream& stream, const CachedCall<T, C>& call) {
  if (call.parts > 1)
    launch_early(stream, merge_parts_kernel<T, C>, static_cast<unsigned>(call.T_ * call.H), kMergeThreads, 0, call);
}

template <int D, int R, bool kOfValues, class T, class C>
void launch(Stream& stream, CachedCall<T, C> call) {
  using Shape = TokenShape<T, D, R>;
  static_assert(Shape::kBytes <= 48 << 10);
  call.chunks = (call.rep + R - 1) / R;
  divide(stream, call, int64_t{call.T_} * call.G * call.chunks, kBlocksPerProcessor);
  const dim3 grid(static_cast<unsigned>(call.parts), static_cast<unsigned>(call.G * call.chunks),
                  static_cast<unsigned>(call.T_));
  launch_early(stream, token_kernel<T, C, D, R, kOfValues>, grid, kThreads, Shape::kBytes, call);
  merge_parts(stream, call);
}

// Tensor cores take 16-bit latents whose rows are whole packs; another kernel takes the others.
template <class T, class C>
void launch_latents(Stream& stream, CachedCall<T, C> call) {
  if constexpr (sizeof(T) == 2) {
    const int64_t room = witan::cuda::properties(stream.device().index).shared_per_block;
    if (call.packed && call.G == 1 && call.hd <= latents::kTurning &&
        room >= latents::LatentTile<kMostChannels>::kBytes) {
      call.chunks = (call.H + latents::kRows - 1) / latents::kRows;
      divide(stream, call, int64_t{call.T_} * call.chunks, latents::kBlocksPerProcessor);
      call.hd_v <= 256 ? latents::launch<256>(stream, call) : latents::launch<kMostChannels>(stream, call);
      return merge_parts(stream, call);
    }
  }
  launch<kMostChannels, 1, true>(stream, call);
}

// On the tensor cores; with batch_invariant no keys are divided.
template <class T>
void launch_tiles_of(Stream& stream, CachedCall<T> call, bool batch_invariant) {
  const int widest = std::max(call.hd, call.hd_v);
  call.chunks = (call.rep + tiles::kRows - 1) / tiles::kRows;
  call.parts = 1;
  if (!batch_invariant) divide(stream, call, int64_t{call.T_} * call.G * call.chunks, tiles::kBlocksPerProcessor);
  if (widest <= 64)
    tiles::launch<T, 64>(stream, call);
  else if (widest <= 128)
    tiles::launch<T, 128>(stream, call);
  else
    tiles::launch<T, 256>(stream, call);
  merge_parts(stream, call);
}

// Each token by the kernel of the forward, as if it were the last of its sequence.
void one_by_one(Stream& stream, const Tensor& y, const Tensor& lse, const CachedInputs& in) {
  int64_t token = 0;
  for (const CacheRun& run : in.tokens.runs)
    for (int64_t past = run.past; past < run.past + run.count; ++past, ++token)
      cuda::attention_decode(stream, y.narrow(0, token, 1), in.q.narrow(0, token, 1), in.keys.narrow(0, run.row, 1),
                             in.values.narrow(0, run.row, 1), past, in.scale, in.window,
                             lse.defined() ? lse.narrow(0, token, 1) : Tensor());
}

template <int D, class T, class C>
void launch_heads(Stream& stream, const CachedCall<T, C>& call) {
  constexpr bool kWide = D > 256;  // registers hold fewer of such heads
  if (call.rep == 1) return launch<D, 1, false>(stream, call);
  if constexpr (sizeof(T) == 2 && !kWide)
    if (call.rep > 4) return launch<D, 8, false>(stream, call);
  launch<D, kWide ? std::max(8 / static_cast<int>(sizeof(T)), 1) : 4, false>(stream, call);
}

template <class T, class C>
void launch_widths(Stream& stream, const CachedCall<T, C>& call) {
  const int widest = std::max(call.hd, call.hd_v);
  if (call.value_q != nullptr)
    launch_latents(stream, call);
  else if (widest <= 64)
    launch_heads<64>(stream, call);
  else if (widest <= 128)
    launch_heads<128>(stream, call);
  else if (widest <= 256)
    launch_heads<256>(stream, call);
  else
    launch_heads<kMostChannels>(stream, call);
}

template <class T, class C>
CachedCall<T, C> call_of(const Tensor& y, const Tensor& lse, const CachedInputs& in) {
  constexpr int N = kPack<T>;
  const int64_t hd = in.keys.size(3), hd_v = in.values.size(3);
  CachedCall<T, C> call{};
  call.y = ptr<T>(y), call.lse = ptr<Acc<T>>(lse);
  call.q = ptr<T>(in.q), call.value_q = ptr<T>(in.value_q);
  call.keys = ptr<C>(in.keys), call.values = ptr<C>(in.values);
  call.key_scales = ptr<float>(in.key_scales), call.value_scales = ptr<float>(in.value_scales);
  call.rows = ptr<int32_t>(in.tokens.rows), call.positions = ptr<int32_t>(in.tokens.positions);
  call.T_ = static_cast<int>(in.q.size(0)), call.H = static_cast<int>(in.q.size(2));
  call.G = static_cast<int>(in.keys.size(2)), call.rep = call.H / call.G;
  call.hd = static_cast<int>(hd), call.hd_v = static_cast<int>(hd_v);
  call.slots = static_cast<int>(in.keys.size(1)), call.window = static_cast<int>(in.window);
  call.scale = static_cast<Acc<T>>(in.scale);
  call.packed = packs<T>(call.q, hd) && packs<T>(call.value_q, hd_v) && packs<C>(call.keys, hd, N) &&
                packs<C>(call.values, hd_v, N);
  return call;
}

}  // namespace

void cached_attention(Stream& stream, const Tensor& y, const Tensor& lse, const CachedInputs& in) {
  if (y.elements() == 0) return;
  constexpr int64_t kMostTokens = 65535;  // the limit of a grid's z
  const int64_t T = in.q.size(0), hd = in.q.size(3), hd_v = in.values.size(3);
  require<DeviceError>(std::max(hd, hd_v) <= kMostChannels, "attention: heads of ", hd, " for queries and keys and of ",
                       hd_v, " for values; a GPU's kernels take at most ", kMostChannels);
  require<DeviceError>(T <= kMostTokens, "attention: ", T, " tokens in a step of generation; a GPU's kernel takes ",
                       kMostTokens);
  dispatch_device(y.dtype(), [&]<class E>() {
    if (in.key_scales.defined()) return launch_widths(stream, call_of<E, __nv_fp8_e4m3>(y, lse, in));
    const auto call = call_of<E, E>(y, lse, in);
    if constexpr (sizeof(E) == 2)
      if (call.packed && !in.value_q.defined() && cached_in_tiles(in.keys, in.values))
        return launch_tiles_of(stream, call, in.batch_invariant);
    if (in.batch_invariant) return one_by_one(stream, y, lse, in);
    launch_widths(stream, call);
  });
}

namespace {

constexpr int kAppendThreads = 256;

// Copies unit i of a token to its slot.
template <class Unit>
__global__ void __launch_bounds__(kAppendThreads)
    append_kernel(Unit* cache, const Unit* x, const int32_t* rows, const int32_t* positions, int64_t units, int width,
                  int slots) {
  let_next_begin();
  wait_for_earlier();
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kAppendThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kAppendThreads + threadIdx.x; i < units; i += stride) {
    const int64_t t = i / width;
    cache[(static_cast<int64_t>(rows[t]) * slots + positions[t] % slots) * width + i % width] = x[i];
  }
}

}  // namespace

void append_to_cache(Stream& stream, const Tensor& cache, const Tensor& x, const CacheTokens& tokens) {
  const int64_t T = tokens.rows.elements();
  if (T == 0 || x.elements() == 0) return;
  with_copy_unit(cache, x, x.bytes() / T, [&]<class Unit>(int64_t width) {
    const int64_t units = T * width;
    launch_early(stream, append_kernel<Unit>, blocks_for(stream, (units + kAppendThreads - 1) / kAppendThreads),
                 kAppendThreads, 0, ptr<Unit>(cache), ptr<const Unit>(x), ptr<int32_t>(tokens.rows),
                 ptr<int32_t>(tokens.positions), units, static_cast<int>(width), static_cast<int>(cache.size(1)));
  });
}

namespace {

constexpr int kHeadsPerBlock = kAppendThreads / 32;

// A warp rounds a head of a token.
template <class T>
__global__ void __launch_bounds__(kAppendThreads)
    append_quantised_kernel(__nv_fp8_storage_t* cache, float* scales, const T* x, const int32_t* rows,
                            const int32_t* positions, int64_t heads, int G, int hd, int slots) {
  let_next_begin();
  wait_for_earlier();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kHeadsPerBlock + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (i >= heads) return;
  const int64_t t = i / G, head = (static_cast<int64_t>(rows[t]) * slots + positions[t] % slots) * G + i % G;
  const T* const from = x + i * hd;
  uint32_t largest = 0;
  for (int d = lane; d < hd; d += 32) largest = max(largest, __float_as_uint(convert<float>(from[d])) & 0x7fffffffu);
  const Fp8Scale scale = fp8_scale(warp_max(largest), Fp8Format::e4m3);
  if (lane == 0) scales[head] = scale.scale;
  for (int d = lane; d < hd; d += 32)
    cache[head * hd + d] = __nv_cvt_float_to_fp8(convert<float>(from[d]) * scale.inverse, __NV_SATFINITE, __NV_E4M3);
}

}  // namespace

void append_quantised(Stream& stream, const Tensor& cache, const Tensor& scales, const Tensor& x,
                      const CacheTokens& tokens) {
  const int64_t heads = tokens.rows.elements() * cache.size(2);
  if (heads == 0 || x.elements() == 0) return;
  dispatch_device(x.dtype(), [&]<class T>() {
    const auto blocks = static_cast<unsigned>((heads + kHeadsPerBlock - 1) / kHeadsPerBlock);
    launch_early(stream, append_quantised_kernel<T>, blocks, kAppendThreads, 0, ptr<__nv_fp8_storage_t>(cache),
                 ptr<float>(scales), ptr<const T>(x), ptr<int32_t>(tokens.rows), ptr<int32_t>(tokens.positions), heads,
                 static_cast<int>(cache.size(2)), static_cast<int>(cache.size(3)), static_cast<int>(cache.size(1)));
  });
}

}  // namespace witan::kernels::cuda
