// Gradients of all chunks at once. A block has a chunk of the heads of a group, and sums their shares of the gradients
// of B and C in registers: head after head, 64 channels at a time, whose operands arrive while those before are
// computed with. With the state S before the chunk, the gradient dS of the state after it, and E[i,j] = e^(γ[i] - γ[j])
// for j <= i,
//   u[j] = e^(γ[L-1] - γ[j]) dSᵀ B[j] + Σ_i E[i,j] (C[i].B[j]) dy[i],          dx = dt u + D dy
//   dC[i] = e^γ[i] S dy[i] + Σ_j P[i,j] B[j],                                  P[i,j] = E[i,j] dt[j] dy[i].x[j]
//   dB[j] = dt[j] e^(γ[L-1] - γ[j]) dS x[j] + Σ_i P[i,j] C[i]
// The gradient of γ[i] is C[i].dC[i] - B[i].dB[i], which the sums of P[i,j] C[i].B[j] over rows and over columns give
// beside the states' terms, so that pairs of tokens cancel where they must.
#include "witan/kernels/linear_attention/cuda/documents.cuh"
#include "witan/kernels/state_space/cuda/ssd_tiles.cuh"

namespace witan::kernels::cuda {
namespace {

constexpr int kGradientThreads = 512, kQuarters = 4;
constexpr int kPart = 64;  // channels at a time
using PartRows = SharedTile<kPart>;

struct GradientOutputs {
  Bf16* dxbc;
  float *ddt, *da;
  const Bf16* dy;
};

// Sums of a head and the chunk's tokens, to be summed over the quarters, or over the blocks of rows.
struct GradientNumbers {
  float outputs[kQuarters][kTileL];  // C[i].dC[i] = e^γ[i] C[i].(S dy[i]) + Σ_j P[i,j] C[i].B[j]
  float inputs[kQuarters][kTileL];   // e^(γ[L-1] - γ[j]) B[j].(dS x[j])
  float columns[4][kTileL];          // Σ_i P[i,j] C[i].B[j] / dt[j]
  float states[kGradientThreads / 32];
};
constexpr int kBatch = 4;  // heads, whose gates are computed side by side

// The operands of a head's 64 channels.
template <int kColumns>
struct GradientStage {
  static constexpr int kRows = kTileL * kPart, kState = kPart * kColumns;
  static constexpr int kBytes =
      2 * (kRows + kState) * static_cast<int>(sizeof(Bf16)) + kTileL * static_cast<int>(sizeof(SsdScales));
  PartRows x, dy;
  StateTile<kColumns> state, gradient;
  SsdScales* scales;
  __device__ explicit GradientStage(unsigned char* memory)
      : x{reinterpret_cast<Bf16*>(memory)},
        dy{x.at + kRows},
        state{dy.at + kRows},
        gradient{state.at + kState},
        scales(reinterpret_cast<SsdScales*>(gradient.at + kState)) {}
};

template <int kColumns>
struct GradientShared {
  static constexpr int kVectors = kTileL * kColumns, kSquare = kTileL * kTileL;
  static constexpr int kBytes = 2 * GradientStage<kColumns>::kBytes +
                                2 * (kVectors + kSquare) * static_cast<int>(sizeof(Bf16)) +
                                kBatch * static_cast<int>(sizeof(GradientNumbers));
  unsigned char* stages;
  SharedTile<kColumns> B, C;
  SharedTile<kTileL> links, pairs;  // E[i,j] C[i].B[j], and P; blocks on and under the diagonal
  GradientNumbers* numbers;         // [kBatch]
  __device__ explicit GradientShared(unsigned char* memory)
      : stages(memory),
        B{reinterpret_cast<Bf16*>(memory + 2 * GradientStage<kColumns>::kBytes)},
        C{B.at + kVectors},
        links{C.at + kVectors},
        pairs{links.at + kSquare},
        numbers(reinterpret_cast<GradientNumbers*>(pairs.at + kSquare)) {}
};

template <int kColumns>
class SsdChunkGradients {
 public:
  static constexpr int kPairs = kColumns / 64;  // of 16 numbers, of a warp

