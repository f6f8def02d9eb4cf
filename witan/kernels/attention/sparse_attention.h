// DeepSeek Sparse Attention (DeepSeek-V3.2-Exp, 2025): a lightning indexer scores the keys that a token sees, the token
// attends to the K keys with the largest scores, and the indexer learns from the distribution of attention.
//
// Keys lie in R rows of C slots: the rows of a batch (C = S), or of generation's caches. T tokens choose among them.
// All tensors are contiguous. d and H are the indexer's channels and heads; hd, hd_v and N those of attention, every
// head of which has its own keys. Sums are in float32 or wider, in an order that only a token's own keys decide:
// neither other tokens nor the place of a document in its row change a bit.
#pragma once

#include "witan/kernels/common/launch.h"

namespace witan::kernels {

// The slots that tokens see.
struct KeyRows {
  int64_t rows = 0, slots = 0;  // R and C
  // [T] int32: token t sees the slots 0 .. positions[t] of row row_of[t]. Undefined in training: token t is number
  // first + t of the batch's R C, and sees those of its row up to its own.
  Tensor row_of = {}, positions = {};
  Tensor ids = {};    // [R, C] int32: in training, documents that do not see each other; undefined: a row is one
  int64_t first = 0;  // the number of token 0, in training
};

struct IndexInputs {
  Tensor q, w, k;    // [T, H, d], [T, H], [R, C, d]
  double scale = 1;  // of scores: 1 / sqrt(d H)
  KeyRows where;
};

// scores[t,j] = scale sum_h w[t,h] max(q[t,h,:] . k[row,j,:], 0), or -infinity for slots that token t does not see
// scores [T, C] accumulator dtype
void index_scores(Stream& stream, const Tensor& scores, const IndexInputs& in);
WITAN_KERNEL_TWINS(index_scores)

// With g[t,j] = dscores[t,j] scale [q . k > 0]:  dq[t,h,:] = w[t,h] sum_j g[t,j] k[j,:]
//   dw[t,h] = sum_j g[t,j] (q[t,h,:] . k[j,:])    dk[j,:] += sum_t,h w[t,h] g[t,j] q[t,h,:]
// dscores [T, C] accumulator dtype, 0 for slots that are not seen   dq, dw of the inputs' dtype
// dk [R, C, d] accumulator dtype: calls for one part of the tokens after another add to it
struct IndexGradients {
  Tensor dq, dw, dk;
};
void index_scores_backward(Stream& stream, const IndexGradients& to, const Tensor& dscores, const IndexInputs& in);
WITAN_KERNEL_TWINS(index_scores_backward)

// chosen[t,:] = the K slots with the largest scores among those that are not -infinity, in ascending order, and -1
// after them if they are fewer. Of equal scores the lower slot wins. chosen [T, K] int32, K <= C   scores [T, C]
// accumulator dtype
void choose_keys(Stream& stream, const Tensor& chosen, const Tensor& scores);
WITAN_KERNEL_TWINS(choose_keys)

// scores[t,j] = -infinity for slots that are not in chosen[t,:];  scores [T, C], chosen [T, K] as in choose_keys
void keep_chosen(Stream& stream, const Tensor& scores, const Tensor& chosen);
WITAN_KERNEL_TWINS(keep_chosen)

struct SparseInputs {
  Tensor q, k, v;      // [T, N, hd], [R, C, N, hd], [R, C, N, hd_v]
  Tensor chosen = {};  // [T, K] int32, ascending, with -1 at the end; undefined: all slots that a token sees
  KeyRows where;       // with `chosen`, ids only say in which order SparseMemory's kernels form sums
  double scale = 1;
};

// Workspace of the CUDA twins in training. 16-bit heads whose channels are multiples of 8 run on tensor cores where it
// is defined, in tiles of all keys of which a mask says what was chosen, with sums in float32.
// chunks [R, C + 2] int32   mask [T, ceil(C / 64)] int64
struct SparseMemory {
  Tensor chunks, mask;
};
// Undefined tensors where the stream does not plan for CUDA.
SparseMemory sparse_memory(Stream& stream, const SparseInputs& in);

// Attention to the chosen slots:  s[t,n,m] = scale q[t,n,:] . k[row,chosen[t,m],n,:]
// lse[t,n] = log sum_m exp s[t,n,m]    y[t,n,:] = sum_m exp(s[t,n,m] - lse[t,n]) v[row,chosen[t,m],n,:]
// y [T, N, hd_v]   lse [R, N, C] accumulator dtype, as attention_forward's (attention.h); undefined in generation
void sparse_attention_forward(Stream& stream, const Tensor& y, const Tensor& lse, const SparseInputs& in,
                              const SparseMemory& memory = {});
WITAN_KERNEL_TWINS(sparse_attention_forward)

// The tokens that have chosen each slot: token begin[s] .. begin[s + 1] of `tokens` for slot s of all R C, in ascending
// order. In training only.
// begin [R C + 1] int64   tokens [R C K] int32, as far as they are used
struct ChoosersOfKeys {
  Tensor begin, tokens;
};
void choosers_of_keys(Stream& stream, const ChoosersOfKeys& to, const Tensor& chosen, const KeyRows& where);
WITAN_KERNEL_TWINS(choosers_of_keys)

// The gradients of sparse_attention_forward, in training. dq, dk, dv of the inputs' shapes and dtype; overwritten.
// delta [T, N] accumulator dtype: a workspace, which becomes dy . y
// With `memory`, the choosers are not read.
struct SparseGradients {
  Tensor dq, dk, dv, delta;
  SparseMemory memory = {};
};
void sparse_attention_backward(Stream& stream, const SparseGradients& to, const Tensor& dy, const Tensor& y,
                               const Tensor& lse, const SparseInputs& in, const ChoosersOfKeys& choosers);
WITAN_KERNEL_TWINS(sparse_attention_backward)

// The mean of heads' probabilities:  p[t,j] = 1 / heads sum_n exp(scale q[t,n,:] . k[row,j,n,:] - lse[t,n]) for slots
// that token t attends to, and 0 for others, in training;  p [T, C], lse [R, N, C] accumulator dtype
// in.v is not read   `heads`: of all ranks that add up their p
void attention_distribution(Stream& stream, const Tensor& p, const Tensor& lse, const SparseInputs& in, int64_t heads);
WITAN_KERNEL_TWINS(attention_distribution)

// The Kullback-Leibler divergence of the softmax of scores from p, and its gradient, which replaces scores:
//   q[t,:] = softmax scores[t,:]   divergence[t] = sum_j p[t,j] (log p[t,j] - log q[t,j])   scores[t,j] = q[t,j] -
//   p[t,j]
// and 0 for scores of -infinity. Tokens with a negative id are padding: their results are 0.
// divergence [T], scores, p [T, C] accumulator dtype   ids [T] int32 or undefined
void index_divergence(Stream& stream, const Tensor& divergence, const Tensor& scores, const Tensor& p,
                      const Tensor& ids);
WITAN_KERNEL_TWINS(index_divergence)

// share[0] = 1 / the number of tokens with an id that is not negative, or 0 if there is none
// mean[0] = share[0] sum_t values[t];  share, mean [1] and values [T] of one accumulator dtype   ids [T] int32
void mean_over_tokens(Stream& stream, const Tensor& mean, const Tensor& share, const Tensor& values, const Tensor& ids);
WITAN_KERNEL_TWINS(mean_over_tokens)

// y = a[0] b[0] x;  y, x of one floating dtype   a, b [1] of its accumulator dtype
void scale_by(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& a, const Tensor& b);
WITAN_KERNEL_TWINS(scale_by)

}  // namespace witan::kernels
