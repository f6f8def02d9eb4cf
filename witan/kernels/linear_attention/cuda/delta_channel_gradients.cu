// Gradients of queries, keys and gates with decays of channels. A block has a chunk of a head. With the names of
// delta_key_gradients.cu, but P~ and M~ without decays, those of channel d are
//   rq dq̂[i] = e^γ[i] rq S dO[i] + Σ_{j <= i} P~[i,j] e^(γ[i] - γ[j]) k[j]
//   rk dk̂[i] = -e^γ[i] rk β S D[i] + Σ_{j < i} M~[i,j] e^(γ[i] - γ[j]) k[j]
//              + e^(γ[L-1] - γ[i]) rk dS U[i] + Σ_{j >= i} e^(γ[j] - γ[i]) (P~[j,i] q[j] + M~[j,i] k[j])
// and the gradient of γ[i] is that of its query times q, plus k times the second line less k times the third. Between
// blocks of 16 tokens the sums are products on tensor cores (channel_decays.cuh). Within a block a thread has a
// channel.
#include "witan/kernels/linear_attention/cuda/channel_decays.cuh"
#include "witan/kernels/linear_attention/cuda/delta_gradients.cuh"

namespace witan::kernels::cuda {
namespace {

constexpr int kPart = 64;  // value channels at a time
constexpr int kQuarters = 4;
using PartRows = SharedTile<kPart>;

// Numbers of the chunk's tokens, and of channels: what the state after the chunk gives the last token's γ, of each
// block of tokens, and of S.dS in parts; and the sums of each block's gradients of γ.
template <int kColumns>
struct ChannelNumbers {
  float rk[kTileL], rq[kTileL], beta[kTileL];
  float ends[4][kColumns], states[kGradientThreads / 32][kColumns], totals[4][kColumns];
};

template <int kColumns>
struct GradientShared {
  using Gamma = ChannelGamma<kColumns, 4>;
  static constexpr int kStage = 2 * kColumns * kPart + 3 * kTileL * kPart;
  static constexpr int kElements = 2 * kTileL * kColumns + 2 * kStage + 2 * kTileL * kTileL;
  static constexpr int64_t kBytes =
      kElements * static_cast<int64_t>(sizeof(Bf16)) + Gamma::kBytes + sizeof(ChannelNumbers<kColumns>);
  SharedTile<kColumns> k, q;
  SharedTile<kTileL> of_links, of_inverse;  // P~ and M~
  Bf16* stages;
  Gamma gamma;
  ChannelNumbers<kColumns>& numbers;
  __device__ explicit GradientShared(unsigned char* memory)
      : k{reinterpret_cast<Bf16*>(memory)},
        q{k.at + kTileL * kColumns},
        of_links{q.at + kTileL * kColumns},
        of_inverse{of_links.at + kTileL * kTileL},
        stages(of_inverse.at + kTileL * kTileL),
        gamma{reinterpret_cast<float*>(stages + 2 * kStage)},
        numbers(*reinterpret_cast<ChannelNumbers<kColumns>*>(gamma.at + kTileL * Gamma::kRow)) {}
  // The three sums of a token's channels, in place of the stages.
  static_assert(3 * Gamma::kBytes <= 2 * kStage * static_cast<int64_t>(sizeof(Bf16)));
  __device__ float* sums(int which, int i) const {
    return reinterpret_cast<float*>(stages) + (which * kTileL + i) * Gamma::kRow;
  }
};

// The operands of 64 value channels.
template <int kColumns>
struct GradientStage {
  SharedTile<kColumns> state, state_gradient;  // transposed, [64, dk]
  PartRows u, du, d_o;                         // [L, 64]
  __device__ explicit GradientStage(Bf16* memory)
      : state{memory},
        state_gradient{state.at + kColumns * kPart},
        u{state_gradient.at + kColumns * kPart},
        du{u.at + kTileL * kPart},
        d_o{du.at + kTileL * kPart} {}
};

template <int kColumns>
class ChannelGradients {
 public:
  static constexpr int kPairs = kColumns / 64;  // of 16 channels, of a warp
  static constexpr int64_t kBytes = GradientShared<kColumns>::kBytes;
  // The sums of a query, of a key in its own row, and of a key under later tokens or the state after the chunk.
  enum Sums { kQuery, kKey, kLater };

