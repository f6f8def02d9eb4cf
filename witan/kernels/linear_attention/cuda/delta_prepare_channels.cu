// Computes the inputs of walks over chunks that do not depend on a state, for decays of channels: queries and keys with
// their decays, P, and (1 + A)^-1. A and P are products on tensor cores between blocks of 16 tokens, and between the
// halves of a block (channel_decays.cuh); within a half they are summed in float32, pair by pair.
#include "witan/kernels/linear_attention/cuda/channel_decays.cuh"
#include "witan/kernels/linear_attention/cuda/delta_inverse.cuh"

namespace witan::kernels::cuda {
namespace {

template <int kColumns>
struct ChannelShared {
  using Gamma = ChannelGamma<kColumns, 8>;
  static constexpr int64_t kBytes = Gamma::kBytes + kTileL * kLinkRow * static_cast<int64_t>(sizeof(float)) +
                                    2 * kTileL * (kColumns + kTileL) * static_cast<int64_t>(sizeof(Bf16));
  SharedTile<kColumns> q, k;
  SharedTile<kTileL> inverse, links;
  Gamma gamma;
  float* A;
  __device__ explicit ChannelShared(unsigned char* memory)
      : q{reinterpret_cast<Bf16*>(memory)},
        k{q.at + kTileL * kColumns},
        inverse{k.at + kTileL * kColumns},
        links{inverse.at + kTileL * kTileL},
        gamma{reinterpret_cast<float*>(links.at + kTileL * kTileL)},
        A(gamma.at + kTileL * Gamma::kRow) {}
};

// A block has the chunks n, n + gridDim.x … of a head of a row.
template <int kColumns>
class ChannelPrepare {
 public:
  __device__ __forceinline__ ChannelPrepare(const DeltaTensors& in, unsigned char* memory, float (&norms)[2][kTileL],
                                            float (&beta)[kTileL])
      : in_(in),
        at_(memory),
        norms_(norms),
        beta_(beta),
        thread_(static_cast<int>(threadIdx.x)),
        warp_(thread_ / 32),
        head_(static_cast<int>(blockIdx.y)),
        b_(blockIdx.z) {}

  __device__ __forceinline__ void run(const ChunkSpan& span) {
    span_ = span;
    first_ = b_ * in_.S + span.begin;
    load();
    multiply_blocks();
    multiply_half();
    __syncthreads();
    constexpr int kHalf = kTileThreads / 2;
    if (thread_ < kHalf)
      invert_diagonal(at_.A, at_.inverse, warp_);
    else
      write_rows(0);
    __syncthreads();
    if (thread_ < kHalf)
      invert_column(at_.A, at_.inverse, warp_);
    else
      write_rows(kTileL / 2);
    __syncthreads();
    write_links();
    __syncthreads();
  }

 private:
  __device__ __forceinline__ void load() {
    copy_rows<kTileL, kTileThreads>(at_.k, in_.key(first_, head_), in_.channels, span_.L, in_.dk);
    copy_rows<kTileL, kTileThreads>(at_.q, in_.query(first_, head_), in_.channels, span_.L, in_.dk);
    at_.gamma.template copy<kTileThreads>(in_, first_, span_.L, head_);
    commit_copies();
    if (thread_ < kTileL) beta_[thread_] = thread_ < span_.L ? in_.beta[(first_ + thread_) * in_.H + head_] : 0.0f;
    wait_copies<0>();
    __syncthreads();
    const int side = thread_ / 128, row = thread_ % 128 / 2;
    const float norm =
        inverse_norm(SharedTile<kColumns>{side == 0 ? at_.k.at : at_.q.at}, row, side == 0 ? 1.0f : in_.factor);
    if (thread_ % 2 == 0) norms_[side][row] = norm;
    if (thread_ < kColumns) at_.gamma.sum(thread_);
    __syncthreads();
  }

  // A[i,j] and P[i,j], from the sum of the products of token i's key or query with token j's key.
  __device__ __forceinline__ float of_key(int i, int j, float sum) const {
    return beta_[i] * norms_[0][i] * norms_[0][j] * sum;
  }
  __device__ __forceinline__ float of_query(int i, int j, float sum) const { return norms_[1][i] * norms_[0][j] * sum; }

