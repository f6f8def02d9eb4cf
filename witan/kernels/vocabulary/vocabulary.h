// Kernels over the vocabulary: cross entropy of next tokens, embedding, and the likeliest token.
//
// Cross entropy.
// logits, dlogits [T, V] floating   targets [T] int32   A: accumulator dtype of the logits
// weights [T] A: loss mask over denominator   losses, lse [T] A   loss, dloss [1] A
// `words`: the number of columns that stand for words. Those after them are padding: their logits are not read, and
// their gradient is exactly 0.
// A token of weight 0 is skipped: neither its logits nor its target are read (a target may be -1 there, a logit NaN);
// its loss and lse are 0, its gradient is exactly 0.
#pragma once

#include "witan/kernels/common/launch.h"

namespace witan::kernels {

// lse[t] = log sum_(v < words) exp(logits[t,v])   losses[t] = lse[t] - logits[t, targets[t]]
// loss = sum_t weights[t] losses[t]
// Rows are computed in A, with the same bits in every kernel that computes losses of whole rows; the last sum runs over
// t in float64: in order, on a GPU in a fixed tree.
void cross_entropy_forward(Stream& stream, const Tensor& loss, const Tensor& losses, const Tensor& lse,
                           const Tensor& logits, const Tensor& targets, const Tensor& weights, int64_t words);
WITAN_KERNEL_TWINS(cross_entropy_forward)

// dlogits[t,v] = dloss weights[t] (exp(logits[t,v] - lse[t]) - [begin + v = targets[t]]);  dlogits may be logits
// itself, and dloss undefined: 1. The logits are those of the ids [begin, begin + words), lse is over all.
struct WordColumns {
  int64_t begin, words;
};
void cross_entropy_backward(Stream& stream, const Tensor& dlogits, const Tensor& dloss, const Tensor& logits,
                            const Tensor& lse, const Tensor& targets, const Tensor& weights,
                            const WordColumns& columns);
WITAN_KERNEL_TWINS(cross_entropy_backward)

// Both at once for dloss = 1, which every loss has that is a root of the backward by itself: where a row fits on a
// GPU's processor the logits are read once.
struct CrossEntropyOutputs {
  Tensor loss, losses, lse;
  Tensor dlogits;  // may be the logits
};
void cross_entropy_fused(Stream& stream, const CrossEntropyOutputs& out, const Tensor& logits, const Tensor& targets,
                         const Tensor& weights, int64_t words);
WITAN_KERNEL_TWINS(cross_entropy_fused)

// The forward of logits that n ranks hold in columns: each rank finds its part [2, T] A of every token from the logits
// of the ids [begin, begin + words), none perhaps, and combines the parts [n, 2, T] of all of them. n = 1 gives the
// bits of cross_entropy_forward. part[0,t] = log sum_(v < words) exp(logits[t,v])   part[1,t] = logits[t, targets[t] -
// begin], or 0 where that is not a column
void cross_entropy_part(Stream& stream, const Tensor& part, const Tensor& logits, const Tensor& targets,
                        const Tensor& weights, const WordColumns& columns);
WITAN_KERNEL_TWINS(cross_entropy_part)
// lse[t] = log sum_r exp(parts[r,0,t])   losses[t] = lse[t] - sum_r parts[r,1,t]   loss = sum_t weights[t] losses[t]
void cross_entropy_combine(Stream& stream, const Tensor& loss, const Tensor& losses, const Tensor& lse,
                           const Tensor& parts, const Tensor& weights);
WITAN_KERNEL_TWINS(cross_entropy_combine)

// entropies[t] = -sum_(v < words) p log p with p = exp(logits[t,v] - lse[t]), the part of these columns in the entropy
// of a token's distribution; lse is over all. 0 for a token of weight 0.  entropies [T] A
void token_entropies(Stream& stream, const Tensor& entropies, const Tensor& logits, const Tensor& lse,
                     const Tensor& weights, int64_t words);
WITAN_KERNEL_TWINS(token_entropies)

// Embedding: rows of a table by id.
// ids [..] int32, T of them   w [V, D] floating   y, dy [.., D] of w's dtype   dw [V, D] gradient dtype
// The V rows are those of the ids [begin, begin + V): all of them, or a rank's part of a table that is divided by rows.
// Other ids belong to other ranks: their y is 0, and their dy is ignored.

// y[t] = w[ids[t] - begin]
void embedding_forward(Stream& stream, const Tensor& y, const Tensor& ids, const Tensor& w, int64_t begin = 0);
WITAN_KERNEL_TWINS(embedding_forward)

// dw[v] (=|+=) sum over the t with ids[t] = begin + v of dy[t]; overwriting zeroes the rows that no id names. The
// tokens are sorted by id (stable) into `order`, a workspace of [V + 1 + T] int32, so that each row has one writer and
// is summed in token order, in blocks of 64.
void embedding_backward(Stream& stream, const Tensor& dw, Write write, const Tensor& order, const Tensor& dy,
                        const Tensor& ids, int64_t begin = 0);
WITAN_KERNEL_TWINS(embedding_backward)

// The likeliest token of each row, chosen on the device: the host then reads 4 bytes a row instead of all logits.
// ids[t] = the v < words with the largest logits[t,v], the lower of equal ones; -1 where one of these logits is NaN or
// +infinity, or none is finite.  ids [T] int32, logits [T, V] floating and contiguous, 1 <= words <= V. Logits are
// compared as float32, in which samplers read them (generate/sampler.h).
void likeliest_tokens(Stream& stream, const Tensor& ids, const Tensor& logits, int64_t words);
WITAN_KERNEL_TWINS(likeliest_tokens)

}  // namespace witan::kernels
