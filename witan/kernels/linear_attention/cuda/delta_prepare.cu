// Computes the inputs of walks over chunks that do not depend on a state: the scales of tokens, P, and (1 + A)^-1.
#include "witan/kernels/linear_attention/cuda/delta_inverse.cuh"

namespace witan::kernels::cuda {
namespace {

// Numbers of each token of a chunk, for each of two heads.
struct HeadGates {
  float gamma[2][kTileL], beta[2][kTileL];
};

// The shared memory of a block. A takes the place of queries and keys, once their products are there.
template <int kColumns>
struct PrepareShared {
  static constexpr int kProducts = kTileL * kLinkRow;
  static constexpr int64_t kBytes =
      4 * kProducts * static_cast<int64_t>(sizeof(float)) + 2 * kTileL * kTileL * static_cast<int64_t>(sizeof(Bf16));
  static_assert(2 * kTileL * kColumns * sizeof(Bf16) <= 2 * kProducts * sizeof(float));
  SharedTile<kColumns> q, k;
  float *A, *of_keys, *of_queries;  // 2 of A
  Bf16* inverse;                    // 2 tiles
  __device__ explicit PrepareShared(unsigned char* memory)
      : q{reinterpret_cast<Bf16*>(memory)},
        k{q.at + kTileL * kColumns},
        A(reinterpret_cast<float*>(memory)),
        of_keys(A + 2 * kProducts),
        of_queries(of_keys + kProducts),
        inverse(reinterpret_cast<Bf16*>(of_queries + kProducts)) {}
};

// k kᵀ and q kᵀ of a chunk, blocks on and under the diagonal.
template <int kColumns>
__device__ void find_products(const PrepareShared<kColumns>& at) {
  const int warp = static_cast<int>(threadIdx.x) / 32, block = warp % 4;
  const SharedTile<kColumns> left{warp < 4 ? at.k.at : at.q.at};
  float* const to = warp < 4 ? at.of_keys : at.of_queries;
  WarpSums<4> sums;
#pragma unroll
  for (int d = 0; d < kColumns; d += 16) {
    const FragmentA a = left_operand(left, 16 * block, d);
#pragma unroll
    for (int n = 0; n < 4; ++n)
      if (n <= block) sums.add(n, a, right_transposed(at.k, 16 * n, d));
  }
  sums.each([&](int row, int column, float first, float second) {
    float* const pair = to + (16 * block + row) * kLinkRow + column;
    pair[0] = first, pair[1] = second;
  });
}

// The gates and scales of a head's tokens, by a warp.
__device__ __forceinline__ void prepare_gates(const DeltaTensors& in, const ChunkSpan& span, int64_t first, int head,
                                              bool active, const float (&norms)[2][kTileL], float* gamma, float* beta) {
  float g[2], strength[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = warp_lane() + 32 * half;
    const bool inside = active && i < span.L;
    g[half] = inside ? in.g[(first + i) * in.H + head] : 0.0f;
    strength[half] = inside ? in.beta[(first + i) * in.H + head] : 0.0f;
  }
  const float2 sums = scan_tokens(g[0], g[1]);
  const float last = __shfl_sync(0xffffffffu, sums.y, 31);  // tokens beyond the chunk's have g = 0
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = warp_lane() + 32 * half;
    const float sum = half == 0 ? sums.x : sums.y;
    gamma[i] = sum;
    beta[i] = strength[half];
    if (!active || i >= span.L) continue;
    const float grown = __expf(sum), rk = norms[0][i];
    in.scales[(first + i) * in.H + head] = {grown * rk, __expf(last - sum) * rk, grown * norms[1][i], strength[half]};
    if (i == span.L - 1) in.decays[first * in.H + head] = grown;
  }
}

// A block has the chunks n, n + gridDim.x … of a row, and the heads of a group, two at a time.
template <int kColumns>
__global__ void __launch_bounds__(kTileThreads, 2) delta_prepare_kernel(DeltaTensors in) {
  extern __shared__ unsigned char memory[];
  __shared__ float norms[2][kTileL];  // rk, rq
  __shared__ HeadGates gates;
  const PrepareShared<kColumns> at(memory);
  const int t = static_cast<int>(threadIdx.x), side = t / 128, own = t % 128, group = static_cast<int>(blockIdx.y);
  const int64_t b = blockIdx.z, per_group = in.H / in.G;
  const int32_t* const table = in.chunks + b * (in.S + 2);
  for (int n = static_cast<int>(blockIdx.x); n < table[0]; n += static_cast<int>(gridDim.x)) {
    const ChunkSpan span = chunk_span(table[1 + n], table[2 + n]);
    const int64_t first = b * in.S + span.begin;
    copy_rows<kTileL, kTileThreads>(at.k, in.key(first, group), in.channels, span.L, in.dk);
    copy_rows<kTileL, kTileThreads>(at.q, in.query(first, group), in.channels, span.L, in.dk);
    commit_copies();
    wait_copies<0>();
    __syncthreads();
    const float norm =
        inverse_norm(SharedTile<kColumns>{side == 0 ? at.k.at : at.q.at}, own / 2, side == 0 ? 1.0f : in.factor);
    if (t % 2 == 0) norms[side][own / 2] = norm;
    find_products(at);
    __syncthreads();
    for (int r = 0; r < per_group; r += 2) {
      const bool active = r + side < per_group;
      const int head = group * static_cast<int>(per_group) + r + side;
      float* const A = at.A + side * PrepareShared<kColumns>::kProducts;
      const SharedTile<kTileL> inverse{at.inverse + side * kTileL * kTileL};
      if (own < 32) prepare_gates(in, span, first, head, active, norms, gates.gamma[side], gates.beta[side]);
      __syncthreads();
      const float* const gamma = gates.gamma[side];
#pragma unroll
      for (int turn = 0; turn < 4; ++turn) {
        const int row = own / 8 + 16 * turn, unit = own % 8;
        if (!active || unit / 2 > turn) continue;
        const float of_key = gates.beta[side][row] * norms[0][row], of_query = norms[1][row];
        Pack<uint32_t, 4> links;
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          const int column = unit * 8 + 4 * part, from = row * kLinkRow + column;
          const auto of_keys = load_pack<float, 4>(at.of_keys + from),
                     of_queries = load_pack<float, 4>(at.of_queries + from);
          Pack<float, 4> lower;
          float query[4];
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            const bool linked = column + c <= row;
            const float decay = linked ? __expf(gamma[row] - gamma[column + c]) * norms[0][column + c] : 0.0f;
            lower.at[c] = column + c < row ? of_key * decay * of_keys.at[c] : 0.0f;
            query[c] = of_query * decay * of_queries.at[c];
          }
          store_pack(A + from, lower);
          links.at[2 * part] = pack_pair<Bf16>(query[0], query[1]);
          links.at[2 * part + 1] = pack_pair<Bf16>(query[2], query[3]);
        }
        if (row < span.L)
          store_pack(reinterpret_cast<uint32_t*>(in.links + ((first + row) * in.H + head) * kTileL + unit * 8), links);
      }
      __syncthreads();
      if (active) invert_diagonal(A, inverse, own / 32);
      __syncthreads();
      if (active) invert_column(A, inverse, own / 32);
      __syncthreads();
#pragma unroll
      for (int turn = 0; turn < 4; ++turn) {
        const int row = own / 8 + 16 * turn, unit = own % 8;
        if (active && unit / 2 <= turn && row < span.L)
          store_pack(reinterpret_cast<uint32_t*>(in.inverse + ((first + row) * in.H + head) * kTileL + unit * 8),
                     load_pack<uint32_t, 4>(reinterpret_cast<const uint32_t*>(inverse.unit(row, unit))));
      }
      __syncthreads();
    }
  }
}

}  // namespace

