// The backward's walk, from a row's last chunk to its first. Of a chunk, with the gradient dS of the state after it and
// D = (1 + A)^-T dU, the gradient of V is β D:
//   dU = e^(γ[L-1] - γ) K dS + Pᵀ dO,  dS <- e^γ[L-1] dS + Qᵀ (e^γ dO) - Kᵀ (e^γ β D)
#include "witan/kernels/linear_attention/cuda/delta_walk.cuh"

namespace witan::kernels::cuda {
namespace {

template <int kColumns>
struct WalkBackShared {
  static constexpr int kRows = kTileL * kWalkSlice;
  static constexpr int64_t kBytes =
      2 * WalkStage<kColumns>::bytes(true) + (kColumns * kWalkSlice + 3 * kRows) * static_cast<int64_t>(sizeof(Bf16));
  SliceRows state, of_solution, of_keys, of_queries;
  unsigned char* stages;
  __device__ explicit WalkBackShared(unsigned char* memory)
      : state{reinterpret_cast<Bf16*>(memory)},
        of_solution{state.at + kColumns * kWalkSlice},
        of_keys{of_solution.at + kRows},
        of_queries{of_keys.at + kRows},
        stages(reinterpret_cast<unsigned char*>(of_queries.at + kRows)) {}
};

template <int kColumns>
class DeltaWalkBack {
 public:
  using Warp = WalkWarp<kColumns>;

  __device__ DeltaWalkBack(const DeltaTensors& in, const Bf16* d_o, Bf16* dqkv, unsigned char* memory)
      : in_(in),
        d_o_(d_o),
        dqkv_(dqkv),
        at_(memory),
        slice_(static_cast<int>(blockIdx.x) * kWalkSlice),
        head_(static_cast<int>(blockIdx.y)),
        b_(blockIdx.z) {}

  __device__ void run() {
    ChunkWalk chunks(in_.chunks + b_ * (in_.S + 2), true);
    write_state<kColumns>(at_.state, state_, warp_);
    DeltaSpan next = chunks.next();
    copy(next, 0);
    float next_decay = decay_of(next);
    for (int n = 0; n < chunks.count(); ++n) {
      const DeltaSpan span = next;
      const float decay = next_decay;
      wait_copies<0>();
      __syncthreads();
      if (n + 1 < chunks.count()) {
        next = chunks.next();
        copy(next, (n + 1) % 2);
        next_decay = decay_of(next);
      }
      if (!span.ends)
        store_state<kColumns>(in_.state_gradients + in_.state(b_, span.begin + span.L, head_), at_.state, in_, slice_);
      chunk(stage_of(n % 2), span, decay);
      if (span.begins) state_ = {};
      write_state<kColumns>(at_.state, state_, warp_);
    }
  }

 private:
  __device__ int64_t token(const DeltaSpan& span) const { return b_ * in_.S + span.begin; }
  __device__ WalkStage<kColumns> stage_of(int n) const {
    return {at_.stages + n * WalkStage<kColumns>::bytes(true), true};
  }
  __device__ float decay_of(const DeltaSpan& span) const { return in_.decays[token(span) * in_.H + head_]; }
  __device__ void copy(const DeltaSpan& span, int n) const {
    const int64_t first = token(span), stride = static_cast<int64_t>(in_.H) * in_.dv;
    stage_of(n).copy(in_, first, span.L, head_, d_o_ + first * stride + head_ * in_.dv + slice_, stride,
                     in_.dv - slice_);
  }