  __device__ __forceinline__ SsdChunkGradients(const SsdTensors& in, const GradientOutputs& to, unsigned char* memory)
      : in_(in),
        to_(to),
        at_(memory),
        group_(static_cast<int>(blockIdx.y)),
        b_(blockIdx.z),
        block_(own_warp() % 4),
        quarter_(own_warp() / 4) {}

  __device__ __forceinline__ void run(const ChunkSpan& span) {
    span_ = span;
    first_ = b_ * in_.S + span.begin;
    const int first_head = group_ * in_.per_group, end = first_head + in_.per_group;
    HeadPart at{first_head, 0};
    const Bf16* const vectors = in_.vectors(first_, group_);
    copy_rows<kTileL, kGradientThreads>(at_.B, vectors, in_.channels, span.L, in_.N);
    copy_rows<kTileL, kGradientThreads>(at_.C, vectors + in_.of_groups, in_.channels, span.L, in_.N);
    commit_copies();
    copy_part(at, 0);
    wait_copies<1>();
    __syncthreads();
    multiply_vectors();
    dB_ = {}, dC_ = {};
    for (int turn = 0; at.head < end; turn ^= 1) {
      const GradientStage<kColumns> stage = stage_of(turn);
      const HeadPart following = at.next(in_.P);
      wait_copies<0>();
      __syncthreads();
      if (following.head < end) copy_part(following, turn ^ 1);
      if (at.channel == 0) begin_head(stage.scales);
      add_part(stage, at.head, at.channel);
      if (following.head != at.head)
        end_head(stage.scales, at.head, (at.head - first_head) % kBatch, following.head == end);
      at = following;
    }
    Bf16* const to = to_.dxbc + (first_ + 16 * block_) * in_.channels + in_.inner + group_ * in_.N + number();
    write_sums(to, in_.channels, dB_, span.L - 16 * block_, in_.N - number());
    write_sums(to + in_.of_groups, in_.channels, dC_, span.L - 16 * block_, in_.N - number());
    __syncthreads();
  }

 private:
  __device__ __forceinline__ GradientStage<kColumns> stage_of(int turn) const {
    return GradientStage<kColumns>(at_.stages + turn * GradientStage<kColumns>::kBytes);
  }
  __device__ __forceinline__ int row() const { return 16 * block_ + warp_lane() / 4; }
  __device__ __forceinline__ int number() const { return quarter_ * kColumns / kQuarters; }

  __device__ __forceinline__ void copy_part(const HeadPart& at, int turn) const {
    const GradientStage<kColumns> stage = stage_of(turn);
    const auto [head, channel] = at;
    const auto thread = static_cast<int>(threadIdx.x);
    copy_rows<kTileL, kGradientThreads>(stage.x, in_.input(first_, head) + channel, in_.channels, span_.L,
                                        in_.P - channel);
    copy_rows<kTileL, kGradientThreads>(stage.dy, to_.dy + (first_ * in_.H + head) * in_.P + channel, in_.inner,
                                        span_.L, in_.P - channel);
    if (!span_.begins)
      copy_state<kGradientThreads>(stage.state, in_.states + in_.state(b_, span_.begin, head), channel, in_.P, in_.N,
                                   thread);
    if (!span_.ends)
      copy_state<kGradientThreads>(stage.gradient, in_.state_gradients + in_.state(b_, span_.begin + span_.L, head),
                                   channel, in_.P, in_.N, thread);
    copy_scales(stage.scales, in_.scale(b_, span_.begin, head), span_.L, thread);
    commit_copies();
  }
  // C Bᵀ of the warp's tokens and a quarter of the others, where it is on or under the diagonal.
  __device__ __forceinline__ void multiply_vectors() {
    products_ = {};
    if (quarter_ > block_) return;
#pragma unroll
    for (int d = 0; d < kColumns; d += 16)
      products_.add(0, left_operand(at_.C, 16 * block_, d), right_transposed(at_.B, 16 * quarter_, d));
  }
  // Calls body(n, lower, column, E of it and the next column) for the sums of a warp's block of pairs.
  template <class Body>
  __device__ __forceinline__ void for_pairs(const SsdScales* scales, const Body& body) const {
#pragma unroll
    for (int lower = 0; lower < 2; ++lower) {
      const int i = row() + 8 * lower;
      const float gamma = scales[i].gamma;
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int j = 16 * quarter_ + 8 * n + warp_lane() % 4 * 2;
        const bool inside = i < span_.L;
        body(n, lower, j, inside && j <= i ? exp2_fast(gamma - scales[j].gamma) : 0.0f,
             inside && j + 1 <= i ? exp2_fast(gamma - scales[j + 1].gamma) : 0.0f);
      }
    }
  }

