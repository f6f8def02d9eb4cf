// A sequence divided as comm/context.h divides it, row by row, by plain loops.
#pragma once

#include <cstring>

#include "support/rank.h"
#include "witan/kernels/attention/attention.h"

namespace witan::testing {

inline kernels::PositionRuns zigzag(int64_t S, int ranks, int rank) {
  if (ranks == 1) return {};
  const int64_t chunk = S / (2 * ranks);
  return {rank * chunk, chunk, (2 * ranks - 1 - rank) * chunk};
}

// The rows of x [B, S, ..] that `of` of `ranks` holds; undefined of nothing.
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

// The same of an lse [B, H, S].
inline Tensor lse_share_of(Rank& rank, const Tensor& lse, int ranks, int of) {
  const int64_t B = lse.size(0), H = lse.size(1), S = lse.size(2);
  const Tensor rows = share_of(rank, lse.reshape({B * H, S, 1}), ranks, of);
  return rows.reshape({B, H, S / ranks});
}

}  // namespace witan::testing