  __device__ __forceinline__ ChannelGradients(const DeltaTensors& in, const GradientOutputs& to, unsigned char* memory)
      : in_(in),
        to_(to),
        at_(memory),
        numbers_(at_.numbers),
        thread_(static_cast<int>(threadIdx.x)),
        head_(static_cast<int>(blockIdx.y)),
        b_(blockIdx.z),
        block_(thread_ / 32 % 4),
        quarter_(thread_ / 128) {}

  __device__ __forceinline__ void run(const ChunkSpan& span) {
    span_ = span;
    first_ = b_ * in_.S + span.begin;
    const int parts = (in_.dv + kPart - 1) / kPart;
    copy_rows<kTileL, kGradientThreads>(at_.k, in_.key(first_, head_), in_.channels, span.L, in_.dk);
    copy_rows<kTileL, kGradientThreads>(at_.q, in_.query(first_, head_), in_.channels, span.L, in_.dk);
    at_.gamma.template copy<kGradientThreads>(in_, first_, span.L, head_);
    commit_copies();
    copy_part(0);
    wait_copies<1>();
    __syncthreads();
    find_numbers();
    for (WarpSums<kPairs>& sums : sums_) sums = {};
    of_links_ = {}, of_inverse_ = {};
    for (int part = 0; part < parts; ++part) {
      wait_copies<0>();
      __syncthreads();
      if (part + 1 < parts) copy_part(part + 1);
      add_part(stage_of(part));
      add_states(stage_of(part), part);
    }
    scale_sums();
    write_ends();
    write_links();
    __syncthreads();
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) add_blocks(pair);
    write_sums();
    __syncthreads();
    add_own_block();
    __syncthreads();
    write_gates();
    write_keys();
    __syncthreads();
  }

 private:
  __device__ __forceinline__ GradientStage<kColumns> stage_of(int part) const {
    return GradientStage<kColumns>(at_.stages + part % 2 * GradientShared<kColumns>::kStage);
  }
  __device__ __forceinline__ int row() const {
    return 16 * block_ + warp_lane() / 4;
  }
  __device__ __forceinline__ int channel() const {
    return quarter_ * kColumns / kQuarters;
  }

  __device__ __forceinline__ void copy_part(int number) const {
    const GradientStage<kColumns> stage = stage_of(number);
    const int part = number * kPart, channels = in_.dv - part;
    const int64_t stride = static_cast<int64_t>(in_.H) * in_.dv, rows = first_ * stride + head_ * in_.dv + part;
    copy_rows<kTileL, kGradientThreads>(stage.u, in_.u + rows, stride, span_.L, channels);
    copy_rows<kTileL, kGradientThreads>(stage.du, in_.du + rows, stride, span_.L, channels);
    copy_rows<kTileL, kGradientThreads>(stage.d_o, to_.d_o + rows, stride, span_.L, channels);
    const int64_t state = static_cast<int64_t>(part) * in_.dk;
    if (!span_.begins)
      copy_rows<kTileL, kGradientThreads>(stage.state, in_.states + in_.state(b_, span_.begin, head_) + state, in_.dk,
                                          channels, in_.dk);
    if (!span_.ends)
      copy_rows<kTileL, kGradientThreads>(stage.state_gradient,
                                          in_.state_gradients + in_.state(b_, span_.begin + span_.L, head_) + state,
                                          in_.dk, channels, in_.dk);
    commit_copies();
  }
  // Norms, β and γ.
  __device__ __forceinline__ void find_numbers() const {
    const int own = thread_ % 128;
    if (quarter_ < 2) {
      const SharedTile<kColumns> rows{quarter_ == 0 ? at_.k.at : at_.q.at};
      const float norm = inverse_norm(rows, own / 2, quarter_ == 0 ? 1.0f : in_.factor);
      if (own % 2 == 0) (quarter_ == 0 ? numbers_.rk : numbers_.rq)[own / 2] = norm;
    } else if (quarter_ == 2) {
      if (own < kTileL) numbers_.beta[own] = own < span_.L ? in_.beta[(first_ + own) * in_.H + head_] : 0.0f;
    } else if (own < kColumns) {
      at_.gamma.sum(own);
    }
  }

