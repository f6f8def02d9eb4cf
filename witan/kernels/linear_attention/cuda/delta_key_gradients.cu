// Gradients of queries, keys and gates. A block has a chunk of the heads that read one key, and sums their shares in
// registers: head after head, 64 value channels at a time, whose operands arrive while those before are computed with.
// With the gradients dS of the state after the chunk and D of the solution's right side, and q̂ = rq q, k̂ = rk k,
//   rq dq̂[i] = e^γ rq S dO[i] + Σ_j P~[i,j] k[j]               P~[i,j] = e^(γ[i] - γ[j]) rq[i] rk[j] dO[i].U[j], j <= i
//   rk dk̂[i] = -e^γ rk β S D[i] + Σ_j M~[i,j] k[j]             M~[i,j] = -β[i] e^(γ[i] - γ[j]) rk[i] rk[j] D[i].U[j]
//              + e^(γ[L-1] - γ) rk dS U[i] + Σ_j (P~[j,i] q[j] + M~[j,i] k[j])                                   j < i
// and the gradient of γ[i] is q̂.dq̂ + k̂.dk̂ with the terms of the first two lines less k̂.dk̂ with those of the last.
#include "witan/kernels/linear_attention/cuda/delta_gradients.cuh"

namespace witan::kernels::cuda {
namespace {

constexpr int kPart = 64;  // value channels at a time
constexpr int kQuarters = 4;
using PartRows = SharedTile<kPart>;

// Numbers of the chunk's tokens.
struct KeyNumbers {
  float rk[kTileL], rq[kTileL], gamma[kTileL];
  float dots[kQuarters][kTileL], ends[kQuarters][kTileL];  // sums over each quarter of the channels
  float sums[kGradientThreads / 32];
};

template <int kColumns>
struct KeyShared {
  static constexpr int kStage = 2 * kColumns * kPart + 3 * kTileL * kPart;
  static constexpr int kElements = 2 * kTileL * kColumns + 2 * kStage + 2 * kTileL * kTileL;
  static constexpr int64_t kBytes = kElements * static_cast<int64_t>(sizeof(Bf16)) + sizeof(KeyNumbers);
  SharedTile<kColumns> k, q;
  SharedTile<kTileL> of_links, of_inverse;  // P~ and M~
  Bf16* stages;
  KeyNumbers& numbers;
  __device__ explicit KeyShared(unsigned char* memory)
      : k{reinterpret_cast<Bf16*>(memory)},
        q{k.at + kTileL * kColumns},
        of_links{q.at + kTileL * kColumns},
        of_inverse{of_links.at + kTileL * kTileL},
        stages(of_inverse.at + kTileL * kTileL),
        numbers(*reinterpret_cast<KeyNumbers*>(stages + 2 * kStage)) {}
};

// The operands of a head's 64 value channels.
template <int kColumns>
struct KeyStage {
  SharedTile<kColumns> state, state_gradient;  // transposed, [64, dk]
  PartRows u, du, d_o;                         // [L, 64]
  __device__ explicit KeyStage(Bf16* memory)
      : state{memory},
        state_gradient{state.at + kColumns * kPart},
        u{state_gradient.at + kColumns * kPart},
        du{u.at + kTileL * kPart},
        d_o{du.at + kTileL * kPart} {}
};

template <int kColumns>
class DeltaKeyGradients {
 public:
  static constexpr int kPairs = kColumns / 64;  // of 16 channels, of a warp
  static constexpr int64_t kBytes = KeyShared<kColumns>::kBytes;

  __device__ __forceinline__ DeltaKeyGradients(const DeltaTensors& in, const GradientOutputs& to, unsigned char* memory)
      : in_(in),
        to_(to),
        at_(memory),
        numbers_(at_.numbers),
        group_(static_cast<int>(blockIdx.y)),
        b_(blockIdx.z),
        block_(static_cast<int>(threadIdx.x) / 32 % 4),
        quarter_(static_cast<int>(threadIdx.x) / 128) {}

