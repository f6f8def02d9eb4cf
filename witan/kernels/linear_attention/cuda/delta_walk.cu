// The forward's walk. Of a chunk, with the state S before it:
//   R = β (V - e^γ K S),  U = (1 + A)^-1 R,  O = e^γ Q S + P U,  S <- e^γ[L-1] S + Kᵀ (e^(γ[L-1] - γ) U)
// all of them transposed.
#include "witan/kernels/linear_attention/cuda/delta_walk.cuh"

namespace witan::kernels::cuda {
namespace {

template <int kColumns, bool kStates>
class DeltaWalk {
 public:
  static constexpr bool kOutputs = !kStates;

  __device__ __forceinline__ DeltaWalk(const DeltaTensors& in, const WalkPlace& place)
      : in_(in), place_(place), channel_(static_cast<int>(threadIdx.x) / 32 * 16) {}

  __device__ __forceinline__ void chunk(const WalkStage<kColumns>& stage, const DeltaSpan& span, Bf16* o) {
    if (span.begins)
      state_ = {};
    else if (kStates)
      write_state<kColumns>(
          in_.states + in_.state(place_.b, span.begin, place_.head) + static_cast<int64_t>(first_channel()) * in_.dk,
          state_, in_.dk, in_.dv - first_channel());
    TokenSums held, outputs;
#pragma unroll
    for (int d = 0; d < kColumns / 16; ++d) {
      const FragmentA state = state_.operand(d);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        held.add(i, state, right_transposed(stage.k, 16 * i, 16 * d));
        if constexpr (kOutputs) outputs.add(i, state, right_transposed(stage.q, 16 * i, 16 * d));
      }
    }
    FragmentA residuals[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) residuals[j] = residual(stage, held, j);
    TokenSums solution;
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int i = j; i < 4; ++i) solution.add(i, residuals[j], right_transposed(stage.inverse, 16 * i, 16 * j));
    const float decay = *stage.decay;
    state_.scale(decay, decay);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const FragmentA weighted = solution.operand(j, [&](int n) {
        return of_tokens(stage.scales, 2 * j + n, [](const DeltaScales& x) { return x.key_left; });
      });
#pragma unroll
      for (int d = 0; d < kColumns / 16; ++d) state_.add(d, weighted, right_operand(stage.k, 16 * j, 16 * d));
    }
    if constexpr (kOutputs) {
      scale_outputs(stage, outputs);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const FragmentA written = solution.operand(j);
#pragma unroll
        for (int i = j; i < 4; ++i) outputs.add(i, written, right_transposed(stage.links, 16 * i, 16 * j));
      }
      write(o, outputs, span);
    } else {
      write(in_.u, solution, span);
    }
  }

  // [dk, dv] of the head, in float32
  __device__ __forceinline__ void write_last(float* last) {
    float* const to = last + (place_.b * in_.H + place_.head) * in_.dk * static_cast<int64_t>(in_.dv);
    state_.each([&](int row, int d, float first, float second) {
      const int e = first_channel() + row;
      if (d < in_.dk && e < in_.dv) {
        to[static_cast<int64_t>(d) * in_.dv + e] = first;
        to[static_cast<int64_t>(d + 1) * in_.dv + e] = second;
      }
    });
  }

 private:
  __device__ __forceinline__ int first_channel() const {
    return place_.slice + channel_;
  }
  // R of 16 tokens.
  __device__ __forceinline__ FragmentA residual(const WalkStage<kColumns>& stage, const TokenSums& held, int j) const {
    FragmentA out = left_transposed(stage.rows, 16 * j, channel_);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float2 grown = of_tokens(stage.scales, 2 * j + n, [](const DeltaScales& x) { return x.key_grown; });
      const float2 beta = of_tokens(stage.scales, 2 * j + n, [](const DeltaScales& x) { return x.beta; });
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 value = unpack_pair<Bf16>(out.at[2 * n + half]);
        const float* const sums = held.at[2 * j + n] + 2 * half;
        out.at[2 * n + half] =
            pack_pair<Bf16>(beta.x * (value.x - grown.x * sums[0]), beta.y * (value.y - grown.y * sums[1]));
      }
    }
    return out;
  }
  __device__ __forceinline__ void scale_outputs(const WalkStage<kColumns>& stage, TokenSums& outputs) const {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 grown = of_tokens(stage.scales, n, [](const DeltaScales& x) { return x.query_grown; });
      outputs.at[n][0] *= grown.x, outputs.at[n][1] *= grown.y;
      outputs.at[n][2] *= grown.x, outputs.at[n][3] *= grown.y;
    }
  }
  // Rows [B, S, H, dv].
  __device__ __forceinline__ void write(Bf16* to, const TokenSums& sums, const DeltaSpan& span) const {
    const int64_t stride = static_cast<int64_t>(in_.H) * in_.dv;
    write_tokens(to + place_.token(in_, span) * stride + place_.head * in_.dv + first_channel(), stride, sums, span.L,
                 in_.dv - first_channel());
  }

  const DeltaTensors& in_;
  const WalkPlace& place_;
  int channel_;
  WarpSums<kColumns / 16> state_;
};

template <int kColumns, bool kStates>
__global__ void __launch_bounds__(kWalkThreads) delta_walk_kernel(DeltaTensors in, Bf16* o, float* last) {
  extern __shared__ unsigned char memory[];
  const WalkPlace place(in);
  DeltaWalk<kColumns, kStates> walk(in, place);
  walk_chunks<kColumns, !kStates>(
      in.chunks + place.b * (in.S + 2), false, memory,
      [&](const WalkStage<kColumns>& stage, const DeltaSpan& span) {
        const int64_t first = place.token(in, span);
        stage.copy(in, first, span.L, place.head, place.group, in.value(first, place.head) + place.slice, in.channels,
                   in.dv - place.slice);
      },
      [&](const WalkStage<kColumns>& stage, const DeltaSpan& span) { walk.chunk(stage, span, o); });
  if (last != nullptr && threadIdx.x < kWalkers) walk.write_last(last);
}

template <bool kStates>
void launch_walk(Stream& stream, Bf16* o, float* last, const DeltaInputs& in, const DeltaMemory& memory) {
  const DeltaTensors tensors = delta_tensors(in, memory);
  const dim3 grid(static_cast<unsigned>((tensors.dv + kWalkSlice - 1) / kWalkSlice), static_cast<unsigned>(tensors.H),
                  static_cast<unsigned>(in.qkv.size(0)));
  dispatch_key_tile(tensors.dk, [&]<int kColumns>() {
    constexpr int64_t kBytes = 2 * WalkStage<kColumns>::bytes(!kStates);
    take_shared_memory(stream, "gated_delta", delta_walk_kernel<kColumns, kStates>, kBytes);
    delta_walk_kernel<kColumns, kStates><<<grid, kWalkThreads, kBytes, native(stream)>>>(tensors, o, last);
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
