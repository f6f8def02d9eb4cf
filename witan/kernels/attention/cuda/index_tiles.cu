// Scores of the lightning indexer on tensor cores. A block has 256 keys of a row, a warp 32 of them, which stay in
// registers as right operands while the queries of one token after another pass through shared memory, 64 heads at a
// time. A score adds up its heads in their order, whatever the other keys and tokens.
#include "witan/kernels/attention/cuda/index_call.cuh"
#include "witan/kernels/common/cuda/tensor_tiles.cuh"

namespace witan::kernels::cuda {
namespace {

constexpr int kScoreThreads = 256, kWarpKeys = 32, kBlockKeys = kScoreThreads / 32 * kWarpKeys;
constexpr int kBlockTokens = 64, kGroupHeads = 64;

template <class T, int kColumns>
class IndexScores {
 public:
  __device__ __forceinline__ IndexScores(float* scores, const IndexCall<T>& call, unsigned char* memory)
      : scores_(scores),
        call_(call),
        memory_(memory),
        begin_(static_cast<int>(blockIdx.x) * kBlockKeys),
        key_(begin_ + own_warp() * kWarpKeys),
        end_(min((static_cast<int>(blockIdx.y) + 1) * kBlockTokens, call.tokens)),
        groups_((call.heads + kGroupHeads - 1) / kGroupHeads) {}

  __device__ __forceinline__ void run() {
    int t = next(static_cast<int>(blockIdx.y) * kBlockTokens), group = 0, turn = 0;
    if (t >= end_) return;
    float weight = copy(t, 0, 0);
    keep(weight, 0);
    while (t < end_) {
      wait_copies<0>();
      __syncthreads();  // all have used the previous queries
      const bool last = group + 1 == groups_;
      const int following = last ? next(t + 1) : t, following_group = last ? 0 : group + 1;
      if (following < end_) weight = copy(following, following_group, turn ^ 1);
      if (group == 0) begin_token(t);
      if (key_ <= last_) add_heads(group, turn);
      if (last) write(t);
      keep(weight, turn ^ 1);
      t = following, group = following_group, turn ^= 1;
    }
  }

 private:
  __device__ __forceinline__ SharedTile<kColumns, T> tile(int turn) const {
    return {reinterpret_cast<T*>(memory_) + turn * kGroupHeads * kColumns};
  }
  __device__ __forceinline__ float* weights(int turn) const {
    return reinterpret_cast<float*>(memory_ + 2 * kGroupHeads * kColumns * sizeof(T)) + turn * kGroupHeads;
  }
  // The first token from t on that sees a key of the block by its position; hides the keys from those before it.
  __device__ __forceinline__ int next(int t) const {
    for (; t < end_ && begin_ > call_.view.last(t); ++t) {
      const int j = begin_ + static_cast<int>(threadIdx.x);
      if (j < call_.view.slots) scores_[int64_t{t} * call_.view.slots + j] = -INFINITY;
    }
    return t;
  }
  // Returns the weight of the thread's head, for keep().
  __device__ __forceinline__ float copy(int t, int group, int turn) const {
    const int head = group * kGroupHeads, own = head + static_cast<int>(threadIdx.x);
    copy_rows<kGroupHeads, kScoreThreads>(tile(turn), call_.query(t, head), call_.d, call_.heads - head, call_.d);
    commit_copies();
    return threadIdx.x < kGroupHeads && own < call_.heads ? convert<float>(call_.w[int64_t{t} * call_.heads + own])
                                                          : 0.0f;
  }
  __device__ __forceinline__ void keep(float weight, int turn) const {
    if (threadIdx.x < kGroupHeads) weights(turn)[threadIdx.x] = weight;
  }