  // Products of the warp's rows with its channels of a state.
  __device__ __forceinline__ void multiply(WarpSums<kPairs>& sums, const PartRows& left,
                                           const SharedTile<kColumns>& state) const {
#pragma unroll 1
    for (int e = 0; e < kPart; e += 16) {
      const FragmentA a = left_operand(left, 16 * block_, e);
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) sums.add(pair, a, right_operand(state, e, channel() + 16 * pair));
    }
  }
  __device__ __forceinline__ void add_part(const GradientStage<kColumns>& stage) {
    if (quarter_ <= block_) {
#pragma unroll 1
      for (int e = 0; e < kPart; e += 16) {
        const FragmentPair u = right_transposed(stage.u, 16 * quarter_, e);
        of_links_.add(0, left_operand(stage.d_o, 16 * block_, e), u);
        of_inverse_.add(0, left_operand(stage.du, 16 * block_, e), u);
      }
    }
    if (!span_.begins) {
      multiply(sums_[kQuery], stage.d_o, stage.state);
      multiply(sums_[kKey], stage.du, stage.state);
    }
    if (!span_.ends) multiply(sums_[kLater], stage.u, stage.state_gradient);
  }
  // Adds up S.dS of the part's value channels: a thread has eight channels of keys, a warp some of the value channels.
  __device__ __forceinline__ void add_states(const GradientStage<kColumns>& stage, int part) const {
    constexpr int kUnits = kColumns / 8;
    const int unit = thread_ % kUnits;
    float sums[8] = {};
    if (!span_.begins && !span_.ends)
      for (int e = thread_ / kUnits; e < kPart; e += kGradientThreads / kUnits) {
        const auto load = [&](const SharedTile<kColumns>& tile) {
          return load_pack<uint32_t, 4>(reinterpret_cast<const uint32_t*>(tile.unit(e, unit)));
        };
        const auto x = load(stage.state), y = load(stage.state_gradient);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 s = unpack_pair<Bf16>(x.at[i]), ds = unpack_pair<Bf16>(y.at[i]);
          sums[2 * i] += s.x * ds.x, sums[2 * i + 1] += s.y * ds.y;
        }
      }
    float* const to = numbers_.states[thread_ / 32] + 8 * unit;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
#pragma unroll
      for (int apart = kUnits; apart < 32; apart *= 2) sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], apart);
      if (warp_lane() < kUnits) to[i] = sums[i] + (part == 0 ? 0.0f : to[i]);
    }
  }

  // Calls body(i, d, n, half) for the lane's pairs of sums: those of token i and channels d and d + 1 are numbers 2
  // half and 2 half + 1 of sums.at[n].
  template <class Body>
  __device__ __forceinline__ void for_pairs(const Body& body) {
#pragma unroll
    for (int n = 0; n < 2 * kPairs; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half) body(row() + 8 * half, channel() + 8 * n + warp_lane() % 4 * 2, n, half);
  }
  __device__ __forceinline__ void scale(Sums which, int n, int half, const float2& by, float factor) {
    sums_[which].at[n][2 * half] *= by.x * factor;
    sums_[which].at[n][2 * half + 1] *= by.y * factor;
  }
  __device__ __forceinline__ void scale_sums() {
    for_pairs([&](int i, int d, int n, int half) {
      const float2 gamma = at_.gamma.pair(i, d), last = at_.gamma.pair(kTileL - 1, d);
      const float2 grown = shrink(gamma.x, gamma.y);
      scale(kQuery, n, half, grown, numbers_.rq[i]);
      scale(kKey, n, half, grown, -numbers_.rk[i] * numbers_.beta[i]);
      scale(kLater, n, half, shrink(last.x - gamma.x, last.y - gamma.y), numbers_.rk[i]);
    });
  }
  // Sums over the warp's tokens of what the state after the chunk gives γ.
  __device__ __forceinline__ void write_ends() {
#pragma unroll
    for (int n = 0; n < 2 * kPairs; ++n) {
      const int d = channel() + 8 * n + warp_lane() % 4 * 2;
      const float2 upper = at_.k.values(row(), d), lower = at_.k.values(row() + 8, d);
      const float(&sums)[4] = sums_[kLater].at[n];
      const float first = over_rows(sums[0] * upper.x + sums[2] * lower.x),
                  second = over_rows(sums[1] * upper.y + sums[3] * lower.y);
      if (warp_lane() < 4) numbers_.ends[block_][d] = first, numbers_.ends[block_][d + 1] = second;
    }
  }
  // The sum over the lanes of a column.
  __device__ __forceinline__ static float over_rows(float value) {
#pragma unroll
    for (int apart = 4; apart < 32; apart *= 2) value += __shfl_xor_sync(0xffffffffu, value, apart);
    return value;
  }

  // P~ and M~, and the gradient of β.
  __device__ __forceinline__ void write_links() {
    if (quarter_ > block_) return;
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int lower = 0; lower < 2; ++lower) {
        const int i = row() + 8 * lower, column = 16 * quarter_ + 8 * n + warp_lane() % 4 * 2;
        const float beta = numbers_.beta[i], of_query = numbers_.rq[i], of_key = -beta * numbers_.rk[i];
        float links[2], inverse[2];
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int j = column + c;
          const float pair = of_inverse_.at[n][2 * lower + c];
          links[c] = j <= i ? of_query * numbers_.rk[j] * of_links_.at[n][2 * lower + c] : 0.0f;
          inverse[c] = j < i ? of_key * numbers_.rk[j] * pair : 0.0f;
          // U[i] / β[i] is the residual less what earlier tokens wrote.
          if (j == i && i < span_.L)
            to_.dbeta[(first_ + i) * in_.H + head_] = beta == 0 ? 0.0f : __fdividef(pair, beta);
        }
        at_.of_links.set(i, column, links[0], links[1]);
        at_.of_inverse.set(i, column, inverse[0], inverse[1]);
      }
  }

  // Adds to the warp's sums in 16 channels what links with other blocks give.
  __device__ __forceinline__ void add_blocks(int pair) {
    const int d = channel() + 16 * pair, own = 16 * block_, next = own + 16 < kTileL ? own + 16 : own;
    WarpSums<1> query, key, later;
#pragma unroll
    for (int other = 0; other < 4; ++other) {
      const int at = 16 * other;
      if (other < block_) {
        const FragmentPair keys = RightDecays(at_.gamma, at, d, own).of(at_.k, at, d);
        query.add(0, left_operand(at_.of_links, own, at), keys);
        key.add(0, left_operand(at_.of_inverse, own, at), keys);
      } else if (other > block_) {
        const RightDecays decays(at_.gamma, at, d, next);
        later.add(0, left_transposed(at_.of_links, at, own), decays.of(at_.q, at, d));
        later.add(0, left_transposed(at_.of_inverse, at, own), decays.of(at_.k, at, d));
      }
    }
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = row() + 8 * half, column = d + 8 * n + warp_lane() % 4 * 2;
        const float2 gamma = at_.gamma.pair(i, column), begin = at_.gamma.pair(own, column),
                     end = at_.gamma.pair(next, column);
        const float2 grown = shrink(gamma.x - begin.x, gamma.y - begin.y),
                     left = shrink(end.x - gamma.x, end.y - gamma.y);
        const auto add = [&](Sums which, const WarpSums<1>& sums, const float2& by) {
          sums_[which].at[2 * pair + n][2 * half] += by.x * sums.at[n][2 * half];
          sums_[which].at[2 * pair + n][2 * half + 1] += by.y * sums.at[n][2 * half + 1];
        };
        add(kQuery, query, grown);
        add(kKey, key, grown);
        add(kLater, later, left);
      }
  }
  __device__ __forceinline__ void write_sums() {
    for_pairs([&](int i, int d, int n, int half) {
#pragma unroll
      for (int which = 0; which < 3; ++which)
        *reinterpret_cast<float2*>(at_.sums(which, i) + d) = {sums_[which].at[n][2 * half],
                                                              sums_[which].at[n][2 * half + 1]};
    });
  }

  template <class Tile>
  __device__ __forceinline__ static float element(const Tile& tile, int i, int d) {
    return __bfloat162float(tile.unit(i, d / 8)[d % 8]);
  }
  // Adds what links within the block of 16 tokens give a channel of them, and replaces the sums by those of the query,
  // of the key, and of gradients of γ from a token on to the block's end. A token's link with itself has no decay.
  __device__ __forceinline__ void add_own_block() const {
    const int own = 16 * quarter_, d = thread_ % 128;
    if (d >= kColumns) return;
    float key[16], gamma[16], later[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      key[i] = element(at_.k, own + i, d);
      gamma[i] = at_.gamma.row(own + i)[d];
      later[i] = at_.sums(kLater, own + i)[d];
    }
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float query = element(at_.q, own + i, d);
      float of_query = 0, of_key = 0;
#pragma unroll
      for (int j = 0; j < i; j += 2) {
        const float2 links = at_.of_links.values(own + i, own + j), inverse = at_.of_inverse.values(own + i, own + j);
        const float2 decays = shrink(gamma[i] - gamma[j], gamma[i] - gamma[j + 1]);
        const auto add = [&](int to, float link, float of_inverse, float decay) {
          const float before = decay * key[to];
          of_query += link * before;
          of_key += of_inverse * before;
          later[to] += decay * (link * query + of_inverse * key[i]);
        };
        add(j, links.x, inverse.x, decays.x);
        if (j + 1 < i) add(j + 1, links.y, inverse.y, decays.y);
      }
      at_.sums(kQuery, own + i)[d] += of_query;
      at_.sums(kKey, own + i)[d] += of_key;
    }
    float below = 0;
