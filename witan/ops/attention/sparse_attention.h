// DeepSeek Sparse Attention; mathematics in kernels/attention/sparse_attention.h. Scores of all pairs of tokens are
// formed for some tokens at a time, so that nothing of size [S, S] is stored. Throws ShapeError.
#pragma once

#include "witan/autograd/tape.h"
#include "witan/comm/group.h"
#include "witan/kernels/attention/sparse_attention.h"

namespace witan::ops {

// The most scores that exist at a time.
inline constexpr int64_t kMostIndexScores = int64_t{1} << 24;

// The keys that tokens choose, [T, K] int32, K = min(topk, in.where.slots).
Tensor choose_keys(Stream& stream, const kernels::IndexInputs& in, int64_t topk);

// q, k [B, S, N, hd], v [B, S, N, hd_v], chosen [B S, K] -> y [B, S, N, hd_v] and lse [B, N, S], in the accumulator
// dtype and without a gradient. ids [B, S] int32: the documents in which keys were chosen, by which a GPU orders sums;
// undefined: a row is one.
struct SparseAttention {
  Var y;
  Tensor lse;
};
SparseAttention sparse_attention(Tape& tape, const Var& q, const Var& k, const Var& v, const Tensor& chosen,
                                 double scale, const Tensor& ids = {});

// lse [B, N, S] of attention to all keys that a token sees (kernels/attention/attention.h).
Tensor attention_sums(Stream& stream, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& ids,
                      double scale);

// The attention whose distribution an indexer learns, of this rank's heads.
struct IndexerTarget {
  Tensor q, k, lse;         // [B, S, N, hd] twice, [B, N, S] accumulator dtype
  Tensor chosen = {};       // [B S, K]: the divergence is over these keys; undefined: over all that a token sees
  double scale = 1;         // of attention's logits
  Group* tensor = nullptr;  // ranks that divide the heads, which add up their distributions; null: none
};

struct IndexerHeads {
  Var q, w, k;  // [B, S, H, d], [B, S, H], [B, S, d]
};

// The mean over tokens of the Kullback-Leibler divergence of the softmax of an indexer's scores from attention's
// distribution, which is the mean of its heads' -> [1]. The forward computes the gradients too. ids [B, S]: documents,
// and padding as negative ones; undefined: each row is one document. With `tensor` a collective of the forward; all
// ranks must have the same heads of the indexer, and get the same loss and gradients.
Var indexer_loss(Tape& tape, const IndexerHeads& indexer, double index_scale, const IndexerTarget& target,
                 const Tensor& ids);

}  // namespace witan::ops