  __device__ __forceinline__ void run(const ChunkSpan& span) {
    span_ = span;
    first_ = b_ * in_.S + span.begin;
    const int per_group = in_.H / in_.G, parts = (in_.dv + kPart - 1) / kPart;
    copy_rows<kTileL, kGradientThreads>(at_.k, in_.key(first_, group_), in_.channels, span.L, in_.dk);
    copy_rows<kTileL, kGradientThreads>(at_.q, in_.query(first_, group_), in_.channels, span.L, in_.dk);
    commit_copies();
    copy_part(0, parts);
    wait_copies<1>();
    __syncthreads();
    find_norms();
    dq_ = {}, dk_ = {};
    for (int at = 0; at < per_group * parts; ++at) {
      const int head = group_ * per_group + at / parts;
      if (at % parts == 0) begin_head(head);
      wait_copies<0>();
      __syncthreads();
      if (at + 1 < per_group * parts) copy_part(at + 1, parts);
      add_part(stage_of(at));
      if (at % parts == parts - 1) end_head(head);
    }
    write_keys();
    __syncthreads();
  }

 private:
  __device__ __forceinline__ KeyStage<kColumns> stage_of(int at) const {
    return KeyStage<kColumns>(at_.stages + at % 2 * KeyShared<kColumns>::kStage);
  }
  __device__ __forceinline__ int row() const { return 16 * block_ + warp_lane() / 4; }
  __device__ __forceinline__ int channel() const { return quarter_ * kColumns / kQuarters; }

  __device__ __forceinline__ void copy_part(int at, int parts) const {
    const KeyStage<kColumns> stage = stage_of(at);
    const int head = group_ * (in_.H / in_.G) + at / parts, part = at % parts * kPart, channels = in_.dv - part;
    const int64_t stride = static_cast<int64_t>(in_.H) * in_.dv, rows = first_ * stride + head * in_.dv + part;
    copy_rows<kTileL, kGradientThreads>(stage.u, in_.u + rows, stride, span_.L, channels);
    copy_rows<kTileL, kGradientThreads>(stage.du, in_.du + rows, stride, span_.L, channels);
    copy_rows<kTileL, kGradientThreads>(stage.d_o, to_.d_o + rows, stride, span_.L, channels);
    const int64_t state = static_cast<int64_t>(part) * in_.dk;
    if (!span_.begins)
      copy_rows<kTileL, kGradientThreads>(stage.state, in_.states + in_.state(b_, span_.begin, head) + state, in_.dk,
                                          channels, in_.dk);
    if (!span_.ends)
      copy_rows<kTileL, kGradientThreads>(stage.state_gradient,
                                          in_.state_gradients + in_.state(b_, span_.begin + span_.L, head) + state,
                                          in_.dk, channels, in_.dk);
    commit_copies();
  }
  __device__ __forceinline__ void find_norms() {
    if (quarter_ >= 2) return;
    const int own = static_cast<int>(threadIdx.x) % 128 / 2;
    const SharedTile<kColumns> rows{quarter_ == 0 ? at_.k.at : at_.q.at};
    const float norm = inverse_norm(rows, own, quarter_ == 0 ? 1.0f : in_.factor);
    if (threadIdx.x % 2 == 0) (quarter_ == 0 ? numbers_.rk : numbers_.rq)[own] = norm;
  }

  __device__ __forceinline__ float of_token(const float* of, int i, int head) const {
    return i < span_.L ? of[(first_ + i) * in_.H + head] : 0.0f;
  }
  __device__ __forceinline__ void begin_head(int head) {
#pragma unroll
    for (int lower = 0; lower < 2; ++lower) beta_[lower] = of_token(in_.beta, row() + 8 * lower, head);
    if (threadIdx.x < 32) {
      const int i = warp_lane();
      const float2 gamma = scan_tokens(of_token(in_.g, i, head), of_token(in_.g, i + 32, head));
      numbers_.gamma[i] = gamma.x, numbers_.gamma[i + 32] = gamma.y;
    }
    of_links_ = {}, of_inverse_ = {};
    dots_[0] = dots_[1] = ends_[0] = ends_[1] = states_ = 0;
  }

