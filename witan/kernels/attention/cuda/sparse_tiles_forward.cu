// The forward of sparse_tiles.cuh: FlashAttention-2 with 16 tokens per warp, and the masks of choices.
#include "witan/kernels/attention/cuda/sparse_tiles.cuh"

namespace witan::kernels::cuda {
namespace {

using tensor::kStride;
using tensor::Sums;

constexpr int kMaskThreads = 256;

// A block has a token.
__global__ void __launch_bounds__(kMaskThreads)
    choice_mask_kernel(uint64_t* mask, const int32_t* chosen, int K, int words) {
  extern __shared__ unsigned int bits[];  // [2 words]
  const int64_t t = blockIdx.x;
  for (int i = threadIdx.x; i < 2 * words; i += kMaskThreads) bits[i] = 0;
  __syncthreads();
  for (int m = threadIdx.x; m < K; m += kMaskThreads) {
    const int slot = chosen[t * K + m];
    if (slot >= 0) atomicOr(bits + slot / 32, 1U << slot % 32);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < words; i += kMaskThreads)
    mask[t * words + i] = bits[2 * i] | static_cast<uint64_t>(bits[2 * i + 1]) << 32;
}

template <int D, int DV>
struct ForwardShape {
  static constexpr int kWarps = 4, kThreads = 32 * kWarps, kKeys = D <= 192 ? 64 : 32;
  static constexpr int kQuery = kTileL * kStride<D>, kKey = kKeys * kStride<D>, kValue = kKeys * kStride<DV>;
  static constexpr int kBytes = (kQuery + 2 * (kKey + kValue)) * 2;
};

template <class T, int D, int DV>
__global__ void __launch_bounds__(ForwardShape<D, DV>::kThreads)
    sparse_forward_tile_kernel(T* y, float* lse, const SparseTiles<T> in) {
  using F = ForwardShape<D, DV>;
  extern __shared__ __align__(16) unsigned char memory[];
  T *const q = reinterpret_cast<T*>(memory), *const buffers = q + F::kQuery;
  const int head = static_cast<int>(blockIdx.y), warp = own_warp();
  const int64_t row = blockIdx.z, stride = static_cast<int64_t>(in.heads) * in.hd,
                stride_v = static_cast<int64_t>(in.heads) * in.hd_v;
  for_chunks(in, true, [&](const int32_t* entry, const ChunkSpan& span) {
    const int32_t* first = entry;
    while (*first % 2 == 0) --first;
    const int begin = *first / 2, end = span.begin + span.L;
    const auto load = [&](int key, int turn) {
      T* const k = buffers + turn * (F::kKey + F::kValue);
      copy_tile<D, F::kKeys, F::kThreads>(k, in.k + in.at(row, key, head, in.hd), stride, end - key, in.hd);
      copy_tile<DV, F::kKeys, F::kThreads>(k + F::kKey, in.v + in.at(row, key, head, in.hd_v), stride_v, end - key,
                                           in.hd_v);
    };
    int slot[2];
#pragma unroll
    for (int half = 0; half < 2; ++half)
      slot[half] = span.begin + min(16 * warp + warp_lane() / 4 + 8 * half, span.L - 1);
    const auto bits_of = [&](int key, uint64_t(&bits)[2]) {
      if (key < end) bits[0] = in.bits(row, slot[0], key), bits[1] = in.bits(row, slot[1], key);
    };
    copy_tile<D, kTileL, F::kThreads>(q, in.q + in.at(row, span.begin, head, in.hd), stride, span.L, in.hd);
    load(begin, 0);
    commit_copies();
    uint64_t bits[2], following[2] = {};
    bits_of(begin, bits);
    Sums<DV> out;
    tensor::clear<DV>(out);
    float top[2] = {-INFINITY, -INFINITY}, sum[2] = {};
    const float scale = in.scale * tensor::kLog2e;
    int turn = 0;
    for (int key = begin; key < end; key += F::kKeys, turn ^= 1) {
      wait_copies<0>();
      __syncthreads();
      if (key + F::kKeys < end) load(key + F::kKeys, turn ^ 1);
      commit_copies();
      bits_of(key + F::kKeys, following);
      const T* const k = buffers + turn * (F::kKey + F::kValue);
      if constexpr (F::kKeys == 32) bits[0] &= 0xffffffffU, bits[1] &= 0xffffffffU;
      if (__any_sync(0xffffffffu, (bits[0] | bits[1]) != 0)) {
        Sums<F::kKeys> s;
        tensor::clear<F::kKeys>(s);
        tensor::add_scores<F::kKeys, D>(s, q + 16 * warp * kStride<D>, k);
        tensor::scale_scores<F::kKeys>(s, scale);
        hide_others<F::kKeys>(s, bits);
        tensor::softmax_step<F::kKeys, DV>(s, out, top, sum);
        tensor::add_product<DV, F::kKeys, DV>(out, s, k + F::kKey);
      }
      bits[0] = following[0], bits[1] = following[1];
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float total = tensor::row_sum(sum[half]);
      if (16 * warp + warp_lane() / 4 + 8 * half >= span.L) continue;
      tensor::store_row<DV>(y + in.at(row, slot[half], head, in.hd_v), out, half, total == 0 ? 0.0f : 1 / total, 0,
                            in.hd_v, true);
      if (lse != nullptr && warp_lane() % 4 == 0)
        lse[in.sum_at(row, slot[half], head)] = tensor::log_of_row(top[half], total);
    }
    __syncthreads();
  });
}

}  // namespace

void sparse_prepare(Stream& stream, const SparseInputs& in, const SparseMemory& memory) {
  fill_chunk_table(stream, ptr<int32_t>(memory.chunks), ptr<int32_t>(in.where.ids), in.where.rows, in.where.slots);
  const auto words = static_cast<int>(memory.mask.size(1));
  take_shared_memory(stream, "sparse_attention", choice_mask_kernel, 8 * words);
  choice_mask_kernel<<<static_cast<unsigned>(in.chosen.size(0)), kMaskThreads, 8 * static_cast<size_t>(words),
                       native(stream)>>>(ptr<uint64_t>(memory.mask), ptr<int32_t>(in.chosen),
                                         static_cast<int>(in.chosen.size(1)), words);
}

void sparse_forward_by_tiles(Stream& stream, const Tensor& y, const Tensor& lse, const SparseInputs& in,
                             const SparseMemory& memory) {
  sparse_prepare(stream, in, memory);
  dispatch_half(y.dtype(), [&]<class T>() {
    const SparseTiles<T> tiles(in, memory);
    const dim3 grid(static_cast<unsigned>((tiles.C + kTileL - 1) / kTileL), static_cast<unsigned>(tiles.heads),
                    static_cast<unsigned>(in.where.rows));
    dispatch_sparse_tile(tiles.hd, tiles.hd_v, [&]<int D, int DV>() {
      using F = ForwardShape<D, DV>;
      take_shared_memory(stream, "sparse_attention", sparse_forward_tile_kernel<T, D, DV>, F::kBytes);
      sparse_forward_tile_kernel<T, D, DV>
          <<<grid, F::kThreads, F::kBytes, native(stream)>>>(ptr<T>(y), ptr<float>(lse), tiles);
    });
  });
}

}  // namespace witan::kernels::cuda
