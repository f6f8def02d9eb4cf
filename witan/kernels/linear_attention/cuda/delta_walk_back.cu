// The backward's walk, from a row's last chunk to its first. Of a chunk, with the gradient dS of the state after it and
// D = (1 + A)^-T dU, the gradient of V is β D:
//   dU = e^(γ[L-1] - γ) K dS + Pᵀ dO,  dS <- e^γ[L-1] dS + Qᵀ (e^γ dO) - Kᵀ (e^γ β D)
// all of them transposed.
#include "witan/kernels/linear_attention/cuda/delta_walk.cuh"

namespace witan::kernels::cuda {
namespace {

template <int kColumns, Decay kDecay>
class DeltaWalkBack {
 public:
  __device__ __forceinline__ DeltaWalkBack(const DeltaTensors& in, const WalkPlace& place, Bf16* dqkv)
      : in_(in), place_(place), dqkv_(dqkv), channel_(static_cast<int>(threadIdx.x) / 32 * 16) {}

  __device__ __forceinline__ void chunk(const WalkStage<kColumns, kDecay>& stage, const ChunkSpan& span) {
    if (span.ends)
      state_ = {};
    else
      write_state<kColumns>(in_.state_gradients + in_.state(place_.b, span.begin + span.L, place_.head) +
                                static_cast<int64_t>(first_channel()) * in_.dk,
                            state_, in_.dk, in_.dv - first_channel());
    FragmentA d_o[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) d_o[i] = left_transposed(stage.rows, 16 * i, channel_);
    TokenSums sums = solve(stage, d_o);
    write(in_.du, static_cast<int64_t>(in_.H) * in_.dv, place_.head * in_.dv, sums, span);
    scale_tokens(sums, stage.scales, [](const DeltaScales& x) { return x.beta; });
    write(dqkv_, in_.channels, 2 * in_.key_channels + place_.head * in_.dv, sums, span);
    stage.let_decay(state_);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const FragmentA query = weighted(stage.scales, d_o[i], i), key = sums.operand(i, [&](int n) {
        return of_tokens(stage.scales, 2 * i + n, [](const DeltaScales& x) { return -x.key_grown; });
      });
#pragma unroll
      for (int d = 0; d < kColumns / 16; ++d) {
        state_.add(d, query, right_operand(stage.q, 16 * i, 16 * d));
        state_.add(d, key, right_operand(stage.k, 16 * i, 16 * d));
      }
    }
  }

 private:
  __device__ __forceinline__ int first_channel() const {
    return place_.slice + channel_;
  }
  // D, from the gradient of the output.
  __device__ __forceinline__ TokenSums solve(const WalkStage<kColumns, kDecay>& stage,
                                             const FragmentA (&d_o)[4]) const {
    TokenSums of_solution, out;
#pragma unroll
    for (int d = 0; d < kColumns / 16; ++d) {
      const FragmentA state = state_.operand(d);
#pragma unroll
      for (int i = 0; i < 4; ++i) of_solution.add(i, state, right_transposed(stage.k_left, 16 * i, 16 * d));
    }
    scale_tokens(of_solution, stage.scales, [](const DeltaScales& x) { return x.key_left; });
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j <= i; ++j) of_solution.add(j, d_o[i], right_operand(stage.links, 16 * i, 16 * j));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const FragmentA left = of_solution.operand(i);
#pragma unroll
      for (int j = 0; j <= i; ++j) out.add(j, left, right_operand(stage.inverse, 16 * i, 16 * j));
    }
    return out;
  }
  // e^γ rq dO of 16 tokens.
  __device__ __forceinline__ static FragmentA weighted(const DeltaScales* scales, const FragmentA& d_o, int i) {
    FragmentA out;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float2 grown = of_tokens(scales, 2 * i + n, [](const DeltaScales& x) { return x.query_grown; });
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 x = unpack_pair<Bf16>(d_o.at[2 * n + half]);
        out.at[2 * n + half] = pack_pair<Bf16>(grown.x * x.x, grown.y * x.y);
      }
    }
    return out;
  }
  // To the head's channels, from `channel` of a row on.
  __device__ __forceinline__ void write(Bf16* to, int64_t stride, int64_t channel, const TokenSums& sums,
                                        const ChunkSpan& span) const {
    write_tokens(to + place_.token(in_, span) * stride + channel + first_channel(), stride, sums, span.L,
                 in_.dv - first_channel());
  }

  const DeltaTensors& in_;
  const WalkPlace& place_;
  Bf16* dqkv_;
  int channel_;
  WarpSums<kColumns / 16> state_;
};

template <int kColumns, Decay kDecay>
__global__ void __launch_bounds__(kWalkThreads) delta_walk_back_kernel(DeltaTensors in, const Bf16* d_o, Bf16* dqkv) {
  extern __shared__ unsigned char memory[];
  const WalkPlace place(in);
  DeltaWalkBack<kColumns, kDecay> walk(in, place, dqkv);
  walk_chunks<WalkStage<kColumns, kDecay>, true>(
      in.chunks + place.b * (in.S + 2), true, memory,
      [&](const WalkStage<kColumns, kDecay>& stage, const ChunkSpan& span) {
        const int64_t first = place.token(in, span), stride = static_cast<int64_t>(in.H) * in.dv;
        stage.copy(in, place, span, d_o + first * stride + place.head * in.dv + place.slice, stride);
      },
      [&](const WalkStage<kColumns, kDecay>& stage, const ChunkSpan& span) { walk.chunk(stage, span); },
      [](const WalkStage<kColumns, kDecay>&, const ChunkSpan&) {});
}

}  // namespace

void delta_walk_back(Stream& stream, const DeltaGradients& to, const Tensor& d_o, const DeltaInputs& in) {
  delta_prepare(stream, in, to.memory);
  delta_walk_states(stream, in, to.memory);
  const DeltaTensors tensors = delta_tensors(in, to.memory);
  const dim3 grid(static_cast<unsigned>((tensors.dv + kWalkSlice - 1) / kWalkSlice), static_cast<unsigned>(tensors.H),
                  static_cast<unsigned>(in.qkv.size(0)));
  dispatch_walk(in, [&]<int kColumns, Decay kDecay>() {
    constexpr int64_t kBytes = WalkStage<kColumns, kDecay>::bytes(true);
    take_shared_memory(stream, "gated_delta", delta_walk_back_kernel<kColumns, kDecay>, kBytes);
    delta_walk_back_kernel<kColumns, kDecay>
        <<<grid, kWalkThreads, kBytes, native(stream)>>>(tensors, ptr<Bf16>(d_o), ptr<Bf16>(to.dqkv));
  });
  if (in.decay() == Decay::of_channels) return delta_channel_gradients(stream, to, d_o, in);
  delta_key_gradients(stream, to, d_o, in);
}

}  // namespace witan::kernels::cuda