  // Between blocks, and between the halves of a block: half of the warps have keys on the left, the others queries.
  __device__ __forceinline__ void multiply_blocks() {
    const int block = warp_ % 4;
    const bool keys = warp_ < 4;
    const SharedTile<kColumns> left{keys ? at_.k.at : at_.q.at};
    WarpSums<4> sums;
#pragma unroll 1
    for (int d = 0; d < kColumns; d += 16) {
      const FragmentA later = grown_left(left, at_.gamma, 16 * block, d, 16 * block),
                      half = grown_left(left, at_.gamma, 16 * block, d, 16 * block + 8);
#pragma unroll
      for (int n = 0; n < 4; ++n)
        if (n <= block)
          sums.add(n, n < block ? later : half,
                   left_right_transposed(at_.k, at_.gamma, 16 * n, d, 16 * block + (n < block ? 0 : 8)));
    }
    sums.each([&](int row, int j, float first, float second) {
      const int i = 16 * block + row;
      const bool own = j / 16 == block, apart = j / 8 < i / 8;
      if (j > 16 * block + 15 || (own && j / 8 == i / 8)) return;  // above the diagonal, or within a half
      if (keys && apart) {
        at_.A[i * kLinkRow + j] = of_key(i, j, first);
        at_.A[i * kLinkRow + j + 1] = of_key(i, j + 1, second);
      } else if (!keys) {
        at_.links.set(i, j, apart ? of_query(i, j, first) : 0.0f, apart ? of_query(i, j + 1, second) : 0.0f);
      }
    });
  }

  // Four channels of a token's query or key.
  __device__ __forceinline__ static float4 load_four(const SharedTile<kColumns>& tile, int row, int d) {
    const auto pack = load_pack<uint32_t, 2>(reinterpret_cast<const uint32_t*>(tile.unit(row, d / 8) + d % 8));
    const float2 low = unpack_pair<Bf16>(pack.at[0]), high = unpack_pair<Bf16>(pack.at[1]);
    return {low.x, low.y, high.x, high.y};
  }
  // Within the warp's half of a block. A lane has a row i and columns j and j + 4; those with j > i have no use.
  __device__ __forceinline__ void multiply_half() {
    const int i = 8 * warp_ + warp_lane() / 4;
    float of_keys[2] = {}, of_queries[2] = {};
#pragma unroll 2
    for (int d = 0; d < kColumns; d += 4) {
      const auto own = load_pack<float, 4>(at_.gamma.row(i) + d);
      const float4 key = load_four(at_.k, i, d), query = load_four(at_.q, i, d);
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int j = 8 * warp_ + warp_lane() % 4 + 4 * c;
        const auto from = load_pack<float, 4>(at_.gamma.row(j) + d);
        const float4 x = load_four(at_.k, j, d);
        const float2 low = shrink(own.at[0] - from.at[0], own.at[1] - from.at[1]),
                     high = shrink(own.at[2] - from.at[2], own.at[3] - from.at[3]);
        const float4 decayed{x.x * low.x, x.y * low.y, x.z * high.x, x.w * high.y};
        of_keys[c] += key.x * decayed.x + key.y * decayed.y + key.z * decayed.z + key.w * decayed.w;
        of_queries[c] += query.x * decayed.x + query.y * decayed.y + query.z * decayed.z + query.w * decayed.w;
      }
    }
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int j = 8 * warp_ + warp_lane() % 4 + 4 * c;
      if (j < i) at_.A[i * kLinkRow + j] = of_key(i, j, of_keys[c]);
      at_.links.unit(i, j / 8)[j % 8] = __float2bfloat16_rn(j <= i ? of_query(i, j, of_queries[c]) : 0.0f);
    }
  }