  __device__ __forceinline__ void begin_head(const SsdScales* scales) {
    of_pairs_ = {};
    states_ = 0;
    outputs_[0] = outputs_[1] = inputs_[0] = inputs_[1] = 0;
    if (quarter_ <= block_)
      for_pairs(scales, [&](int n, int lower, int j, float first, float second) {
        const float* const products = products_.at[n] + 2 * lower;
        at_.links.set(row() + 8 * lower, j, first * products[0], second * products[1]);
      });
    __syncthreads();
  }

  __device__ __forceinline__ void add_part(const GradientStage<kColumns>& stage, int head, int channel) {
    const SsdScales of_rows[2] = {stage.scales[row()], stage.scales[row() + 8]};
    if (quarter_ <= block_)
#pragma unroll 1
      for (int e = 0; e < kPart; e += 16)
        of_pairs_.add(0, left_operand(stage.dy, 16 * block_, e), right_transposed(stage.x, 16 * quarter_, e));
    write_inputs(stage, of_rows, head, channel);
    if (!span_.begins) {
      WarpSums<kPairs> sums;
      multiply(sums, stage.dy, stage.state);
      sums.scale(of_rows[0].grown, of_rows[1].grown);
      take(dC_, outputs_, sums, at_.C, 1.0f, 1.0f);
    }
    if (!span_.ends) {
      WarpSums<kPairs> sums;
      multiply(sums, stage.x, stage.gradient);
      sums.scale(of_rows[0].left, of_rows[1].left);
      take(dB_, inputs_, sums, at_.B, of_rows[0].dt, of_rows[1].dt);
    }
    if (!span_.begins && !span_.ends) add_states(stage);
  }
  // dx of the warp's tokens and a quarter of the channels.
  __device__ __forceinline__ void write_inputs(const GradientStage<kColumns>& stage, const SsdScales (&of_rows)[2],
                                               int head, int channel) const {
    WarpSums<1> u;
    if (!span_.ends) {
#pragma unroll 2
      for (int d = 0; d < kColumns; d += 16)
        u.add(0, left_operand(at_.B, 16 * block_, d), stage.gradient.by_number(d, 16 * quarter_));
      u.scale(of_rows[0].left, of_rows[1].left);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (i >= block_)
        u.add(0, left_transposed(at_.links, 16 * i, 16 * block_), right_operand(stage.dy, 16 * i, 16 * quarter_));
    u.scale(of_rows[0].dt, of_rows[1].dt);
    const float skip = in_.D[head];
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int lower = 0; lower < 2; ++lower) {
        const float2 dy = stage.dy.values(row() + 8 * lower, 16 * quarter_ + 8 * n + warp_lane() % 4 * 2);
        u.at[n][2 * lower] += skip * dy.x, u.at[n][2 * lower + 1] += skip * dy.y;
      }
    channel += 16 * quarter_;
    write_sums(to_.dxbc + (first_ + 16 * block_) * in_.channels + head * in_.P + channel, in_.channels, u,
               span_.L - 16 * block_, in_.P - channel);
  }
  // Products of the channels of rows with a state.
  __device__ __forceinline__ void multiply(WarpSums<kPairs>& sums, const PartRows& rows,
                                           const StateTile<kColumns>& state) const {
#pragma unroll 2
    for (int e = 0; e < kPart; e += 16) {
      const FragmentA left = left_operand(rows, 16 * block_, e);
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) sums.add(pair, left, state.by_channel(e, number() + 16 * pair));
    }
  }
  // Adds sums to a gradient, rows times their factors, and their products with the vectors of their rows to dots.
  __device__ __forceinline__ void take(WarpSums<kPairs>& to, float (&dots)[2], const WarpSums<kPairs>& sums,
                                       const SharedTile<kColumns>& of, float upper, float lower_factor) const {
#pragma unroll
    for (int n = 0; n < 2 * kPairs; ++n)
#pragma unroll
      for (int lower = 0; lower < 2; ++lower) {
        const float2 x = of.values(row() + 8 * lower, number() + 8 * n + warp_lane() % 4 * 2);
        const float first = sums.at[n][2 * lower], second = sums.at[n][2 * lower + 1];
        const float factor = lower == 0 ? upper : lower_factor;
        dots[lower] += first * x.x + second * x.y;
        to.at[n][2 * lower] += factor * first, to.at[n][2 * lower + 1] += factor * second;
      }
  }
  // S.dS, whose tiles are laid out alike.
  __device__ __forceinline__ void add_states(const GradientStage<kColumns>& stage) {
#pragma unroll
    for (int begin = 0; begin < kColumns * kPart; begin += kGradientThreads * 8) {
      const int at = begin + static_cast<int>(threadIdx.x) * 8;
      const auto x = load_pack<uint32_t, 4>(reinterpret_cast<const uint32_t*>(stage.state.at + at)),
                 y = load_pack<uint32_t, 4>(reinterpret_cast<const uint32_t*>(stage.gradient.at + at));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 s = unpack_pair<Bf16>(x.at[i]), ds = unpack_pair<Bf16>(y.at[i]);
        states_ += s.x * ds.x + s.y * ds.y;
      }
    }
  }

  __device__ __forceinline__ void end_head(const SsdScales* scales, int head, int in_batch, bool last) {
    GradientNumbers& numbers = at_.numbers[in_batch];
    if (quarter_ <= block_) write_pairs(numbers, scales, head);
    write_dots(numbers);
    __syncthreads();
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (j <= block_) {
        const FragmentA left = left_operand(at_.pairs, 16 * block_, 16 * j);
#pragma unroll
        for (int pair = 0; pair < kPairs; ++pair)
          dC_.add(pair, left, right_operand(at_.B, 16 * j, number() + 16 * pair));
      }
      if (j >= block_) {
        const FragmentA left = left_transposed(at_.pairs, 16 * j, 16 * block_);
#pragma unroll
        for (int pair = 0; pair < kPairs; ++pair)
          dB_.add(pair, left, right_operand(at_.C, 16 * j, number() + 16 * pair));
      }
    }
    const int warp = 4 * quarter_ + block_;
    if ((last || in_batch == kBatch - 1) && warp <= in_batch) write_gates(at_.numbers[warp], head - in_batch + warp);
  }
  // P, and the sums of its products with C[i].B[j] over the warp's columns and rows. x[i].dy[i] lies on the diagonal.
  __device__ __forceinline__ void write_pairs(GradientNumbers& numbers, const SsdScales* scales, int head) {
    float columns[2][2] = {};
    for_pairs(scales, [&](int n, int lower, int j, float first, float second) {
      const int i = row() + 8 * lower;
      const float *const pairs = of_pairs_.at[n] + 2 * lower, *const products = products_.at[n] + 2 * lower;
      const float decay[2] = {first, second};
      float out[2];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float pair = decay[c] * pairs[c], dt = scales[j + c].dt;
        out[c] = pair * dt;
        outputs_[lower] += pair * products[c] * dt;
        columns[n][c] += pair * products[c];
        if (i == j + c && i < span_.L) in_.skips[(first_ + i) * in_.H + head] = pairs[c];
      }
      at_.pairs.set(i, j, out[0], out[1]);
    });
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float sum = columns[n][c];
#pragma unroll
        for (int apart = 4; apart < 32; apart *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, apart);
        if (warp_lane() < 4) numbers.columns[block_][16 * quarter_ + 8 * n + warp_lane() * 2 + c] = sum;
      }
  }
  // The sum of a row over the lanes that hold it.
  __device__ __forceinline__ static float row_sum(float value) {
    value += __shfl_xor_sync(0xffffffffu, value, 1);
    return value + __shfl_xor_sync(0xffffffffu, value, 2);
  }
  __device__ __forceinline__ void write_dots(GradientNumbers& numbers) {
#pragma unroll
    for (int lower = 0; lower < 2; ++lower) {
      const float output = row_sum(outputs_[lower]), input = row_sum(inputs_[lower]);
      if (warp_lane() % 4 == 0) {
        numbers.outputs[quarter_][row() + 8 * lower] = output;
        numbers.inputs[quarter_][row() + 8 * lower] = input;
      }
    }
    const float states = warp_sum(states_);
    if (warp_lane() == 0) numbers.states[4 * quarter_ + block_] = states;
  }
  // A token's gradients: of its dt; of its γ, without the part that passes through the state at the chunk's end; and
  // its term of that part, a sum over the chunk's tokens.
  struct TokenGradients {
    float dt, gamma, end;
  };
  __device__ __forceinline__ TokenGradients token_gradients(const GradientNumbers& n, const SsdScales* scales,
                                                            int i) const {
    float output = 0, input = 0, of_column = 0;
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      output += n.outputs[q][i], input += n.inputs[q][i];
      if (q >= i / 16) of_column += n.columns[q][i];
    }
    const float dt = i < span_.L ? scales[i].dt : 0.0f, step = input + of_column;
    return {step, output - dt * step, dt * input};
  }
  // The gradient of a[i] sums those of γ from token i on. Called by a warp, whose lanes have tokens 63 - i and 31 - i.
  __device__ __forceinline__ void write_gates(const GradientNumbers& numbers, int head) const {
    const SsdScales* const scales = in_.scale(b_, span_.begin, head);
    float last = 0;
#pragma unroll
    for (int w = 0; w < kGradientThreads / 32; ++w) last += numbers.states[w];
    last *= scales[span_.L - 1].grown;
    const int i = kTileL - 1 - warp_lane(), j = i - 32;
    const TokenGradients of_i = token_gradients(numbers, scales, i), of_j = token_gradients(numbers, scales, j);
    const float2 from = scan_tokens(of_i.gamma, of_j.gamma);
    last += warp_sum(of_i.end + of_j.end);
    if (i < span_.L) write_token(i, head, of_i.dt, last + from.x);
    if (j < span_.L) write_token(j, head, of_j.dt, last + from.y);
  }
  __device__ __forceinline__ void write_token(int i, int head, float ddt, float da) const {
    to_.ddt[(first_ + i) * in_.H + head] = ddt;
    to_.da[(first_ + i) * in_.H + head] = da;
  }

  const SsdTensors& in_;
  const GradientOutputs& to_;
  GradientShared<kColumns> at_;
  int group_;
  int64_t b_;
  int block_, quarter_;  // of a warp: its rows, and which quarter of channels, numbers or columns
  ChunkSpan span_;
  int64_t first_;
  WarpSums<kPairs> dB_, dC_;
  WarpSums<1> products_, of_pairs_;  // C Bᵀ, and dY Xᵀ of the head so far
  float outputs_[2], inputs_[2], states_;
};

