// The forward's walk. Of a chunk, with the state S before it:
//   R = β (V - e^γ K S),  U = (1 + A)^-1 R,  O = e^γ Q S + P U,  S <- e^γ[L-1] S + Kᵀ (e^(γ[L-1] - γ) U)
#include "witan/kernels/linear_attention/cuda/delta_walk.cuh"

namespace witan::kernels::cuda {
namespace {

template <int kColumns>
struct WalkShared {
  static constexpr int kRows = kTileL * kWalkSlice;
  static constexpr int64_t bytes(bool whole) {
    return 2 * WalkStage<kColumns>::bytes(whole) +
           (kColumns * kWalkSlice + 3 * kRows) * static_cast<int64_t>(sizeof(Bf16));
  }
  SliceRows state, residuals, solution, weighted;
  unsigned char* stages;
  __device__ explicit WalkShared(unsigned char* memory)
      : state{reinterpret_cast<Bf16*>(memory)},
        residuals{state.at + kColumns * kWalkSlice},
        solution{residuals.at + kRows},
        weighted{solution.at + kRows},
        stages(reinterpret_cast<unsigned char*>(weighted.at + kRows)) {}
};

template <int kColumns, bool kStates>
class DeltaWalk {
 public:
  using Warp = WalkWarp<kColumns>;
  static constexpr bool kOutputs = !kStates;

  __device__ DeltaWalk(const DeltaTensors& in, unsigned char* memory)
      : in_(in),
        at_(memory),
        slice_(static_cast<int>(blockIdx.x) * kWalkSlice),
        head_(static_cast<int>(blockIdx.y)),
        b_(blockIdx.z) {}

  __device__ void run(Bf16* o, float* last) {
    ChunkWalk chunks(in_.chunks + b_ * (in_.S + 2), false);
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
      const WalkStage<kColumns> stage = stage_of(n % 2);
      if (kStates && !span.begins)
        store_state<kColumns>(in_.states + in_.state(b_, span.begin, head_), at_.state, in_, slice_);
      chunk(stage, span, decay, o);
      if (n + 1 == chunks.count()) break;
      if (span.ends) state_ = {};
      write_state<kColumns>(at_.state, state_, warp_);
    }
    if (last != nullptr) write_last(last);
  }

 private:
  __device__ int64_t token(const DeltaSpan& span) const { return b_ * in_.S + span.begin; }
  __device__ WalkStage<kColumns> stage_of(int n) const {
    return {at_.stages + n * WalkStage<kColumns>::bytes(kOutputs), kOutputs};
  }
  __device__ float decay_of(const DeltaSpan& span) const { return in_.decays[token(span) * in_.H + head_]; }
  __device__ void copy(const DeltaSpan& span, int n) const {
    const int64_t first = token(span);
    stage_of(n).copy(in_, first, span.L, head_, in_.value(first, head_) + slice_, in_.channels, in_.dv - slice_);
  }