DeltaTensors delta_tensors(const DeltaInputs& in, const DeltaMemory& memory) {
  const DeltaHeads& n = in.heads;
  return {ptr<Bf16>(in.qkv),
          ptr<float>(in.g),
          ptr<float>(in.beta),
          ptr<int32_t>(in.sequence_ids),
          ptr<int32_t>(memory.chunks),
          ptr<DeltaScales>(memory.scales),
          ptr<float>(memory.decays),
          ptr<Bf16>(memory.inverse),
          ptr<Bf16>(memory.links),
          ptr<Bf16>(memory.states),
          ptr<Bf16>(memory.state_gradients),
          ptr<Bf16>(memory.u),
          ptr<Bf16>(memory.du),
          ptr<Bf16>(memory.rows),
          in.qkv.size(1),
          n.channels(),
          n.key_channels(),
          (in.qkv.size(1) + kDeltaChunk - 1) / kDeltaChunk,
          static_cast<int>(n.keys),
          static_cast<int>(n.values),
          static_cast<int>(n.key_dim),
          static_cast<int>(n.value_dim),
          static_cast<float>(1 / std::sqrt(static_cast<double>(n.key_dim)))};
}

void delta_prepare(Stream& stream, const DeltaInputs& in, const DeltaMemory& memory) {
  const DeltaTensors tensors = delta_tensors(in, memory);
  const auto rows = static_cast<unsigned>(in.qkv.size(0));
  fill_chunk_table(stream, tensors.chunks, tensors.ids, in.qkv.size(0), tensors.S);
  if (in.decay() == Decay::of_channels) return delta_prepare_channels(stream, in, memory);
  const dim3 grid(static_cast<unsigned>(tensors.slots), static_cast<unsigned>(tensors.G), rows);
  dispatch_key_tile(tensors.dk, [&]<int kColumns>() {
    constexpr int64_t kBytes = PrepareShared<kColumns>::kBytes;
    take_shared_memory(stream, "gated_delta", delta_prepare_kernel<kColumns>, kBytes);
    delta_prepare_kernel<kColumns><<<grid, kTileThreads, kBytes, native(stream)>>>(tensors);
  });
}

}  // namespace witan::kernels::cuda