template <int kColumns>
__global__ void __launch_bounds__(kGradientThreads) ssd_gradients_kernel(SsdTensors in, GradientOutputs to) {
  extern __shared__ unsigned char memory[];
  SsdChunkGradients<kColumns> gradients(in, to, memory);
  const int32_t* const table = in.chunks + blockIdx.z * (in.S + 2);
  for (int n = static_cast<int>(blockIdx.x); n < table[0]; n += static_cast<int>(gridDim.x))
    gradients.run(chunk_span(table[1 + n], table[2 + n]));
}

}  // namespace

void ssd_gradients(Stream& stream, const SsdGradients& to, const Tensor& dy, const SsdInputs& in) {
  const SsdTensors tensors = ssd_tensors(in, to.memory);
  const GradientOutputs outputs{ptr<Bf16>(to.dxbc), ptr<float>(to.ddt), ptr<float>(to.da), ptr<Bf16>(dy)};
  const dim3 grid(static_cast<unsigned>(tensors.slots), static_cast<unsigned>(tensors.G),
                  static_cast<unsigned>(in.xbc.size(0)));
  dispatch_state_tile(tensors.N, [&]<int kColumns>() {
    constexpr int kBytes = GradientShared<kColumns>::kBytes;
    take_shared_memory(stream, "ssd", ssd_gradients_kernel<kColumns>, kBytes);
    ssd_gradients_kernel<kColumns><<<grid, kGradientThreads, kBytes, native(stream)>>>(tensors, outputs);
  });
}

}  // namespace witan::kernels::cuda
