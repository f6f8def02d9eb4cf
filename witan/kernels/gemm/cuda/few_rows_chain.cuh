// A warp multiplies 16 rows of a weight by few rows of x, both of 16-bit numbers, and forms each sum as one chain of
// the tensor cores' products of 16 of K, in the order of K. Kernels for many rows, Witan's and those that cuBLASLt has
// for Hopper, add in the same way: a row has their bits. A sum cannot be divided among warps, so that copies in flight,
// not threads, must hide the latency of memory: each warp has a ring of stages that the copy engine fills.
#pragma once

#include "witan/kernels/common/cuda/hopper.cuh"
#include "witan/kernels/gemm/cuda/few_rows.cuh"

namespace witan::kernels::cuda::few {

constexpr int kChainStep = 256;                         // of K per stage: 512 bytes of a row
constexpr int kApart = 8;                               // elements that keep rows in different banks
constexpr int kChainPitch = kChainStep + kApart;        // between a stage's rows
constexpr int kChainStage = kWeightRows * kChainPitch;  // elements
constexpr int kMostChainWarps = 8;                      // per block
constexpr int kChainUnit = 32;                          // K is a multiple of this
constexpr int64_t kStageBytes = int64_t{2} * kChainStage + int64_t{sizeof(uint64_t)};  // with its barrier

// A block's shared memory: rows of x as wholes, each warp's stages, their barriers, that of x.
struct ChainMemory {
  int warps, stages, rows, K;

  __host__ __device__ int pitch() const { return K + kApart; }
  int64_t columns_bytes() const { return int64_t{2} * rows * pitch() + int64_t{sizeof(uint64_t)}; }
  int64_t bytes() const { return columns_bytes() + warps * stages * kStageBytes; }
  // As many stages as fit into so many bytes and are of use.
  void fit(int64_t all) {
    stages = static_cast<int>(
        std::min<int64_t>((all - columns_bytes()) / (warps * kStageBytes), (K + kChainStep - 1) / kChainStep));
  }
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// One warp's part of it. Steps are numbered over all passes over K.
template <class T>
class Chain {
 public:
  __device__ Chain(void* memory, const ChainMemory& of)
      : columns_(static_cast<T*>(memory)), count_(of.stages), K_(of.K), pitch_(of.pitch()) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    T* const stages = columns_ + of.rows * pitch_;
    auto* const barriers = reinterpret_cast<uint64_t*>(stages + of.warps * count_ * kChainStage);
    stages_ = stages + warp * count_ * kChainStage;
    full_ = barriers + warp * count_;
    columns_full_ = barriers + of.warps * count_;
    if (threadIdx.x == 0) {
      for (int i = 0; i <= of.warps * count_; ++i) barrier_init(barriers + i, 1);
      barrier_init_done();
    }
    __syncthreads();
  }

  // Begins to copy the weights. `row`: the weight's row that is the lane's, modulo 16.
  __device__ void begin(const T* row, int passes) {
    row_ = row;
    total_ = passes * steps();
    for (int step = 0; step < min(count_, total_); ++step) load(step);
  }

  // Copies x's rows row(0), row(1), …, in another order in each block, lest all of them read the same addresses at
  // once. Called by all threads; a barrier must come before the next call.
  template <class Row>
  __device__ void copy_columns(int rows, const Row& row) {
    if (threadIdx.x < 32) {
      const auto bytes = static_cast<uint32_t>(K_ * static_cast<int>(sizeof(T)));
      if (threadIdx.x == 0) barrier_arrive_and_expect(columns_full_, static_cast<uint32_t>(rows) * bytes);
      __syncwarp();
      if (static_cast<int>(threadIdx.x) < rows) {
        const int own = static_cast<int>((threadIdx.x + blockIdx.x) % static_cast<unsigned>(rows));
        bulk_load(columns_ + own * pitch_, row(own), bytes, columns_full_);
      }
    }
    barrier_wait(columns_full_, passes_++ & 1);
  }

