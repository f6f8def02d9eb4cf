// Y = e^γ C S + M X + D X of all chunks at once. A block has a chunk of some heads of a group, a warp 16 of its tokens:
// C Bᵀ stays in registers, from which each head's M = e^(γ[i] - γ[j]) dt[j] C[i].B[j] is made as a left operand.
#include "witan/kernels/state_space/cuda/ssd_tiles.cuh"

namespace witan::kernels::cuda {
namespace {

constexpr int kOutputThreads = 128, kOutputPart = 64;  // channels at a time
constexpr int kOutputHeads = 4;                        // of a block, at most

// A head's operands.
template <int kColumns>
struct OutputStage {
  static constexpr int kRows = kTileL * kOutputPart, kState = kOutputPart * kColumns;
  static constexpr int kBytes =
      (kRows + kState) * static_cast<int>(sizeof(Bf16)) + kTileL * static_cast<int>(sizeof(SsdScales));
  SharedTile<kOutputPart> x;
  StateTile<kColumns> state;
  SsdScales* scales;
  __device__ explicit OutputStage(unsigned char* memory)
      : x{reinterpret_cast<Bf16*>(memory)},
        state{x.at + kRows},
        scales(reinterpret_cast<SsdScales*>(state.at + kState)) {}
};

// B and C take the place of the second stage, until their products are known.
template <int kColumns>
struct OutputShared {
  static constexpr int kVectors = kTileL * kColumns, kStage = OutputStage<kColumns>::kBytes;
  static constexpr int kBytes = kStage + std::max(kStage, 2 * kVectors * static_cast<int>(sizeof(Bf16)));
};

template <int kColumns>
class SsdOutputs {
 public:
  __device__ __forceinline__ SsdOutputs(const SsdTensors& in, Bf16* y, unsigned char* memory)
      : in_(in), y_(y), memory_(memory), block_(own_warp()), b_(blockIdx.z) {
    const int sets = (in.per_group + kOutputHeads - 1) / kOutputHeads;
    group_ = static_cast<int>(blockIdx.y) / sets;
    const int begin = (static_cast<int>(blockIdx.y) - group_ * sets) * kOutputHeads;
    head_ = group_ * in.per_group + begin;
    end_ = head_ + min(kOutputHeads, in.per_group - begin);
  }

  __device__ __forceinline__ void run(const ChunkSpan& span) {
    span_ = span;
    first_ = b_ * in_.S + span.begin;
    const SharedTile<kColumns> C{reinterpret_cast<Bf16*>(memory_ + OutputShared<kColumns>::kStage)},
        B{C.at + OutputShared<kColumns>::kVectors};
    const Bf16* const vectors = in_.vectors(first_, group_);
    copy_rows<kTileL, kOutputThreads>(B, vectors, in_.channels, span.L, in_.N);
    copy_rows<kTileL, kOutputThreads>(C, vectors + in_.of_groups, in_.channels, span.L, in_.N);
    commit_copies();
    HeadPart at{head_, 0};
    copy(at, 0);
    wait_copies<1>();
    __syncthreads();
    multiply_vectors(C, B);
    __syncthreads();
    for (int turn = 0; at.head < end_; turn ^= 1) {
      const HeadPart following = at.next(in_.P);
      copy(following, turn ^ 1);
      wait_copies<1>();
      __syncthreads();
      part(stage_of(turn), at);
      __syncthreads();
      at = following;
    }
    wait_copies<0>();
  }

 private:
  __device__ __forceinline__ OutputStage<kColumns> stage_of(int turn) const {
    return OutputStage<kColumns>(memory_ + turn * OutputShared<kColumns>::kStage);
  }
  __device__ __forceinline__ int row() const { return 16 * block_ + warp_lane() / 4; }

