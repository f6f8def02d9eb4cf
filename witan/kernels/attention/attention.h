// Causal grouped-query attention in tiles with an online softmax: FlashAttention-2 (Dao, 2023, arXiv:2307.08691) over
// the heads of Ainslie et al., "GQA", 2023. Nothing of size [S, S] is ever stored.
//
// q, dq [B, S, H, hd]   k, dk [B, S, G, hd]   v, dv [B, S, G, hd_v]   y, dy [B, S, H, hd_v]
// lse [B, H, S] accumulator dtype   H a multiple of G   hd_v is usually hd, and smaller in latent attention
// Query head h reads key/value head h / (H / G). All contiguous and of one floating dtype, except lse.
// sequence_ids [B, S] int32, or undefined for one sequence per row: position i attends to the positions j <= i with
// ids[b,j] == ids[b,i]. Any ids are allowed; ids that never decrease along a row (packed documents, numbered in order)
// are fast, because tiles without a visible pair are skipped. With a sliding window of w positions (Beltagy et al.,
// "Longformer", 2020, arXiv:2004.05150), causal, position i attends to the positions i - w < j <= i alone, itself among
// them: `sliding_window` = w of Mistral and Hugging Face, `window_size` = (w - 1, 0) of Megatron-LM and FlashAttention.
// Tiles outside of it cost nothing. The bits of a position's results depend only on its own row of the batch, not on
// the number of threads. On CPUs, and on GPUs with hints.repeatable or hints.batch_invariant, they depend only on the
// position's own document too, not on its place in the row: tiles begin at a document's first position. With dropout,
// whose masks depend on the place, they begin at multiples.
//
// If the keys of a sequence are spread over ranks, attention is computed block by block: `block` says which queries and
// keys of the sequence a call covers, attention_merge joins the results of several calls, and attention_backward, given
// the joined y and lse, computes each block's share of the gradients.
#pragma once

#include "witan/kernels/common/launch.h"
#include "witan/kernels/common/position_runs.h"
#include "witan/kernels/pointwise/dropout.h"

