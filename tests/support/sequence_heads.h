// Sequences of heads divided as comm/head_exchange.h divides them, head by head, by plain loops.
#pragma once

#include <cstring>

#include "support/attention.h"
#include "support/rank.h"

namespace witan::testing {

// Of x [.., P, w] the heads [first, first + heads).
inline Tensor heads_of(Rank& rank, const Tensor& x, int64_t first, int64_t heads) {
  const int dim = x.shape().dims() - 2;
  const int64_t P = x.size(dim), row = x.size(dim + 1) * size_of(x.dtype());
  const int64_t tokens = row > 0 && P > 0 ? x.bytes() / (P * row) : 0;
  Tensor out = rank.stream.empty(x.shape().with(dim, heads), x.dtype());
  for (int64_t t = 0; t < tokens; ++t)
    std::memcpy(out.raw() + t * heads * row, x.raw() + (t * P + first) * row, static_cast<size_t>(heads * row));
  return out;
}

// The heads of x [B, S, P, w] that `of` of `ranks` attends with: its P / ranks, or the one that it shares.
inline Tensor own_heads_of(Rank& rank, const Tensor& x, int ranks, int of) {
  const int64_t P = x.size(2);
  return heads_of(rank, x, of * P / ranks, std::max<int64_t>(P / ranks, 1));
}

}  // namespace witan::testing
