// The walks over a head's chunks that pass a state, or back the gradient of one, from chunk to chunk:
//   S <- e^γ[L-1] S + Σ_j e^(γ[L-1] - γ[j]) dt[j] B[j] x[j]ᵀ        dS <- e^γ[L-1] dS + Σ_i e^γ[i] C[i] dy[i]ᵀ
// A block has 32 channels of a head of a row. Each of its eight warps has the transpose of a quarter of the state's
// numbers of 16 channels in registers, in float32. A chunk's operands are copied to shared memory some chunks ahead,
// and its rows are weighted there a chunk ahead.
#include "witan/kernels/state_space/cuda/ssd_tiles.cuh"

namespace witan::kernels::cuda {
namespace {

constexpr int kWalkThreads = 256, kWalkSlice = 32, kWalkStages = 5;

template <int kColumns>
struct WalkStage {
  static constexpr int kVectors = kTileL * kColumns, kRows = kTileL * kWalkSlice;
  static constexpr int kBytes =
      (kVectors + kRows) * static_cast<int>(sizeof(Bf16)) + (kTileL + 1) * static_cast<int>(sizeof(SsdScales));
  SharedTile<kColumns> vectors;
  SharedTile<kWalkSlice> rows;
  SsdScales* scales;
  int2* entry;  // of the table, and the next one
  __device__ explicit WalkStage(unsigned char* memory)
      : vectors{reinterpret_cast<Bf16*>(memory)},
        rows{vectors.at + kVectors},
        scales(reinterpret_cast<SsdScales*>(rows.at + kRows)),
        entry(reinterpret_cast<int2*>(scales + kTileL)) {}
};

template <int kColumns, bool kBack>
class SsdWalk {
 public:
  static constexpr int kPairs = kColumns / 64;  // of a warp's numbers

  __device__ __forceinline__ SsdWalk(const SsdTensors& in, const Bf16* dy, unsigned char* memory)
      : in_(in),
        dy_(dy),
        memory_(memory),
        slice_(static_cast<int>(blockIdx.x) * kWalkSlice),
        head_(static_cast<int>(blockIdx.y)),
        group_(head_ / in.per_group),
        b_(blockIdx.z),
        table_(in.chunks + b_ * (in.S + 2)),
        count_(table_[0]),
        channel_(own_warp() % 2 * 16),
        number_(own_warp() / 2 * kColumns / 4),
        ahead_(entry(0)) {}

  __device__ __forceinline__ void run() {
    for (int n = 0; n < kWalkStages - 1; ++n) copy(n);
    wait_copies<kWalkStages - 2>();
    __syncthreads();
    if (count_ > 0) weigh(stage_of(0));
    for (int n = 0; n < count_; ++n) {
      wait_copies<kWalkStages - 3>();
      __syncthreads();
      copy(n + kWalkStages - 1);
      if (n + 1 < count_) weigh(stage_of(n + 1));
      const WalkStage<kColumns> stage = stage_of(n);
      const int2 entry = *stage.entry;
      chunk(stage, chunk_span(entry.x, entry.y));
    }
    wait_copies<0>();
  }

  // [N, P] of the head, in float32
  __device__ __forceinline__ void write_last(float* last) {
    float* const to = last + (b_ * in_.H + head_) * in_.N * static_cast<int64_t>(in_.P);
    state_.each([&](int row, int column, float first, float second) {
      const int e = slice_ + channel_ + row, n = number_ + column;
      if (n < in_.N && e < in_.P) {
        to[static_cast<int64_t>(n) * in_.P + e] = first;
        to[static_cast<int64_t>(n + 1) * in_.P + e] = second;
      }
    });
  }