namespace witan::kernels {

// Facts that only the host knows.
struct AttentionHints {
  // The caller promises that all ids of a row are equal, so that they need not be read.
  bool one_sequence_per_row = false;
  // The backward must repeat to the bit: on a GPU cuDNN then uses an algorithm with a fixed order of sums.
  bool repeatable = false;
  // A token's forward must have the bits of a text read token by token: on a GPU Witan's own kernel computes it.
  bool batch_invariant = false;
};

// Some queries of a sequence with some of its keys: k, v, dk, dv then hold Sk tokens of a row, and position i attends
// to positions j <= i (and j > i - window), wherever the two are in their tensors. By default all queries and keys.
struct AttentionBlock {
  PositionRuns queries = {}, keys = {};
  Tensor key_ids = {};          // [B, Sk] int32, with sequence_ids [B, S] those of the queries; undefined: these too
  int64_t sequence_length = 0;  // of the whole sequence, by which dropout counts; 0: S
};

struct AttentionInputs {
  Tensor q, k, v;
  Tensor sequence_ids;
  double scale = 1;
  Dropout dropout = {};  // of probabilities
  AttentionHints hints = {};
  AttentionBlock block = {};
  int64_t window = 0;     // positions that a query sees, itself included; 0: all up to its own
  Tensor workspace = {};  // for cuDNN, if it needs more than Stream::scratch (attention_path.h)
};

// s[i,j] = scale * q[b,i,h,:] . k[b,j,g,:],  lse[b,h,i] = log sum_j exp s[i,j],  p = exp(s - lse)
// y[b,i,h,:] = sum_j m[i,j] p[i,j] v[b,j,g,:]
// where m is 1 or, with dropout, what kernels/pointwise/dropout.h multiplies element ((b H + h) S + i) S4 + j by, S4 =
// S rounded up to a multiple of 4: 0, or 1 / (1 - p). Backward draws it again. In a block i and j are positions, and S
// that of the whole sequence; its runs of keys must then begin and end at multiples of 4, in their tensor and in the
// sequence. A query that sees no key of its block has y = 0 and lse = -infinity.
void attention_forward(Stream& stream, const Tensor& y, const Tensor& lse, const AttentionInputs& in);
WITAN_KERNEL_TWINS(attention_forward)

// With delta[i] = dy[i,:] . y[i,:], which is sum_j m[i,j] p[i,j] (dy[i,:] . v[j,:]):
//   ds = p * (m * dy v^T - delta),  dq = scale * ds k,  dk = scale * ds^T q,  dv = (m * p)^T dy
// dk and dv sum the H / G query heads of their group. Overwrites dq, dk and dv.
// For a block, y and lse are those of the whole sequence, over all keys that a query sees; dq is the share of these
// keys, and dk and dv are the shares of these queries.
struct AttentionGradients {
  Tensor dq, dk, dv;
};
void attention_backward(Stream& stream, const AttentionGradients& to, const Tensor& dy, const Tensor& y,
                        const Tensor& lse, const AttentionInputs& in);
WITAN_KERNEL_TWINS(attention_backward)

// Joins two results of the same queries, over keys of which none is in both:
//   l = log(exp lse + exp lse_part),  y = exp(lse - l) y + exp(lse_part - l) y_part,  lse = l
// y, y_part [B, S, H, hd_v]   lse, lse_part [B, H, S]. y and both lse in the accumulator dtype of y_part; y and lse are
// overwritten. A query without keys (lse = -infinity) in one of the two keeps the other's bits.
void attention_merge(Stream& stream, const Tensor& y, const Tensor& lse, const Tensor& y_part, const Tensor& lse_part);
WITAN_KERNEL_TWINS(attention_merge)

// For generation: q [B, Sq, H, hd] and y [B, Sq, H, hd_v] are positions past .. past + Sq - 1 of their rows; k_cache
// [B, Smax, G, hd] and v_cache [B, Smax, G, hd_v] already hold the keys and values of positions 0 .. past + Sq - 1, and
// later positions are not read (past + Sq <= Smax). Query i attends to the cache's positions 0 .. past + i, or to the
// last `window` of them if that is not 0. The mathematics is that of attention_forward: the CPU twins have its bits,
// others agree to a few roundings of the dtype. lse [B, H, Sq] as in attention_forward, or undefined if not wanted.
void attention_decode(Stream& stream, const Tensor& y, const Tensor& q, const Tensor& k_cache, const Tensor& v_cache,
                      int64_t past, double scale, int64_t window = 0, const Tensor& lse = {});
WITAN_KERNEL_TWINS(attention_decode)

// Attention sinks: each head has a learned logit without a value in the softmax of every query, so that a head may
// attend to nothing (gpt-oss, arXiv:2508.10925; softmax_type "learnable" of Megatron-LM). These kernels correct the y
// and lse of any attention kernel. Its backward needs no change: with the corrected y and lse it forms the
// probabilities of the longer softmax. y, dy [B, S, H, hd_v], sinks [H] of one floating dtype, lse [B, H, S]
// accumulator dtype, all contiguous.
//
// l = log(exp lse + exp sinks[h]),  y = exp(lse - l) y,  lse = l.  Overwrites y and lse, which must cover all keys that
// a query sees.
void attention_sinks_forward(Stream& stream, const Tensor& y, const Tensor& lse, const Tensor& sinks);
WITAN_KERNEL_TWINS(attention_sinks_forward)

// With y and lse of the forward:  dsinks[h] (=|+=) - sum_b,i exp(sinks[h] - lse[b,h,i]) dy[b,i,h,:] . y[b,i,h,:]
// dsinks [H] in the gradient dtype
void attention_sinks_backward(Stream& stream, const Tensor& dsinks, Write write, const Tensor& dy, const Tensor& y,
                              const Tensor& lse, const Tensor& sinks);
WITAN_KERNEL_TWINS(attention_sinks_backward)

}  // namespace witan::kernels