  __device__ void chunk(const WalkStage<kColumns>& stage, const DeltaSpan& span, float decay) {
    find_solution_gradient(stage);
    weigh_output_gradient(stage);
    __syncthreads();
    solve(stage, span);
    __syncthreads();
    state_.scale(decay, decay);
#pragma unroll
    for (int j = 0; j < kTileL; j += 16) {
      const FragmentA query = left_transposed(stage.q, j, warp_.state_row),
                      key = left_transposed(stage.k, j, warp_.state_row);
#pragma unroll
      for (int pair = 0; pair < Warp::kStatePairs; ++pair) {
        state_.add(pair, query, right_operand(at_.of_queries, j, warp_.state_channel + 16 * pair));
        state_.add(pair, key, right_operand(at_.of_keys, j, warp_.state_channel + 16 * pair));
      }
    }
  }
  __device__ void find_solution_gradient(const WalkStage<kColumns>& stage) {
    WarpSums<1> sums;
#pragma unroll
    for (int d = 0; d < kColumns; d += 16)
      sums.add(0, left_operand(stage.k, warp_.token, d), right_operand(at_.state, d, warp_.channel));
    const int row = warp_.token + delta_lane() / 4;
    sums.scale(stage.scales[row].key_left, stage.scales[row + 8].key_left);
#pragma unroll
    for (int i = 0; i < kTileL; i += 16)
      if (i >= warp_.token)
        sums.add(0, left_transposed(stage.links, i, warp_.token), right_operand(stage.rows, i, warp_.channel));
    sums.each([&](int i, int e, float first, float second) {
      at_.of_solution.set(warp_.token + i, warp_.channel + e, first, second);
    });
  }
  // e^γ dO, a unit of a row each thread.
  __device__ void weigh_output_gradient(const WalkStage<kColumns>& stage) {
    static_assert(kTileL * kWalkSlice == 8 * kTileThreads);
    const int row = static_cast<int>(threadIdx.x) / 4, unit = static_cast<int>(threadIdx.x) % 4;
    const float grown = stage.scales[row].query_grown;
    auto pack = load_pack<uint32_t, 4>(reinterpret_cast<const uint32_t*>(stage.rows.unit(row, unit)));
#pragma unroll
    for (uint32_t& pair : pack.at) {
      const float2 x = unpack_pair<Bf16>(pair);
      pair = pack_pair<Bf16>(grown * x.x, grown * x.y);
    }
    store_pack(reinterpret_cast<uint32_t*>(at_.of_queries.unit(row, unit)), pack);
  }
  // D of the slice, and what it gives V and the state.
  __device__ void solve(const WalkStage<kColumns>& stage, const DeltaSpan& span) {
    WarpSums<1> sums;
#pragma unroll
    for (int i = 0; i < kTileL; i += 16)
      if (i >= warp_.token)
        sums.add(0, left_transposed(stage.inverse, i, warp_.token), right_operand(at_.of_solution, i, warp_.channel));
    sums.each([&](int row, int column, float first, float second) {
      const int i = warp_.token + row, e = slice_ + warp_.channel + column;
      const DeltaScales& scales = stage.scales[i];
      const float back = -scales.key_grown * scales.beta;
      at_.of_keys.set(i, warp_.channel + column, back * first, back * second);
      if (i >= span.L || e >= in_.dv) return;
      const int64_t at = token(span) + i;
      *reinterpret_cast<uint32_t*>(in_.du + (at * in_.H + head_) * in_.dv + e) = pack_pair<Bf16>(first, second);
      *reinterpret_cast<uint32_t*>(dqkv_ + at * in_.channels + 2 * in_.key_channels + head_ * in_.dv + e) =
          pack_pair<Bf16>(scales.beta * first, scales.beta * second);
    });
  }

  const DeltaTensors& in_;
  const Bf16* d_o_;
  Bf16* dqkv_;
  WalkBackShared<kColumns> at_;
  int slice_, head_;
  int64_t b_;
  Warp warp_;
  WarpSums<Warp::kStatePairs> state_;
};

template <int kColumns>
__global__ void __launch_bounds__(kTileThreads) delta_walk_back_kernel(DeltaTensors in, const Bf16* d_o, Bf16* dqkv) {
  extern __shared__ unsigned char memory[];
  DeltaWalkBack<kColumns>(in, d_o, dqkv, memory).run();
}

}  // namespace

void delta_walk_back(Stream& stream, const DeltaGradients& to, const Tensor& d_o, const DeltaInputs& in) {
  delta_prepare(stream, in, to.memory);
  delta_walk_states(stream, in, to.memory);
  const DeltaTensors tensors = delta_tensors(in, to.memory);
  const dim3 grid(static_cast<unsigned>((tensors.dv + kWalkSlice - 1) / kWalkSlice), static_cast<unsigned>(tensors.H),
                  static_cast<unsigned>(in.qkv.size(0)));
  dispatch_key_tile(tensors.dk, [&]<int kColumns>() {
    constexpr int64_t kBytes = WalkBackShared<kColumns>::kBytes;
    take_shared_memory(stream, "gated_delta", delta_walk_back_kernel<kColumns>, kBytes);
    delta_walk_back_kernel<kColumns>
        <<<grid, kTileThreads, kBytes, native(stream)>>>(tensors, ptr<Bf16>(d_o), ptr<Bf16>(to.dqkv));
  });
  delta_key_gradients(stream, to, d_o, in);
}

}  // namespace witan::kernels::cuda