 private:
  // The table's entry of the walk's chunk n, and the next one.
  __device__ __forceinline__ int2 entry(int n) const {
    const int at = kBack ? count_ - n : 1 + n;
    return n < count_ ? int2{table_[at], table_[at + 1]} : int2{0, 0};
  }
  __device__ __forceinline__ WalkStage<kColumns> stage_of(int n) const {
    return WalkStage<kColumns>(memory_ + n % kWalkStages * WalkStage<kColumns>::kBytes);
  }
  // Copies the operands of the walk's chunk n. Called for one chunk after another, whose entries are read a chunk
  // ahead.
  __device__ __forceinline__ void copy(int n) {
    if (n < count_) {
      const ChunkSpan of = chunk_span(ahead_.x, ahead_.y);
      const WalkStage<kColumns> stage = stage_of(n);
      if (threadIdx.x == 0) *stage.entry = ahead_;
      ahead_ = entry(n + 1);
      const int64_t first = b_ * in_.S + of.begin;
      const Bf16* const vectors = in_.vectors(first, group_);
      copy_rows<kTileL, kWalkThreads>(stage.vectors, kBack ? vectors + in_.of_groups : vectors, in_.channels, of.L,
                                      in_.N);
      const Bf16* const rows = kBack ? dy_ + (first * in_.H + head_) * in_.P : in_.input(first, head_);
      copy_rows<kTileL, kWalkThreads>(stage.rows, rows + slice_, kBack ? in_.inner : in_.channels, of.L,
                                      in_.P - slice_);
      copy_scales(stage.scales, in_.scale(b_, of.begin, head_), of.L, static_cast<int>(threadIdx.x));
    }
    commit_copies();
  }
  // Multiplies rows by their weights, a thread 16 bytes.
  __device__ __forceinline__ void weigh(const WalkStage<kColumns>& stage) const {
    static_assert(kTileL * kWalkSlice == 8 * kWalkThreads);
    const int row = static_cast<int>(threadIdx.x) / 4;
    auto* const at = reinterpret_cast<uint32_t*>(stage.rows.unit(row, static_cast<int>(threadIdx.x) % 4));
    auto pack = load_pack<uint32_t, 4>(at);
    const SsdScales of = stage.scales[row];
    const float weight = kBack ? of.grown : of.left * of.dt;
#pragma unroll
    for (uint32_t& pair : pack.at) {
      const float2 x = unpack_pair<Bf16>(pair);
      pair = pack_pair<Bf16>(weight * x.x, weight * x.y);
    }
    store_pack(at, pack);
  }

  __device__ __forceinline__ void chunk(const WalkStage<kColumns>& stage, const ChunkSpan& of) {
    if (kBack ? of.ends : of.begins)
      state_ = {};
    else if constexpr (kBack)
      write(in_.state_gradients + in_.state(b_, of.begin + of.L, head_));
    else
      write(in_.states + in_.state(b_, of.begin, head_));
    const float decay = stage.scales[of.L - 1].grown;
    state_.scale(decay, decay);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const FragmentA rows = left_transposed(stage.rows, 16 * j, channel_);
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair)
        state_.add(pair, rows, right_operand(stage.vectors, 16 * j, number_ + 16 * pair));
    }
  }
  // In blocks of 8 channels and 8 numbers, each of which the lanes of a warp write side by side.
  __device__ __forceinline__ void write(Bf16* to) const {
    const int e = slice_ + channel_, across = in_.N / 8;
    auto* at = reinterpret_cast<uint32_t*>(to + ((e / 8) * across + number_ / 8) * 64) + warp_lane();
#pragma unroll
    for (int half = 0; half < 2; ++half, at += 32 * across) {
      if (e + 8 * half >= in_.P) continue;
#pragma unroll
      for (int n = 0; n < 2 * kPairs; ++n)
        if (number_ + 8 * n < in_.N) at[32 * n] = pack_pair<Bf16>(state_.at[n][2 * half], state_.at[n][2 * half + 1]);
    }
  }

  const SsdTensors& in_;
  const Bf16* dy_;
  unsigned char* memory_;
  int slice_, head_, group_;
  int64_t b_;
  const int32_t* table_;
  int count_, channel_, number_;  // of a warp, within the slice and the state
  int2 ahead_;
  WarpSums<kPairs> state_;
};

template <int kColumns, bool kBack>
__global__ void __launch_bounds__(kWalkThreads) ssd_walk_kernel(SsdTensors in, const Bf16* dy, float* last) {
  extern __shared__ unsigned char memory[];
  SsdWalk<kColumns, kBack> walk(in, dy, memory);
  walk.run();
  if (!kBack && last != nullptr) walk.write_last(last);
}

template <bool kBack>
void launch_walk(Stream& stream, const Bf16* dy, float* last, const SsdInputs& in, const SsdMemory& memory) {
  const SsdTensors tensors = ssd_tensors(in, memory);
  const dim3 grid(static_cast<unsigned>((tensors.P + kWalkSlice - 1) / kWalkSlice), static_cast<unsigned>(tensors.H),
                  static_cast<unsigned>(in.xbc.size(0)));
  dispatch_state_tile(tensors.N, [&]<int kColumns>() {
    constexpr int kBytes = kWalkStages * WalkStage<kColumns>::kBytes;
    take_shared_memory(stream, "ssd", ssd_walk_kernel<kColumns, kBack>, kBytes);
    ssd_walk_kernel<kColumns, kBack><<<grid, kWalkThreads, kBytes, native(stream)>>>(tensors, dy, last);
  });
}

}  // namespace

void ssd_walk(Stream& stream, const Tensor& last, const SsdInputs& in, const SsdMemory& memory) {
  launch_walk<false>(stream, nullptr, ptr<float>(last), in, memory);
}

void ssd_walk_back(Stream& stream, const Tensor& dy, const SsdInputs& in, const SsdMemory& memory) {
  launch_walk<true>(stream, ptr<Bf16>(dy), nullptr, in, memory);
}

}  // namespace witan::kernels::cuda