  // Keys and queries of half of the tokens, from token `begin` of the chunk on, by the second half of the threads. With
  // the first of them also what only the chunk or its tokens have.
  __device__ __forceinline__ void write_rows(int begin) const {
    constexpr int kUnits = kColumns / 8, kStep = kTileThreads / 2 / kUnits;
    const int thread = thread_ - kTileThreads / 2, d = thread % kUnits * 8;
    for (int i = begin + thread / kUnits; i < begin + kTileL / 2; i += kStep)
      if (i < span_.L && d < in_.dk) write_row(i, d);
    if (begin > 0) return;
    if (thread < span_.L) in_.scales[(first_ + thread) * in_.H + head_] = {1.0f, 1.0f, 1.0f, beta_[thread]};
    if (thread < in_.dk && in_.passes_on(span_))
      in_.channel_decays(b_, span_, head_)[thread] = exp2_fast(at_.gamma.row(kTileL - 1)[thread]);
  }
  // Channels d to d + 7 of token i.
  __device__ __forceinline__ void write_row(int i, int d) const {
    const auto keys = load_pack<uint32_t, 4>(reinterpret_cast<const uint32_t*>(at_.k.unit(i, d / 8))),
               queries = load_pack<uint32_t, 4>(reinterpret_cast<const uint32_t*>(at_.q.unit(i, d / 8)));
    const float rk = norms_[0][i], rq = norms_[1][i];
    Pack<uint32_t, 4> grown_keys, left_keys, grown_queries;
    Pack<float, 4> gamma, last;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int pair = n % 2 * 2;
      if (pair == 0) {
        gamma = load_pack<float, 4>(at_.gamma.row(i) + d + 2 * n);
        last = load_pack<float, 4>(at_.gamma.row(kTileL - 1) + d + 2 * n);
      }
      const float2 grown = shrink(gamma.at[pair], gamma.at[pair + 1]),
                   left = shrink(last.at[pair] - gamma.at[pair], last.at[pair + 1] - gamma.at[pair + 1]);
      grown_keys.at[n] = scaled_pair(keys.at[n], {rk * grown.x, rk * grown.y});
      left_keys.at[n] = scaled_pair(keys.at[n], {rk * left.x, rk * left.y});
      grown_queries.at[n] = scaled_pair(queries.at[n], {rq * grown.x, rq * grown.y});
    }
    const auto write = [&](Bf16* row, const Pack<uint32_t, 4>& pack) {
      store_pack(reinterpret_cast<uint32_t*>(row + d), pack);
    };
    write(in_.grown_key(first_ + i, head_), grown_keys);
    write(in_.left_key(first_ + i, head_), left_keys);
    write(in_.grown_query(first_ + i, head_), grown_queries);
  }

  // Blocks on and under the diagonal.
  __device__ __forceinline__ void write_links() const {
    const int unit = thread_ % 8;
    for (int row = thread_ / 8; row < span_.L; row += kTileThreads / 8) {
      if (unit / 2 > row / 16) continue;
      const int64_t to = ((first_ + row) * in_.H + head_) * kTileL + unit * 8;
      const auto copy = [&](Bf16* into, const SharedTile<kTileL>& from) {
        store_pack(reinterpret_cast<uint32_t*>(into + to),
                   load_pack<uint32_t, 4>(reinterpret_cast<const uint32_t*>(from.unit(row, unit))));
      };
      copy(in_.inverse, at_.inverse);
      copy(in_.links, at_.links);
    }
  }

  const DeltaTensors& in_;
  ChannelShared<kColumns> at_;
  float (&norms_)[2][kTileL];  // rk, rq
  float (&beta_)[kTileL];
  int thread_, warp_, head_;
  int64_t b_;
  ChunkSpan span_;
  int64_t first_;
};

template <int kColumns>
__global__ void __launch_bounds__(kTileThreads, 2) delta_prepare_channels_kernel(DeltaTensors in) {
  extern __shared__ unsigned char memory[];
  __shared__ float norms[2][kTileL], beta[kTileL];
  ChannelPrepare<kColumns> prepare(in, memory, norms, beta);
  const int32_t* const table = in.chunks + blockIdx.z * (in.S + 2);
  for (int n = static_cast<int>(blockIdx.x); n < table[0]; n += static_cast<int>(gridDim.x))
    prepare.run(chunk_span(table[1 + n], table[2 + n]));
}

}  // namespace

void delta_prepare_channels(Stream& stream, const DeltaInputs& in, const DeltaMemory& memory) {
  const DeltaTensors tensors = delta_tensors(in, memory);
  const dim3 grid(static_cast<unsigned>(tensors.slots), static_cast<unsigned>(tensors.H),
                  static_cast<unsigned>(in.qkv.size(0)));
  dispatch_key_tile(tensors.dk, [&]<int kColumns>() {
    constexpr int64_t kBytes = ChannelShared<kColumns>::kBytes;
    take_shared_memory(stream, "gated_delta", delta_prepare_channels_kernel<kColumns>, kBytes);
    delta_prepare_channels_kernel<kColumns><<<grid, kTileThreads, kBytes, native(stream)>>>(tensors);
  });
}

}  // namespace witan::kernels::cuda
