// The forward's walk. Of a chunk, with the state S before it:
//   R = β (V - e^γ K S),  U = (1 + A)^-1 R,  O = e^γ Q S + P U,  S <- e^γ[L-1] S + Kᵀ (e^(γ[L-1] - γ) U)
// all of them transposed.
#include "witan/kernels/linear_attention/cuda/delta_walk.cuh"

namespace witan::kernels::cuda {
namespace {

template <int kColumns, Decay kDecay>
class DeltaWalker {
 public:
  __device__ __forceinline__ DeltaWalker(const DeltaTensors& in, const WalkPlace& place, const float* first)
      : in_(in), place_(place), first_(first), warp_(static_cast<int>(threadIdx.x) / 32) {}

  __device__ __forceinline__ void chunk(const WalkStage<kColumns, kDecay>& stage, const ChunkSpan& span) {
    using Operands = WalkOperands<kColumns>;
    Operands& left = stage.operands[warp_];
    if (span.begins) begin(span);
    TokenSums held;
#pragma unroll
    for (int d = 0; d < kColumns / 16; ++d) {
      const FragmentA state = state_.operand(d);
      Operands::set(left.state[d], state);
#pragma unroll
      for (int i = 0; i < 4; ++i) held.add(i, state, right_transposed(stage.k, 16 * i, 16 * d));
    }
    FragmentA residuals[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) residuals[j] = residual(stage, held, j);
    TokenSums solution;
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int i = j; i < 4; ++i) solution.add(i, residuals[j], right_transposed(stage.inverse, 16 * i, 16 * j));
    stage.let_decay(state_);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      Operands::set(left.solution[j], solution.operand(j));
      const FragmentA weighted = solution.operand(j, [&](int n) {
        return of_tokens(stage.scales, 2 * j + n, [](const DeltaScales& x) { return x.key_left; });
      });
#pragma unroll
      for (int d = 0; d < kColumns / 16; ++d) state_.add(d, weighted, right_operand(stage.k_left, 16 * j, 16 * d));
    }
  }

  // The state before a document: that of `first` [B, H, dk, dv] for a row's first one, if it is there, else 0.
  __device__ __forceinline__ void begin(const ChunkSpan& span) {
    state_ = {};
    if (first_ == nullptr || span.begin != 0) return;
    const float* const from = first_ + (place_.b * in_.H + place_.head) * in_.dk * static_cast<int64_t>(in_.dv);
    state_.fill([&](int row, int d) {
      const int e = first_channel() + row;
      return d < in_.dk && e < in_.dv ? from[static_cast<int64_t>(d) * in_.dv + e] : 0.0f;
    });
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
    return place_.slice + 16 * warp_;
  }
  // R of 16 tokens.
  __device__ __forceinline__ FragmentA residual(const WalkStage<kColumns, kDecay>& stage, const TokenSums& held,
                                                int j) const {
    FragmentA out = left_transposed(stage.rows, 16 * j, 16 * warp_);
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
  const DeltaTensors& in_;
  const WalkPlace& place_;
  const float* first_;
  int warp_;
  WarpSums<kColumns / 16> state_;
};

// O of a chunk, or with kStates instead the state before it and U, from what a walker left.
template <int kColumns, Decay kDecay, bool kStates>
__device__ __forceinline__ void finish_chunk(const DeltaTensors& in, const WalkPlace& place,
                                             const WalkStage<kColumns, kDecay>& stage, const ChunkSpan& span, Bf16* o) {
  using Operands = WalkOperands<kColumns>;
  const int warp = static_cast<int>(threadIdx.x) / 32 - kWalkers / 32, channel = place.slice + 16 * warp;
  const Operands& left = stage.operands[warp];
  const int64_t stride = static_cast<int64_t>(in.H) * in.dv,
                at = place.token(in, span) * stride + place.head * in.dv + channel;
  if constexpr (kStates) {
    if (!span.begins)
      write_state<kColumns>(
          in.states + in.state(place.b, span.begin, place.head) + static_cast<int64_t>(channel) * in.dk, left, in.dk,
          in.dv - channel);
    FragmentA solution[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) solution[j] = Operands::get(left.solution[j]);
    write_operands(in.u + at, stride, solution, span.L, in.dv - channel);
  } else {
    TokenSums outputs;
#pragma unroll
    for (int d = 0; d < kColumns / 16; ++d) {
      const FragmentA state = Operands::get(left.state[d]);
#pragma unroll
      for (int i = 0; i < 4; ++i) outputs.add(i, state, right_transposed(stage.q, 16 * i, 16 * d));
    }
    scale_tokens(outputs, stage.scales, [](const DeltaScales& x) { return x.query_grown; });
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const FragmentA written = Operands::get(left.solution[j]);
#pragma unroll
      for (int i = j; i < 4; ++i) outputs.add(i, written, right_transposed(stage.links, 16 * i, 16 * j));
    }
    write_tokens(o + at, stride, outputs, span.L, in.dv - channel);
  }
}

template <int kColumns, Decay kDecay, bool kStates>
__global__ void __launch_bounds__(kWalkThreads)
    delta_walk_kernel(DeltaTensors in, Bf16* o, float* last, const float* before) {
  extern __shared__ unsigned char memory[];
  const WalkPlace place(in);
  DeltaWalker<kColumns, kDecay> walker(in, place, before);
  using Stage = WalkStage<kColumns, kDecay>;
  walk_chunks<Stage, !kStates>(
      in.chunks + place.b * (in.S + 2), false, memory,
      [&](const Stage& stage, const ChunkSpan& span) {
        stage.copy(in, place, span, in.value(place.token(in, span), place.head) + place.slice, in.channels);
      },
      [&](const Stage& stage, const ChunkSpan& span) { walker.chunk(stage, span); },
      [&](const Stage& stage, const ChunkSpan& span) {
        finish_chunk<kColumns, kDecay, kStates>(in, place, stage, span, o);
      });
  if (last != nullptr && threadIdx.x < kWalkers) walker.write_last(last);
}

template <bool kStates>
void launch_walk(Stream& stream, Bf16* o, float* last, const DeltaInputs& in, const DeltaMemory& memory) {
  const DeltaTensors tensors = delta_tensors(in, memory);
  const dim3 grid(static_cast<unsigned>((tensors.dv + kWalkSlice - 1) / kWalkSlice), static_cast<unsigned>(tensors.H),
                  static_cast<unsigned>(in.qkv.size(0)));
  dispatch_walk(in, [&]<int kColumns, Decay kDecay>() {
    constexpr int64_t kBytes = WalkStage<kColumns, kDecay>::bytes(!kStates);
    take_shared_memory(stream, "gated_delta", delta_walk_kernel<kColumns, kDecay, kStates>, kBytes);
    delta_walk_kernel<kColumns, kDecay, kStates>
        <<<grid, kWalkThreads, kBytes, native(stream)>>>(tensors, o, last, ptr<float>(in.first));
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