  __device__ __forceinline__ void begin_token(int t) {
    row_ = call_.view.row(t);
    last_ = call_.view.last(t);
#pragma unroll
    for (auto& sum : sums_) sum = 0;
    if (row_ != held_) load_keys();
    held_ = row_;
  }
  // The transpose of the warp's keys, as right operands.
  __device__ __forceinline__ void load_keys() {
    const int column = warp_lane() % 4 * 2;
#pragma unroll
    for (int n = 0; n < kWarpKeys / 8; ++n) {
      const int j = key_ + 8 * n + warp_lane() / 4;
      const T* const key = call_.key(row_, min(j, call_.view.slots - 1));
#pragma unroll
      for (int d = 0; d < kColumns / 16; ++d)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int c = 16 * d + 8 * half + column;
          keys_[d][n / 2].at[n % 2].at[half] = c < call_.d ? *reinterpret_cast<const uint32_t*>(key + c) : 0;
        }
    }
  }
  __device__ __forceinline__ void add_heads(int group, int turn) {
    const SharedTile<kColumns, T> queries = tile(turn);
    for (int h = 0; h < min(kGroupHeads, call_.heads - group * kGroupHeads); h += 16) {
      WarpSums<kWarpKeys / 16, T> dots;
#pragma unroll
      for (int d = 0; d < kColumns / 16; ++d) {
        const FragmentA query = left_operand(queries, h, 16 * d);
#pragma unroll
        for (int pair = 0; pair < kWarpKeys / 16; ++pair) dots.add(pair, query, keys_[d][pair]);
      }
      const float upper = weights(turn)[h + warp_lane() / 4], lower = weights(turn)[h + warp_lane() / 4 + 8];
#pragma unroll
      for (int i = 0; i < kWarpKeys / 4; ++i) {
        const float* const of = dots.at[i / 2] + i % 2;
        sums_[i] += upper * fmaxf(of[0], 0.0f) + lower * fmaxf(of[2], 0.0f);
      }
    }
  }
  // Adds up the lanes' heads. A lane then writes two neighbouring keys.
  __device__ __forceinline__ void write(int t) const {
    const int own = warp_lane() / 4;
    float two[2] = {};
#pragma unroll
    for (int i = 0; i < kWarpKeys / 4; ++i) {
      float sum = sums_[i];
#pragma unroll
      for (int apart = 4; apart < 32; apart *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, apart);
      if (own == i / 2) two[i % 2] = sum;
    }
    if (own >= kWarpKeys / 8) return;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int j = key_ + 8 * own + warp_lane() % 4 * 2 + c;
      if (j < call_.view.slots)
        scores_[int64_t{t} * call_.view.slots + j] = call_.view.sees(row_, last_, j) ? call_.scale * two[c] : -INFINITY;
    }
  }

  float* scores_;
  const IndexCall<T>& call_;
  unsigned char* memory_;
  int begin_, key_, end_, groups_;  // the block's first key and the warp's, the end of the block's tokens
  int last_ = 0;
  int64_t row_ = 0, held_ = -1;
  FragmentPair keys_[kColumns / 16][kWarpKeys / 16];
  float sums_[kWarpKeys / 4];  // over heads, of keys 8 (i / 2) + i % 2 + lane % 4 * 2
};

template <class T, int kColumns>
__global__ void __launch_bounds__(kScoreThreads, 2) index_scores_tile_kernel(float* scores, const IndexCall<T> call) {
  extern __shared__ __align__(16) unsigned char memory[];
  IndexScores<T, kColumns> block(scores, call, memory);
  block.run();
}

}  // namespace

void index_scores_by_tiles(Stream& stream, const Tensor& scores, const IndexInputs& in) {
  dispatch_half(in.q.dtype(), [&]<class T>() {
    const IndexCall<T> call(in);
    const dim3 grid(static_cast<unsigned>((call.view.slots + kBlockKeys - 1) / kBlockKeys),
                    static_cast<unsigned>((call.tokens + kBlockTokens - 1) / kBlockTokens));
    const auto launch = [&]<int kColumns>() {
      constexpr int kBytes = 2 * kGroupHeads * (kColumns * 2 + 4);
      index_scores_tile_kernel<T, kColumns><<<grid, kScoreThreads, kBytes, native(stream)>>>(ptr<float>(scores), call);
    };
    if (call.d <= 64)
      launch.template operator()<64>();
    else
      launch.template operator()<128>();
  });
}

}  // namespace witan::kernels::cuda