#pragma unroll
    for (int i = 15; i >= 0; --i) {
      const float query = element(at_.q, own + i, d), link = element(at_.of_links, own + i, own + i);
      const float of_query = at_.sums(kQuery, own + i)[d], of_key = at_.sums(kKey, own + i)[d];
      below += query * of_query + key[i] * (of_key - later[i]);
      at_.sums(kQuery, own + i)[d] = of_query + link * key[i];
      at_.sums(kKey, own + i)[d] = of_key + later[i] + link * query;
      at_.sums(kLater, own + i)[d] = below;
    }
    numbers_.totals[quarter_][d] = below;
  }
  // The gradient of g[i] sums those of γ from token i on. What the state after the chunk gives γ[L-1] is the sum of all
  // `ends`, and e^γ[L-1] S.dS.
  __device__ __forceinline__ void write_gates() const {
    const int own = 16 * quarter_, d = thread_ % 128;
    if (d >= in_.dk) return;
    float after = 0;
#pragma unroll
    for (int i = 0; i < kGradientThreads / 32; ++i) after += numbers_.states[i][d];
    after *= exp2_fast(at_.gamma.row(kTileL - 1)[d]);
#pragma unroll
    for (int i = 0; i < 4; ++i) after += numbers_.ends[i][d];
#pragma unroll
    for (int i = 3; i >= 0; --i)
      if (i > quarter_) after += numbers_.totals[i][d];
    float* to = to_.dg + ((first_ + own) * in_.H + head_) * in_.dk + d;
#pragma unroll
    for (int i = 0; i < 16; ++i, to += static_cast<int64_t>(in_.H) * in_.dk)
      if (own + i < span_.L) *to = at_.sums(kLater, own + i)[d] + after;
  }
  // Takes the gradients of queries and keys back through the norms: that of x is y - x r^2 (x.y), with y the sums and
  // r = 1 / |x|. A warp has a query or a key at a time.
  __device__ __forceinline__ void write_keys() const {
    for (int at = thread_ / 32; at < 2 * span_.L; at += kGradientThreads / 32) {
      const bool key = at % 2 != 0;
      const int i = at / 2;
      const SharedTile<kColumns> rows{key ? at_.k.at : at_.q.at};
      const float* const sums = at_.sums(key ? kKey : kQuery, i);
      float2 x[kPairs], y[kPairs];
      float dot = 0;
#pragma unroll
      for (int p = 0; p < kPairs; ++p) {
        const int d = 64 * p + 2 * warp_lane();
        x[p] = rows.values(i, d);
        y[p] = *reinterpret_cast<const float2*>(sums + d);
        dot += x[p].x * y[p].x + x[p].y * y[p].y;
      }
      const float norm = key ? numbers_.rk[i] : numbers_.rq[i] / in_.factor, along = norm * norm * warp_sum(dot);
      Bf16* const to = to_.dqkv + (first_ + i) * in_.channels + (key ? in_.key_channels : 0) + head_ * in_.dk;
#pragma unroll
      for (int p = 0; p < kPairs; ++p) {
        const int d = 64 * p + 2 * warp_lane();
        if (d < in_.dk)
          *reinterpret_cast<uint32_t*>(to + d) = pack_pair<Bf16>(y[p].x - x[p].x * along, y[p].y - x[p].y * along);
      }
    }
  }

  const DeltaTensors& in_;
  const GradientOutputs& to_;
  GradientShared<kColumns> at_;
  ChannelNumbers<kColumns>& numbers_;
  int thread_, head_;
  int64_t b_;
  int block_, quarter_;  // of a warp: its rows, and which quarter of channels or columns
  ChunkSpan span_;
  int64_t first_;
  WarpSums<kPairs> sums_[3];
  WarpSums<1> of_links_, of_inverse_;  // dO Uᵀ and D Uᵀ
};

}  // namespace

void delta_channel_gradients(Stream& stream, const DeltaGradients& to, const Tensor& d_o, const DeltaInputs& in) {
  launch_gradients<ChannelGradients>(stream, to, d_o, in, in.heads.values);
}

}  // namespace witan::kernels::cuda