  // Products of all channels of queries and keys with a state.
  __device__ __forceinline__ void multiply(WarpSums<kPairs>& sums, const PartRows& left,
                                           const SharedTile<kColumns>& state) const {
#pragma unroll 1
    for (int e = 0; e < kPart; e += 16) {
      const FragmentA a = left_operand(left, 16 * block_, e);
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) sums.add(pair, a, right_operand(state, e, channel() + 16 * pair));
    }
  }
  // Adds sums to a gradient, and their products with the rows of q or k to dots.
  __device__ __forceinline__ void take(WarpSums<kPairs>& to, float (&dots)[2], WarpSums<kPairs>& sums,
                                       const SharedTile<kColumns>& of, float sign) const {
#pragma unroll
    for (int n = 0; n < 2 * kPairs; ++n)
#pragma unroll
      for (int lower = 0; lower < 2; ++lower) {
        const float2 x = of.values(row() + 8 * lower, channel() + 8 * n + warp_lane() % 4 * 2);
        const float first = sums.at[n][2 * lower], second = sums.at[n][2 * lower + 1];
        dots[lower] += sign * (first * x.x + second * x.y);
        to.at[n][2 * lower] += first, to.at[n][2 * lower + 1] += second;
      }
  }

  __device__ __forceinline__ void add_part(const KeyStage<kColumns>& stage) {
#pragma unroll 1
    for (int e = 0; e < kPart; e += 16) {
      if (quarter_ > block_) continue;
      const FragmentPair u = right_transposed(stage.u, 16 * quarter_, e);
      of_links_.add(0, left_operand(stage.d_o, 16 * block_, e), u);
      of_inverse_.add(0, left_operand(stage.du, 16 * block_, e), u);
    }
    float grown[2], left[2], rk[2], rq[2];  // of the thread's tokens
#pragma unroll
    for (int lower = 0; lower < 2; ++lower) {
      const int i = row() + 8 * lower;
      grown[lower] = __expf(numbers_.gamma[i]);
      left[lower] = __expf(numbers_.gamma[kTileL - 1] - numbers_.gamma[i]);
      rk[lower] = numbers_.rk[i], rq[lower] = numbers_.rq[i];
    }
    if (!span_.begins) {
      WarpSums<kPairs> of_queries, of_keys;
      multiply(of_queries, stage.d_o, stage.state);
      of_queries.scale(grown[0] * rq[0], grown[1] * rq[1]);
      take(dq_, dots_, of_queries, at_.q, 1.0f);
      multiply(of_keys, stage.du, stage.state);
      of_keys.scale(-grown[0] * rk[0] * beta_[0], -grown[1] * rk[1] * beta_[1]);
      take(dk_, dots_, of_keys, at_.k, 1.0f);
    }
    if (!span_.ends) {
      WarpSums<kPairs> of_keys;
      multiply(of_keys, stage.u, stage.state_gradient);
      of_keys.scale(left[0] * rk[0], left[1] * rk[1]);
      take(dk_, ends_, of_keys, at_.k, 1.0f);
    }
    if (!span_.begins && !span_.ends) add_states(stage);
  }
  // S.dS. Both tiles have the same permutation.
  __device__ __forceinline__ void add_states(const KeyStage<kColumns>& stage) {
#pragma unroll
    for (int at = static_cast<int>(threadIdx.x) * 8; at < kColumns * kPart; at += kGradientThreads * 8) {
      const auto x = load_pack<uint32_t, 4>(reinterpret_cast<const uint32_t*>(stage.state.at + at)),
                 y = load_pack<uint32_t, 4>(reinterpret_cast<const uint32_t*>(stage.state_gradient.at + at));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 s = unpack_pair<Bf16>(x.at[i]), ds = unpack_pair<Bf16>(y.at[i]);
        states_ += s.x * ds.x + s.y * ds.y;
      }
    }
  }