  __device__ void chunk(const WalkStage<kColumns>& stage, const DeltaSpan& span, float decay, Bf16* o) {
    WarpSums<1> held, outputs;
#pragma unroll
    for (int d = 0; d < kColumns; d += 16) {
      const FragmentPair state = right_operand(at_.state, d, warp_.channel);
      held.add(0, left_operand(stage.k, warp_.token, d), state);
      if constexpr (kOutputs) outputs.add(0, left_operand(stage.q, warp_.token, d), state);
    }
    held.each([&](int row, int column, float first, float second) {
      const int i = warp_.token + row, e = warp_.channel + column;
      const DeltaScales& scales = stage.scales[i];
      const float2 value = stage.rows.values(i, e);
      at_.residuals.set(i, e, scales.beta * (value.x - scales.key_grown * first),
                        scales.beta * (value.y - scales.key_grown * second));
    });
    __syncthreads();
    solve(stage, span);
    __syncthreads();
    state_.scale(decay, decay);
#pragma unroll
    for (int j = 0; j < kTileL; j += 16) {
      const FragmentA key = left_transposed(stage.k, j, warp_.state_row);
#pragma unroll
      for (int pair = 0; pair < Warp::kStatePairs; ++pair)
        state_.add(pair, key, right_operand(at_.weighted, j, warp_.state_channel + 16 * pair));
    }
    if constexpr (kOutputs) {
      const int row = warp_.token + delta_lane() / 4;
      outputs.scale(stage.scales[row].query_grown, stage.scales[row + 8].query_grown);
#pragma unroll
      for (int j = 0; j < kTileL; j += 16)
        if (j <= warp_.token)
          outputs.add(0, left_operand(stage.links, warp_.token, j), right_operand(at_.solution, j, warp_.channel));
      write_rows(o, outputs, span);
    }
  }
  __device__ void solve(const WalkStage<kColumns>& stage, const DeltaSpan& span) {
    WarpSums<1> solution;
#pragma unroll
    for (int j = 0; j < kTileL; j += 16)
      if (j <= warp_.token)
        solution.add(0, left_operand(stage.inverse, warp_.token, j), right_operand(at_.residuals, j, warp_.channel));
    solution.each([&](int row, int column, float first, float second) {
      const int i = warp_.token + row, e = warp_.channel + column;
      const float left = stage.scales[i].key_left;
      at_.weighted.set(i, e, left * first, left * second);
      if constexpr (kOutputs) at_.solution.set(i, e, first, second);
    });
    if constexpr (kStates) write_rows(in_.u, solution, span);
  }
  // Rows [B, S, H, dv].
  __device__ void write_rows(Bf16* to, WarpSums<1>& sums, const DeltaSpan& span) const {
    sums.each([&](int row, int column, float first, float second) {
      const int i = warp_.token + row, e = slice_ + warp_.channel + column;
      if (i < span.L && e < in_.dv)
        *reinterpret_cast<uint32_t*>(to + ((token(span) + i) * in_.H + head_) * in_.dv + e) =
            pack_pair<Bf16>(first, second);
    });
  }
  __device__ void write_last(float* last) {
    float* const to = last + (b_ * in_.H + head_) * in_.dk * static_cast<int64_t>(in_.dv);
    state_.each([&](int row, int column, float first, float second) {
      const int d = warp_.state_row + row, e = slice_ + warp_.state_channel + column;
      if (d < in_.dk && e < in_.dv) {
        to[static_cast<int64_t>(d) * in_.dv + e] = first;
        to[static_cast<int64_t>(d) * in_.dv + e + 1] = second;
      }
    });
  }

  const DeltaTensors& in_;
  WalkShared<kColumns> at_;
  int slice_, head_;
  int64_t b_;
  Warp warp_;
  WarpSums<Warp::kStatePairs> state_;
};

template <int kColumns, bool kStates>
__global__ void __launch_bounds__(kTileThreads) delta_walk_kernel(DeltaTensors in, Bf16* o, float* last) {
  extern __shared__ unsigned char memory[];
  DeltaWalk<kColumns, kStates>(in, memory).run(o, last);
}

template <bool kStates>
void launch_walk(Stream& stream, Bf16* o, float* last, const DeltaInputs& in, const DeltaMemory& memory) {
  const DeltaTensors tensors = delta_tensors(in, memory);
  const dim3 grid(static_cast<unsigned>((tensors.dv + kWalkSlice - 1) / kWalkSlice), static_cast<unsigned>(tensors.H),
                  static_cast<unsigned>(in.qkv.size(0)));
  dispatch_key_tile(tensors.dk, [&]<int kColumns>() {
    constexpr int64_t kBytes = WalkShared<kColumns>::bytes(!kStates);
    take_shared_memory(stream, "gated_delta", delta_walk_kernel<kColumns, kStates>, kBytes);
    delta_walk_kernel<kColumns, kStates><<<grid, kTileThreads, kBytes, native(stream)>>>(tensors, o, last);
  });
}

}  // namespace

void delta_walk(Stream& stream, const Tensor& o, const Tensor& last, const DeltaInputs& in, const DeltaMemory& memory) {
  launch_walk<false>(stream, ptr<Bf16>(o), ptr<float>(last), in, memory);
}

void delta_walk_states(Stream& stream, const DeltaInputs& in, const DeltaMemory& memory) {
  launch_walk<true>(stream, nullptr, nullptr, in, memory);
}

}  // namespace witan::kernels::cuda
