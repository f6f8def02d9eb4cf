// Helpers for tests of attention: sizes and results of its kernels, tokens of its cache, and division of sequences and
// heads over ranks by plain loops, as comm/context.h divides them.
#pragma once

#include <cstdint>
#include <cstring>
#include <ostream>
#include <vector>

#include "support/rank.h"
#include "witan/kernels/attention/attention.h"
#include "witan/kernels/attention/kv_cache.h"
#include "witan/tensor/tensor.h"

namespace witan::testing {

struct AttentionSize {
  int64_t B, S, H, G, hd;
  int64_t hd_v = hd;
  int64_t window = 0;
  Shape queries() const { return {B, S, H, hd}; }
  Shape keys() const { return {B, S, G, hd}; }
  Shape values() const { return {B, S, G, hd_v}; }
  Shape results() const { return {B, S, H, hd_v}; }
  Shape lse() const { return {B, H, S}; }
  AttentionSize with_window(int64_t positions) const {
    AttentionSize other = *this;
    other.window = positions;
    return other;
  }
};

inline std::ostream& operator<<(std::ostream& out, const AttentionSize& s) {
  return out << "B=" << s.B << " S=" << s.S << " H=" << s.H << " G=" << s.G << " hd=" << s.hd << " hd_v=" << s.hd_v
             << " window=" << s.window;
}

// The outputs of the forward and backward kernels.
struct AttentionResults {
  Tensor y, lse, dq, dk, dv;
  std::vector<Tensor> all() const { return {y, lse, dq, dk, dv}; }
};

// The positions of a sequence of S tokens that `rank` of `ranks` holds: an early and a late chunk.
inline kernels::PositionRuns zigzag(int64_t S, int ranks, int rank) {
  if (ranks == 1) return {};
  const int64_t chunk = S / (2 * ranks);
  return {rank * chunk, chunk, (2 * ranks - 1 - rank) * chunk};
}

// The rows of x [B, S, ..] that rank `of` of `ranks` holds; undefined for an undefined x.
inline Tensor share_of(Rank& rank, const Tensor& x, int ranks, int of) {
  if (!x.defined()) return {};
  const int64_t B = x.size(0), S = x.size(1), tokens = S / ranks, row = B * S > 0 ? x.bytes() / (B * S) : 0;
  Tensor out = rank.stream.empty(x.shape().with(1, tokens), x.dtype());
  const kernels::PositionRuns positions = zigzag(S, ranks, of);
  for (int64_t b = 0; b < B; ++b)
    for (int64_t i = 0; i < tokens; ++i)
      std::memcpy(out.raw() + (b * tokens + i) * row, x.raw() + (b * S + positions.at(i)) * row,
                  static_cast<size_t>(row));
  return out;
}

// A rank's share of an lse [B, H, S].
inline Tensor lse_share_of(Rank& rank, const Tensor& lse, int ranks, int of) {
  const int64_t B = lse.size(0), H = lse.size(1), S = lse.size(2);
  const Tensor rows = share_of(rank, lse.reshape({B * H, S, 1}), ranks, of);
  return rows.reshape({B, H, S / ranks});
}

// The row and position of each token of these runs of a cache (kernels/attention/kv_cache.h).
inline kernels::CacheTokens cache_tokens(Rank& rank, const std::vector<kernels::CacheRun>& runs) {
  std::vector<int32_t> rows, positions;
  for (const kernels::CacheRun& run : runs)
    for (int64_t i = 0; i < run.count; ++i) {
      rows.push_back(static_cast<int32_t>(run.row));
      positions.push_back(static_cast<int32_t>(run.past + i));
    }
  const auto T = static_cast<int64_t>(rows.size());
  return {runs, rank.tensor<int32_t>({T}, rows), rank.tensor<int32_t>({T}, positions)};
}

// The heads [first, first + heads) of x [.., P, w].
inline Tensor heads_of(Rank& rank, const Tensor& x, int64_t first, int64_t heads) {
  const int dim = x.shape().dims() - 2;
  const int64_t P = x.size(dim), row = x.size(dim + 1) * size_of(x.dtype());
  const int64_t tokens = row > 0 && P > 0 ? x.bytes() / (P * row) : 0;
  Tensor out = rank.stream.empty(x.shape().with(dim, heads), x.dtype());
  for (int64_t t = 0; t < tokens; ++t)
    std::memcpy(out.raw() + t * heads * row, x.raw() + (t * P + first) * row, static_cast<size_t>(heads * row));
  return out;
}

// The heads of x [B, S, P, w] that rank `of` of `ranks` computes: P / ranks heads, or a shared one.
inline Tensor own_heads_of(Rank& rank, const Tensor& x, int ranks, int of) {
  const int64_t P = x.size(2);
  return heads_of(rank, x, of * P / ranks, std::max<int64_t>(P / ranks, 1));
}

}  // namespace witan::testing