  // Adds up the products over K and stores them as few_rows.cuh's add_up() does. Columns without a row of x are
  // anything.
  template <int kTiles>
  __device__ void add_up(WarpSums<kTiles, 1>& to) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const T* const x = columns_ + lane % 8 * pitch_ + lane / 8 * 8;
    float sums[kTiles][4] = {};
    for (int step = 0; step < steps(); ++step, ++next_) {
      barrier_wait(full_ + next_ % count_, static_cast<uint32_t>(next_ / count_) & 1);
      const T* const w = stages_ + next_ % count_ * kChainStage + lane % 16 * kChainPitch + lane / 16 * 8;
      const T* const columns = x + step * kChainStep;
      const int left = K_ - step * kChainStep;
      if (left >= kChainStep)
        multiply(sums, w, columns, kChainStep);
      else
        multiply(sums, w, columns, left);
      __syncwarp();
      if (next_ + count_ < total_) load(next_ + count_);
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      float* const own = to.at[0][tile] + lane % 4 * 2 * kPitch + lane / 4;
      own[0] = sums[tile][0];
      own[kPitch] = sums[tile][1];
      own[8] = sums[tile][2];
      own[kPitch + 8] = sums[tile][3];
    }
    __syncwarp();
  }

 private:
  __device__ __forceinline__ int steps() const {
    return (K_ + kChainStep - 1) / kChainStep;
  }
  __device__ __forceinline__ void load(int step) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, k = step % steps() * kChainStep, stage = step % count_;
    const auto bytes = static_cast<uint32_t>(min(kChainStep, K_ - k) * static_cast<int>(sizeof(T)));
    if (lane == 0) barrier_arrive_and_expect(full_ + stage, kWeightRows * bytes);
    __syncwarp();
    if (lane < kWeightRows)
      bulk_load(stages_ + stage * kChainStage + lane * kChainPitch, row_ + k, bytes, full_ + stage);
  }
  // Both operands of kChainUnit of K.
  template <int kTiles>
  struct Unit {
    uint4 weights[2], columns[kTiles];

    __device__ __forceinline__ void load(const T* w, const T* x, int pitch) {
      weights[0] = load_matrices(w);
      weights[1] = load_matrices(w + 16);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) columns[tile] = load_matrices(x + tile * kColumns * pitch);
    }
  };
  // The next operands are loaded while a product waits for the one before it.
  template <int kTiles>
  __device__ __forceinline__ void multiply(float (&sums)[kTiles][4], const T* w, const T* x, int length) const {
    Unit<kTiles> next;
    next.load(w, x, pitch_);
#pragma unroll
    for (int k = 0; k < length; k += kChainUnit) {
      const Unit<kTiles> now = next;
      if (k + kChainUnit < length) next.load(w + k + kChainUnit, x + k + kChainUnit, pitch_);
      const auto& [low, high] = now.weights;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const uint4& b = now.columns[tile];
        multiply_add<T>(sums[tile], FragmentA{{low.x, low.y, low.z, low.w}}, FragmentB{{b.x, b.y}});
        multiply_add<T>(sums[tile], FragmentA{{high.x, high.y, high.z, high.w}}, FragmentB{{b.z, b.w}});
      }
    }
  }

  T *columns_, *stages_;
  uint64_t *full_, *columns_full_;
  const T* row_ = nullptr;
  int count_, K_, pitch_, total_ = 0, next_ = 0;
  uint32_t passes_ = 0;
};

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

template <class Call>
void launch_chain(Stream& stream, void (*kernel)(Call, ChainMemory), const dim3& blocks, const Call& call,
                  const ChainMemory& memory) {
  witan::cuda::check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(memory.bytes())),
      "asking for shared memory");
  launch_early(stream, kernel, blocks, memory.warps * 32, memory.bytes(), call, memory);
}

// Below so many stages a warp would wait for each copy.
inline bool is_ring(const ChainMemory& memory) {
  return memory.stages >= std::min(2, (memory.K + kChainStep - 1) / kChainStep);
}

// Divides the memory of `blocks` blocks that share a multiprocessor or, where stages would be too few, of fewer blocks
// or warps. `apart`: the bytes that each block needs besides.
inline void fit(Stream& stream, ChainMemory& memory, int blocks, int64_t apart) {
  constexpr int64_t kReserved = 1024;  // bytes per block, by CUDA
  const int64_t most = witan::cuda::properties(stream.device().index).shared_per_block;
  memory.fit((most + kReserved) / blocks - kReserved - apart);
  if (is_ring(memory)) return;
  if (blocks > 1) return fit(stream, memory, blocks - 1, apart);
  if (memory.warps == 1) return;
  memory.warps /= 2;
  fit(stream, memory, 1, apart);
}

}  // namespace witan::kernels::cuda::few
