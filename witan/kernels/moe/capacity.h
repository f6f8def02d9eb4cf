// Expert capacity: which assignments an expert keeps when more come than it may take (Lepikhin et al., "GShard", 2021).
// An assignment is a pair (t, k), numbered t K + k.
#pragma once

#include "witan/kernels/common/launch.h"

namespace witan {

enum class DropPolicy : uint8_t { probs, position };

}  // namespace witan

namespace witan::kernels {

struct Assignments {
  Tensor ids;     // [T, K] int32: expert of each assignment; -1: dropped, or never one
  Tensor counts;  // [E] int64: the histogram of ids
};
struct Capacity {
  int64_t per_expert;
  DropPolicy policy;
  // If some rows are padding, per_expert is an upper bound of even_capacity() of the tokens.
  double factor = 0;
  int64_t topk = 0;
  Tensor tokens = {};  // [1] int64: how many there are; undefined: all rows are tokens
};

// The even share of an expert of so many tokens of topk choices each, times `factor`, rounded up; at most all tokens.
constexpr int64_t even_capacity(int64_t tokens, int64_t topk, int64_t experts, double factor) {
  const double share = static_cast<double>(tokens * topk) / static_cast<double>(experts) * factor;
  if (share >= static_cast<double>(tokens)) return tokens;
  const auto whole = static_cast<int64_t>(share);
  return static_cast<double>(whole) < share ? whole + 1 : whole;
}

// Each expert keeps `per_expert` of its assignments, or all if there are no more; others become -1. probs: those of the
// largest weights, of equal weights (and NaN, which counts as least) the first; position: the first. The order is that
// of the numbers: who calls numbers tokens as none of them is to be favoured (ops::limit_to_capacity). Weights compare
// as float32: equal tokens at the beginning of a text tie in exact arithmetic, and must tie however float64 was
// rounded. weights [T, K] float32 or float64; order, a workspace of [T K] int64, holds the assignments sorted by
// expert. `all` has nothing dropped; where ids are -1, kept.ids must be so when it comes.
void limit_to_capacity(Stream& stream, const Assignments& kept, const Tensor& order, const Assignments& all,
                       const Tensor& weights, const Capacity& capacity);
WITAN_KERNEL_TWINS(limit_to_capacity)

}  // namespace witan::kernels