  __device__ __forceinline__ void copy(const HeadPart& at, int turn) const {
    if (at.head < end_) {
      const OutputStage<kColumns> stage = stage_of(turn);
      copy_rows<kTileL, kOutputThreads>(stage.x, in_.input(first_, at.head) + at.channel, in_.channels, span_.L,
                                        in_.P - at.channel);
      if (!span_.begins)
        copy_state<kOutputThreads>(stage.state, in_.states + in_.state(b_, span_.begin, at.head), at.channel, in_.P,
                                   in_.N, static_cast<int>(threadIdx.x));
      copy_scales(stage.scales, in_.scale(b_, span_.begin, at.head), span_.L, static_cast<int>(threadIdx.x));
    }
    commit_copies();
  }
  // C Bᵀ of the warp's tokens, blocks on and under the diagonal, and C as left operands.
  __device__ __forceinline__ void multiply_vectors(const SharedTile<kColumns>& C, const SharedTile<kColumns>& B) {
    products_ = {};
#pragma unroll
    for (int d = 0; d < kColumns / 16; ++d) {
      C_[d] = left_operand(C, 16 * block_, 16 * d);
#pragma unroll
      for (int n = 0; n < 4; ++n)
        if (n <= block_) products_.add(n, C_[d], right_transposed(B, 16 * n, 16 * d));
    }
  }
  __device__ __forceinline__ void part(const OutputStage<kColumns>& stage, const HeadPart& at) const {
    WarpSums<4> sums;
    const SsdScales of_rows[2] = {stage.scales[row()], stage.scales[row() + 8]};
    if (!span_.begins) {
#pragma unroll
      for (int d = 0; d < kColumns / 16; ++d)
#pragma unroll
        for (int pair = 0; pair < 4; ++pair) sums.add(pair, C_[d], stage.state.by_number(16 * d, 16 * pair));
      sums.scale(of_rows[0].grown, of_rows[1].grown);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (j > block_) continue;
      const FragmentA links = link_operand(stage.scales, of_rows, j, in_.D[at.head]);
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) sums.add(pair, links, right_operand(stage.x, 16 * j, 16 * pair));
    }
    write_sums(y_ + ((first_ + 16 * block_) * in_.H + at.head) * in_.P + at.channel, in_.inner, sums,
               span_.L - 16 * block_, in_.P - at.channel);
  }
  // M of the warp's tokens and 16 others, with D on its diagonal.
  __device__ __forceinline__ FragmentA link_operand(const SsdScales* scales, const SsdScales (&of_rows)[2], int j,
                                                    float skip) const {
    FragmentA out;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int column = 16 * j + 8 * n + warp_lane() % 4 * 2;
      const SsdScales of[2] = {scales[column], scales[column + 1]};
#pragma unroll
      for (int lower = 0; lower < 2; ++lower) {
        float link[2];
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const float decay = exp2_fast(of_rows[lower].gamma - of[c].gamma);
          link[c] = products_.at[2 * j + n][2 * lower + c] * decay * of[c].dt;
          if (j == block_) {
            if (column + c > row() + 8 * lower) link[c] = 0.0f;
            if (column + c == row() + 8 * lower) link[c] += skip;
          }
        }
        out.at[2 * n + lower] = pack_pair<Bf16>(link[0], link[1]);
      }
    }
    return out;
  }

  const SsdTensors& in_;
  Bf16* y_;
  unsigned char* memory_;
  int block_;
  int64_t b_;
  int group_, head_, end_;  // and the first of its heads, and behind the last
  ChunkSpan span_;
  int64_t first_;
  FragmentA C_[kColumns / 16];
  WarpSums<4> products_;
};

template <int kColumns>
__global__ void __launch_bounds__(kOutputThreads, 3) ssd_outputs_kernel(SsdTensors in, Bf16* y) {
  extern __shared__ unsigned char memory[];
  SsdOutputs<kColumns> outputs(in, y, memory);
  const int32_t* const table = in.chunks + blockIdx.z * (in.S + 2);
  for (int n = static_cast<int>(blockIdx.x); n < table[0]; n += static_cast<int>(gridDim.x))
    outputs.run(chunk_span(table[1 + n], table[2 + n]));
}

}  // namespace

void ssd_outputs(Stream& stream, const Tensor& y, const SsdInputs& in, const SsdMemory& memory) {
  const SsdTensors tensors = ssd_tensors(in, memory);
  const int sets = (tensors.per_group + kOutputHeads - 1) / kOutputHeads;
  const dim3 grid(static_cast<unsigned>(tensors.slots), static_cast<unsigned>(tensors.G * sets),
                  static_cast<unsigned>(in.xbc.size(0)));
  dispatch_state_tile(tensors.N, [&]<int kColumns>() {
    constexpr int kBytes = OutputShared<kColumns>::kBytes;
    take_shared_memory(stream, "ssd", ssd_outputs_kernel<kColumns>, kBytes);
    ssd_outputs_kernel<kColumns><<<grid, kOutputThreads, kBytes, native(stream)>>>(tensors, ptr<Bf16>(y));
  });
}

}  // namespace witan::kernels::cuda
