// Attention of single tokens on the tensor cores, for bfloat16 and float16: the query heads of a group are the rows of
// one tile. A block's warps have the probabilities of the same keys, and each multiplies them by some channels of the
// values, so that every number is formed in the order of the forward (attention_tensor_forward.cuh), whose tiles
// of keys these are.
#pragma once

#include "witan/kernels/attention/cuda/attention_tensor_forward.cuh"
#include "witan/kernels/attention/cuda/cached_call.cuh"
#include "witan/kernels/common/cuda/early_launch.cuh"

namespace witan::kernels::cuda {

namespace tiles {

constexpr int kRows = 16, kWarps = 4, kCopiers = 32 * kWarps;
constexpr int kBlocksPerProcessor = 3, kFewStages = 2;  // of which one is copied while the other is used
// Blocks that have a multiprocessor to themselves have more stages, and as many warps again, which copy tiles and
// compute the scores of the next one: a score is one chain of products whichever warp computes it.
constexpr int kManyStages = 4;

// Head sizes up to D.
template <int D, bool kAloneOf>
struct TokenTile {
  static constexpr bool kAlone = kAloneOf;
  static constexpr int kThreads = 32 * kWarps * (kAlone ? 2 : 1), kBlocks = kAlone ? 1 : kBlocksPerProcessor;
  static constexpr int kChannels = D / kWarps;  // of the values, per warp
  static constexpr int kKeys = tensor::ForwardTile<D>::kKeys, kStages = kAlone ? kManyStages : kFewStages;
  static constexpr int kQueryElements = kRows * tensor::kStride<D>, kKeyElements = kKeys * tensor::kStride<D>;
  static constexpr int kElements = kQueryElements + 2 * kStages * kKeyElements;
  static constexpr int kScores = kAlone ? kRows * kKeys : 0;  // of a tile, in two buffers
  static constexpr int kBytes = kElements * static_cast<int>(sizeof(uint16_t)) + 2 * kScores * int{sizeof(float)};
};

// The keys of a block's token, group and part.
struct TokenKeys {
  int position, from;  // the token sees the positions from .. position
  int first, end;      // of the part

  template <class T>
  __device__ __forceinline__ TokenKeys(const CachedCall<T>& call, int size) : position(call.positions[blockIdx.z]) {
    from = call.window > 0 ? max(position + 1 - call.window, 0) : 0;
    const int begin = from / size * size, tiles = (position - begin) / size + 1;
    const int share = (tiles + call.parts - 1) / call.parts * size;
    first = begin + static_cast<int>(blockIdx.x) * share;
    end = min(first + share, position + 1);
  }
};

// The last kCopiers threads copy `count` rows of `width` channels to a tile, from row(r), and zeros beyond them.
// Unrolled, unless kRarely.
template <int D, int kTileRows, bool kRarely = false, class T, class Row>
__device__ __forceinline__ void copy_tile(T* to, const T* any, int width, int count, const Row& row) {
  constexpr int kPacks = D / 8, kAtOnce = kCopiers / kPacks;
  const int thread = static_cast<int>(threadIdx.x) % kCopiers, first = thread / kPacks, d = thread % kPacks * 8;
#pragma unroll(kRarely ? 1 : kTileRows / kAtOnce)
  for (int i = 0; i < kTileRows; i += kAtOnce) {
    const int r = first + i;
    const bool wanted = r < count && d < width;
    copy_async(to + r * tensor::kStride<D> + d, wanted ? row(r) + d : any, wanted);
  }
}

// Block (part, group and chunk of its heads, token).
template <class T, int D, bool kAlone>
struct TokenBlock {
  using F = TokenTile<D, kAlone>;
  const CachedCall<T>& call;
  T *q, *buffers;
  int group, token, first_head, heads;
  TokenKeys part;
  int tiles;  // none, or negative, of parts without keys
  int64_t cache_row;

  __device__ __forceinline__ TokenBlock(const CachedCall<T>& of, unsigned char* memory)
      : call(of),
        q(reinterpret_cast<T*>(memory)),
        buffers(q + F::kQueryElements),
        group(static_cast<int>(blockIdx.y) / call.chunks),
        token(static_cast<int>(blockIdx.z)),
        part(call, F::kKeys),
        tiles((part.end - part.first + F::kKeys - 1) / F::kKeys),
        cache_row(static_cast<int64_t>(call.rows[token]) * call.slots) {
    const int chunk = static_cast<int>(blockIdx.y) % call.chunks;
    first_head = group * call.rep + chunk * kRows, heads = min(kRows, call.rep - chunk * kRows);
  }
  __device__ __forceinline__ int key(int tile) const { return part.first + tile * F::kKeys; }
  __device__ __forceinline__ T* keys(int tile) const { return buffers + tile % F::kStages * 2 * F::kKeyElements; }
  __device__ __forceinline__ T* values(int tile) const { return keys(tile) + F::kKeyElements; }
  // Only the token's own key is new: tiles without it were written in earlier steps.
  __device__ __forceinline__ bool is_old(int tile) const { return key(tile + 1) <= part.position; }