  __device__ __forceinline__ void end_head(int head) {
    write_links(head);
    __syncthreads();
    add_rows(dq_, at_.of_links, at_.q);
    add_rows(dk_, at_.of_inverse, at_.k);
    WarpSums<kPairs> sums;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (j < block_) continue;
      const FragmentA links = left_transposed(at_.of_links, 16 * j, 16 * block_),
                      inverse = left_transposed(at_.of_inverse, 16 * j, 16 * block_);
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        sums.add(pair, links, right_operand(at_.q, 16 * j, channel() + 16 * pair));
        sums.add(pair, inverse, right_operand(at_.k, 16 * j, channel() + 16 * pair));
      }
    }
    take(dk_, dots_, sums, at_.k, -1.0f);
    write_gates(head);
  }
  // Adds the products of links with keys to a gradient.
  __device__ __forceinline__ void add_rows(WarpSums<kPairs>& to, const SharedTile<kTileL>& links,
                                           const SharedTile<kColumns>& of) {
    WarpSums<kPairs> sums;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (j > block_) continue;
      const FragmentA left = left_operand(links, 16 * block_, 16 * j);
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair)
        sums.add(pair, left, right_operand(at_.k, 16 * j, channel() + 16 * pair));
    }
    take(to, dots_, sums, of, 1.0f);
  }
  // P~ and M~, and the gradient of β.
  __device__ __forceinline__ void write_links(int head) {
    if (quarter_ > block_) return;
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int lower = 0; lower < 2; ++lower) {
        const int i = row() + 8 * lower, column = 16 * quarter_ + 8 * n + warp_lane() % 4 * 2;
        const float of_query = numbers_.rq[i], of_key = -beta_[lower] * numbers_.rk[i];
        float links[2], inverse[2];
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int j = column + c;
          const float decay = j <= i ? __expf(numbers_.gamma[i] - numbers_.gamma[j]) * numbers_.rk[j] : 0.0f;
          const float pair = of_inverse_.at[n][2 * lower + c];
          links[c] = of_query * decay * of_links_.at[n][2 * lower + c];
          inverse[c] = j < i ? of_key * decay * pair : 0.0f;
          // U[i] / β[i] is the residual less what earlier tokens wrote.
          if (j == i && i < span_.L)
            to_.dbeta[(first_ + i) * in_.H + head] = beta_[lower] == 0 ? 0.0f : __fdividef(pair, beta_[lower]);
        }
        at_.of_links.set(i, column, links[0], links[1]);
        at_.of_inverse.set(i, column, inverse[0], inverse[1]);
      }
  }
  // The sum of a row over the lanes that hold it.
  __device__ __forceinline__ static float row_sum(float value) {
    value += __shfl_xor_sync(0xffffffffu, value, 1);
    return value + __shfl_xor_sync(0xffffffffu, value, 2);
  }
  // Sums over the lanes of a row, to be summed over the quarters.
  __device__ __forceinline__ void write_sums(const float (&dots)[2], const float (&ends)[2]) {
#pragma unroll
    for (int lower = 0; lower < 2; ++lower) {
      const float dot = row_sum(dots[lower]), end = row_sum(ends[lower]);
      if (warp_lane() % 4 == 0) {
        numbers_.dots[quarter_][row() + 8 * lower] = dot;
        numbers_.ends[quarter_][row() + 8 * lower] = end;
      }
    }
  }
  __device__ __forceinline__ static float over_quarters(const float (&of)[kQuarters][kTileL], int i) {
    return of[0][i] + of[1][i] + of[2][i] + of[3][i];
  }
  // The gradient of g[i] sums those of γ from token i on. What the state after the chunk gives γ[L-1] is the sum of all
  // `ends`, and e^γ[L-1] S.dS.
  __device__ __forceinline__ void write_gates(int head) {
    write_sums(dots_, ends_);
    const float states = warp_sum(states_);
    if (warp_lane() == 0) numbers_.sums[threadIdx.x / 32] = states;
    __syncthreads();
    if (threadIdx.x >= 32) return;
    float last = 0;
#pragma unroll
    for (int i = 0; i < kGradientThreads / 32; ++i) last += numbers_.sums[i];
    last *= __expf(numbers_.gamma[kTileL - 1]);
    // Lane i has tokens 63 - i and 31 - i for sums from a token on, and ends before them are all less those from it on.
    const int i = kTileL - 1 - warp_lane(), j = i - 32;
    const float end_i = over_quarters(numbers_.ends, i), end_j = over_quarters(numbers_.ends, j);
    const float2 from = scan_tokens(over_quarters(numbers_.dots, i) - end_i, over_quarters(numbers_.dots, j) - end_j);
    last += warp_sum(end_i + end_j);
    if (i < span_.L) to_.dg[(first_ + i) * in_.H + head] = last + from.x;
    if (j < span_.L) to_.dg[(first_ + j) * in_.H + head] = last + from.y;
  }

  // Takes dq and dk back through the norms: the gradient of x is y - x r^2 (x.y), with y the sums and r = 1 / |x|.
  __device__ __forceinline__ void write_keys() {
    float of_q[2] = {}, of_k[2] = {};
    WarpSums<kPairs> unused;
    take(unused, of_q, dq_, at_.q, 1.0f);
    take(unused, of_k, dk_, at_.k, 1.0f);
    __syncthreads();
    write_sums(of_q, of_k);
    __syncthreads();
    write_rows(dq_, at_.q, numbers_.dots, numbers_.rq, 1 / in_.factor, group_ * in_.dk);
    write_rows(dk_, at_.k, numbers_.ends, numbers_.rk, 1.0f, in_.key_channels + group_ * in_.dk);
  }
  __device__ __forceinline__ void write_rows(WarpSums<kPairs>& sums, const SharedTile<kColumns>& of,
                                             const float (&dots)[kQuarters][kTileL], const float* norms, float factor,
                                             int64_t behind) const {
#pragma unroll
    for (int n = 0; n < 2 * kPairs; ++n)
#pragma unroll
      for (int lower = 0; lower < 2; ++lower) {
        const int i = row() + 8 * lower, d = channel() + 8 * n + warp_lane() % 4 * 2;
        if (i >= span_.L || d >= in_.dk) continue;
        const float norm = norms[i] * factor, along = norm * norm * over_quarters(dots, i);
        const float2 x = of.values(i, d);
        *reinterpret_cast<uint32_t*>(to_.dqkv + (first_ + i) * in_.channels + behind + d) =
            pack_pair<Bf16>(sums.at[n][2 * lower] - x.x * along, sums.at[n][2 * lower + 1] - x.y * along);
      }
  }

  const DeltaTensors& in_;
  const GradientOutputs& to_;
  KeyShared<kColumns> at_;
  KeyNumbers& numbers_;
  int group_;
  int64_t b_;
  int block_, quarter_;  // of a warp: its rows, and which quarter of channels or columns
  ChunkSpan span_;
  int64_t first_;
  WarpSums<kPairs> dq_, dk_;
  WarpSums<1> of_links_, of_inverse_;  // dO Uᵀ and D Uᵀ of the head so far
  float dots_[2], ends_[2], states_, beta_[2];
};

}  // namespace

void delta_key_gradients(Stream& stream, const DeltaGradients& to, const Tensor& d_o, const DeltaInputs& in) {
  launch_gradients<DeltaKeyGradients>(stream, to, d_o, in, in.heads.keys);
}

}  // namespace witan::kernels::cuda
