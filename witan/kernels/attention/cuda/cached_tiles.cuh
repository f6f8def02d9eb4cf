// Attention of single tokens on the tensor cores, for bfloat16 and float16: the query heads of a group are the rows of
// one tile. All warps of a block compute the probabilities of the same keys, and each multiplies them by some channels
// of the values, so that every number is formed in the order of the forward (attention_tensor_forward.cuh), whose tiles
// of keys these are.
#pragma once

#include "witan/kernels/attention/cuda/attention_tensor_forward.cuh"
#include "witan/kernels/attention/cuda/cached_call.cuh"
#include "witan/kernels/common/cuda/early_launch.cuh"

namespace witan::kernels::cuda {

namespace tiles {

constexpr int kRows = 16, kWarps = 4, kThreads = 32 * kWarps;
constexpr int kBlocksPerProcessor = 3, kFewStages = 2;  // of which one is copied while the other is used
constexpr int kManyStages = 4;                          // for blocks that have a multiprocessor to themselves

// Head sizes up to D.
template <int D, int kStagesOf>
struct TokenTile {
  static constexpr int kChannels = D / kWarps;  // of the values, per warp
  static constexpr int kKeys = tensor::ForwardTile<D>::kKeys, kStages = kStagesOf;
  static constexpr int kQueryElements = kRows * tensor::kStride<D>, kKeyElements = kKeys * tensor::kStride<D>;
  static constexpr int kBytes = (kQueryElements + 2 * kStages * kKeyElements) * static_cast<int>(sizeof(uint16_t));
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

// Copies `count` rows of `width` channels to a tile, from row(r), and zeros beyond them. Unrolled, unless kRarely.
template <int D, int kTileRows, bool kRarely = false, class T, class Row>
__device__ __forceinline__ void copy_tile(T* to, const T* any, int width, int count, const Row& row) {
  constexpr int kPacks = D / 8, kAtOnce = kThreads / kPacks;
  const int first = static_cast<int>(threadIdx.x) / kPacks, d = static_cast<int>(threadIdx.x) % kPacks * 8;
#pragma unroll(kRarely ? 1 : kTileRows / kAtOnce)
  for (int i = 0; i < kTileRows; i += kAtOnce) {
    const int r = first + i;
    const bool wanted = r < count && d < width;
    copy_async(to + r * tensor::kStride<D> + d, wanted ? row(r) + d : any, wanted);
  }
}

// Block (part, group and chunk of its heads, token). Rows of the tile are heads; those of a lane are g and, if kHalves
// is 2, g + 8.
template <class T, int D, int kHalves, int kStages>
__global__ void __launch_bounds__(kThreads, kBlocksPerProcessor) token_tiles_kernel(const CachedCall<T> call) {
  using F = TokenTile<D, kStages>;
  extern __shared__ __align__(16) unsigned char memory[];
  T *const q = reinterpret_cast<T*>(memory), *const buffers = q + F::kQueryElements;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int group = static_cast<int>(blockIdx.y) / call.chunks, chunk = static_cast<int>(blockIdx.y) % call.chunks;
  const int first_head = group * call.rep + chunk * kRows, heads = min(kRows, call.rep - chunk * kRows);
  const int token = static_cast<int>(blockIdx.z);
  const TokenKeys part(call, F::kKeys);
  const int64_t cache_row = static_cast<int64_t>(call.rows[token]) * call.slots;
  const auto load = [&](int tile) {
    const int key = part.first + tile * F::kKeys, count = part.end - key;
    const auto copy = [&](T* to, const T* cache, int width) {
      const T* const rows = cache + (cache_row * call.G + group) * width;
      const int64_t apart = int64_t{call.G} * width;
      if (key + min(count, F::kKeys) <= call.slots) {
        const T* const first = rows + key * apart;
        copy_tile<D, F::kKeys>(to, call.q, width, count, [&](int r) { return first + r * apart; });
      } else {  // a ring
        copy_tile<D, F::kKeys, true>(to, call.q, width, count,
                                     [&](int r) { return rows + (key + r) % call.slots * apart; });
      }
    };
    T* const to = buffers + tile % F::kStages * 2 * F::kKeyElements;
    copy(to, call.keys, call.hd);
    copy(to + F::kKeyElements, call.values, call.hd_v);
  };
  const int tiles = (part.end - part.first + F::kKeys - 1) / F::kKeys;  // none, or negative, of parts without keys
  // Only the token's own key is new: tiles without it were written in earlier steps.
  const auto is_old = [&](int tile) { return part.first + (tile + 1) * F::kKeys <= part.position; };

  let_next_begin();
#pragma unroll
  for (int tile = 0; tile < F::kStages - 1; ++tile)
    if (tile < tiles && is_old(tile)) load(tile);
  wait_for_earlier();
  const T* const queries = call.q + (static_cast<int64_t>(token) * call.H + first_head) * call.hd;
  copy_tile<D, kRows>(q, call.q, call.hd, heads, [&](int r) { return queries + r * call.hd; });
#pragma unroll
  for (int tile = 0; tile < F::kStages - 1; ++tile) {
    if (tile < tiles && !is_old(tile)) load(tile);
    commit_copies();
  }

  const float scale = call.scale * tensor::kLog2e;
  tensor::Sums<F::kChannels> out;
  tensor::clear<F::kChannels>(out);
  float top[2] = {-INFINITY, -INFINITY}, sum[2] = {};
  for (int tile = 0; tile < tiles; ++tile) {
    wait_copies<F::kStages - 2>();
    __syncthreads();  // the tile is visible to all, and all have used the previous one
    if (tile + F::kStages - 1 < tiles) load(tile + F::kStages - 1);
    commit_copies();
    const T* const k = buffers + tile % F::kStages * 2 * F::kKeyElements;
    const int key = part.first + tile * F::kKeys;
    tensor::Sums<F::kKeys> s;
    tensor::clear<F::kKeys>(s);
    tensor::add_scores<F::kKeys, D>(s, q, k);
    tensor::scale_scores<F::kKeys>(s, scale);
    if (key < part.from || key + F::kKeys > part.end) {
#pragma unroll
      for (int n = 0; n < F::kKeys / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int at = key + n * 8 + lane % 4 * 2 + e % 2;
          if (at < part.from || at >= part.end) s[n][e] = -INFINITY;
        }
    }
    tensor::softmax_step<F::kKeys, F::kChannels, kHalves>(s, out, top, sum);
    if constexpr (kHalves == 1) {
#pragma unroll
      for (auto& score : s) score[2] = score[3] = 0;
    }
    tensor::add_product<F::kChannels, F::kKeys, D>(out, s, k + F::kKeyElements + warp * F::kChannels);
  }
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    const float total = tensor::row_sum(sum[half]), factor = total == 0 ? 0.f : 1 / total;  // 0: no key was seen
    const int head = lane / 4 + 8 * half;
    if (head >= heads) continue;
    const int64_t row = static_cast<int64_t>(token) * call.H + first_head + head;
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

template <class T, int D, int kStages>
void launch_staged(Stream& stream, const CachedCall<T>& call, const dim3& grid) {
  constexpr int kBytes = TokenTile<D, kStages>::kBytes;
  const auto with = [&](void (*kernel)(CachedCall<T>)) {
    witan::cuda::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
                       "attention's shared memory");
    launch_early(stream, kernel, grid, kThreads, kBytes, call);
  };
  call.rep <= 8 ? with(token_tiles_kernel<T, D, 1, kStages>) : with(token_tiles_kernel<T, D, 2, kStages>);
}

template <class T, int D>
void launch(Stream& stream, const CachedCall<T>& call) {
  const dim3 grid(static_cast<unsigned>(call.parts), static_cast<unsigned>(call.G * call.chunks),
                  static_cast<unsigned>(call.T_));
  const int64_t blocks = int64_t{call.parts} * call.G * call.chunks * call.T_;
  const bool alone =
      blocks <= multiprocessors(stream) &&
      TokenTile<D, kManyStages>::kBytes <= witan::cuda::properties(stream.device().index).shared_per_block;
  alone ? launch_staged<T, D, kManyStages>(stream, call, grid) : launch_staged<T, D, kFewStages>(stream, call, grid);
}

}  // namespace tiles
}  // namespace witan::kernels::cuda