  __device__ __forceinline__ static bool copies() {
    return !kAlone || static_cast<int>(threadIdx.x) >= F::kThreads - kCopiers;
  }
  __device__ __forceinline__ void load(int tile) const {
    if (!copies()) return;
    const int first = key(tile), count = part.end - first;
    const auto copy = [&](T* to, const T* cache, int width) {
      const T* const rows = cache + (cache_row * call.G + group) * width;
      const int64_t apart = int64_t{call.G} * width;
      if (first + min(count, F::kKeys) <= call.slots) {
        const T* const from = rows + first * apart;
        copy_tile<D, F::kKeys>(to, call.q, width, count, [&](int r) { return from + r * apart; });
      } else {  // a ring
        copy_tile<D, F::kKeys, true>(to, call.q, width, count,
                                     [&](int r) { return rows + (first + r) % call.slots * apart; });
      }
    };
    copy(keys(tile), call.keys, call.hd);
    copy(values(tile), call.values, call.hd_v);
  }
  // Starts the copies of the queries and of the first tiles.
  __device__ __forceinline__ void begin() const {
#pragma unroll
    for (int tile = 0; tile < F::kStages - 1; ++tile)
      if (tile < tiles && is_old(tile)) load(tile);
    wait_for_earlier();
    const T* const queries = call.q + (static_cast<int64_t>(token) * call.H + first_head) * call.hd;
    if (copies()) copy_tile<D, kRows>(q, call.q, call.hd, heads, [&](int r) { return queries + r * call.hd; });
#pragma unroll
    for (int tile = 0; tile < F::kStages - 1; ++tile) {
      if (tile < tiles && !is_old(tile)) load(tile);
      commit_copies();
    }
  }
  // Computes the scores of N of the tile's keys from the `from`-th on.
  template <int N>
  __device__ __forceinline__ void scores(tensor::Sums<N>& s, int tile, int from) const {
    tensor::clear<N>(s);
    tensor::add_scores<N, D>(s, q, keys(tile) + from * tensor::kStride<D>);
    tensor::scale_scores<N>(s, call.scale * tensor::kLog2e);
    const int first = key(tile) + from;
    if (first >= part.from && first + N <= part.end) return;
#pragma unroll
    for (int n = 0; n < N / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int at = first + n * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + e % 2;
        if (at < part.from || at >= part.end) s[n][e] = -INFINITY;
      }
  }
};

// A warp's sums of its channels. Rows of the tile are heads; those of a lane are g and, if kHalves is 2, g + 8.
template <class T, int D, bool kAlone, int kHalves>
struct TokenSums {
  using F = TokenTile<D, kAlone>;
  const TokenBlock<T, D, kAlone>& block;
  int warp;
  tensor::Sums<F::kChannels> out;
  float top[2] = {-INFINITY, -INFINITY}, sum[2] = {};

  __device__ __forceinline__ TokenSums(const TokenBlock<T, D, kAlone>& of, int number) : block(of), warp(number) {
    tensor::clear<F::kChannels>(out);
  }
  __device__ __forceinline__ void add(tensor::Sums<F::kKeys>& s, int tile) {
    tensor::softmax_step<F::kKeys, F::kChannels, kHalves>(s, out, top, sum);
    if constexpr (kHalves == 1) {
#pragma unroll
      for (int n = 0; n < F::kKeys / 8; ++n) s[n][2] = s[n][3] = 0;
    }
    tensor::add_product<F::kChannels, F::kKeys, D>(out, s, block.values(tile) + warp * F::kChannels);
  }
  __device__ __forceinline__ void store() const {
    const CachedCall<T>& call = block.call;
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const float total = tensor::row_sum(sum[half]), factor = total == 0 ? 0.f : 1 / total;  // 0: no key was seen
      const int head = lane / 4 + 8 * half;
      if (head >= block.heads) continue;
      const int64_t row = static_cast<int64_t>(block.token) * call.H + block.first_head + head;
      const float lse = tensor::log_of_row(top[half], total);
      const bool writes_lse = warp == 0 && lane % 4 == 0;
      if (call.parts == 1) {
        tensor::store_row<F::kChannels>(call.y + row * call.hd_v, out, half, factor, warp * F::kChannels, call.hd_v,
                                        true);
        if (call.lse && writes_lse) call.lse[row] = lse;
        continue;
      }
      const int64_t at = row * call.parts + blockIdx.x;
#pragma unroll
      for (int n = 0; n < F::kChannels / 8; ++n) {
        const int d = warp * F::kChannels + n * 8 + lane % 4 * 2;
        if (d < call.hd_v)
          store_pack<float, 2>(call.part_y + at * call.hd_v + d,
                               {out[n][2 * half] * factor, out[n][2 * half + 1] * factor});
      }
      if (writes_lse) call.part_lse[at] = lse;
    }
  }
};

// All warps compute the scores of a tile, and then each the sums of its channels.
template <class T, int D, int kHalves>
__device__ __forceinline__ void attend_together(const TokenBlock<T, D, false>& block) {
  using F = TokenTile<D, false>;
  TokenSums<T, D, false, kHalves> sums(block, static_cast<int>(threadIdx.x) / 32);
  for (int tile = 0; tile < block.tiles; ++tile) {
    wait_copies<F::kStages - 2>();
    __syncthreads();  // the tile is visible to all, and all have used the previous one
    if (tile + F::kStages - 1 < block.tiles) block.load(tile + F::kStages - 1);
    commit_copies();
    tensor::Sums<F::kKeys> s;
    block.template scores<F::kKeys>(s, tile, 0);
    sums.add(s, tile);
  }
  sums.store();
}

// Four warps compute the sums of their channels, and the others meanwhile the next tile's scores, 16 keys each.
template <class T, int D, int kHalves>
__device__ __forceinline__ void attend_ahead(const TokenBlock<T, D, true>& block, float4* scores) {
  using F = TokenTile<D, true>;
  constexpr int kKeysPerWarp = 16;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  TokenSums<T, D, true, kHalves> sums(block, warp);
  for (int tile = -1; tile < block.tiles; ++tile) {
    if (tile < 0)
      wait_copies<F::kStages - 2>();
    else
      wait_copies<F::kStages - 3>();
    __syncthreads();  // the next tile and this one's scores are visible to all, and all have used the previous tile
    if (tile >= 0) {
      if (tile + F::kStages - 1 < block.tiles) block.load(tile + F::kStages - 1);
      commit_copies();
    }
    float4* const of_tile = scores + (tile & 1) * (F::kScores / 4) + lane;
    float4* const of_next = scores + (~tile & 1) * (F::kScores / 4) + lane;
    if (const int first = (warp - kWarps) * kKeysPerWarp; first >= 0) {
      if (first >= F::kKeys || tile + 1 >= block.tiles) continue;
      tensor::Sums<kKeysPerWarp> s;
      block.template scores<kKeysPerWarp>(s, tile + 1, first);
#pragma unroll
      for (int n = 0; n < kKeysPerWarp / 8; ++n) of_next[(first / 8 + n) * 32] = {s[n][0], s[n][1], s[n][2], s[n][3]};
    } else if (tile >= 0) {
      tensor::Sums<F::kKeys> s;
#pragma unroll
      for (int n = 0; n < F::kKeys / 8; ++n) {
        const float4 four = of_tile[n * 32];
        s[n][0] = four.x, s[n][1] = four.y, s[n][2] = four.z, s[n][3] = four.w;
      }
      sums.add(s, tile);
    }
  }
  if (warp < kWarps) sums.store();
}

template <class T, int D, int kHalves, bool kAlone>
__global__ void __launch_bounds__(TokenTile<D, kAlone>::kThreads, TokenTile<D, kAlone>::kBlocks)
    token_tiles_kernel(const CachedCall<T> call) {
  extern __shared__ __align__(16) unsigned char memory[];
  const TokenBlock<T, D, kAlone> block(call, memory);
  let_next_begin();
  block.begin();
  if constexpr (kAlone)
    attend_ahead<T, D, kHalves>(block, reinterpret_cast<float4*>(block.q + TokenTile<D, kAlone>::kElements));
  else
    attend_together<T, D, kHalves>(block);
}

template <class T, int D, bool kAlone>
void launch_tiles(Stream& stream, const CachedCall<T>& call, const dim3& grid) {
  using F = TokenTile<D, kAlone>;
  const auto with = [&](void (*kernel)(CachedCall<T>)) {
    witan::cuda::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, F::kBytes),
                       "attention's shared memory");
    launch_early(stream, kernel, grid, F::kThreads, F::kBytes, call);
  };
  call.rep <= 8 ? with(token_tiles_kernel<T, D, 1, kAlone>) : with(token_tiles_kernel<T, D, 2, kAlone>);
}

template <class T, int D>
void launch(Stream& stream, const CachedCall<T>& call) {
  const dim3 grid(static_cast<unsigned>(call.parts), static_cast<unsigned>(call.G * call.chunks),
                  static_cast<unsigned>(call.T_));
  const int64_t blocks = int64_t{call.parts} * call.G * call.chunks * call.T_;
  const bool alone = blocks <= multiprocessors(stream) &&
                     TokenTile<D, true>::kBytes <= witan::cuda::properties(stream.device().index).shared_per_block;
  alone ? launch_tiles<T, D, true>(stream, call, grid) : launch_tiles<T, D, false>(stream, call, grid);
}

}  // namespace tiles
}  // namespace witan::kernels::cuda
