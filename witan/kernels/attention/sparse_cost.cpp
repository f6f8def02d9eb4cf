#include <algorithm>

#include "witan/kernels/attention/sparse_attention.h"

namespace witan::kernels {
namespace {

double slots_of_all(const Tensor& tokens, int64_t slots) {
  return static_cast<double>(tokens.size(0)) * static_cast<double>(slots);
}

// Pairs of a token and a slot that it sees: half of all in training, and all in generation, where positions are on the
// device.
double seen_pairs(const Tensor& q, const KeyRows& where) {
  return slots_of_all(q, where.slots) / (where.positions.defined() ? 1 : 2);
}

// Pairs of a token and a slot that it attends to.
double attended_pairs(const SparseInputs& in) {
  const double seen = seen_pairs(in.q, in.where);
  return in.chosen.defined() ? std::min(seen, static_cast<double>(in.chosen.elements())) : seen;
}

// The channels of all heads of a token: tokens are [T, N, hd] or [B, S, N, hd].
double channels_of_token(const Tensor& tokens) {
  const int dims = tokens.shape().dims();
  return static_cast<double>(tokens.size(dims - 2) * tokens.size(dims - 1));
}

double bytes_of_index(const IndexInputs& in) {
  return bytes_of(in.q, in.w, in.k, in.where.ids);
}

}  // namespace

void index_scores(Stream& stream, const Tensor& scores, const IndexInputs& in) {
  const Cost cost{2 * seen_pairs(in.q, in.where) * channels_of_token(in.q), bytes_of(scores) + bytes_of_index(in)};
  WITAN_LAUNCH(stream, index_scores, cost, scores, in);
}

// Three products: q . k again, and one for each of dq and dk.
void index_scores_backward(Stream& stream, const IndexGradients& to, const Tensor& dscores, const IndexInputs& in) {
  const Cost cost{6 * seen_pairs(in.q, in.where) * channels_of_token(in.q),
                  bytes_of(to.dq, to.dw, to.dk, dscores) + bytes_of_index(in)};
  WITAN_LAUNCH(stream, index_scores_backward, cost, to, dscores, in);
}

void choose_keys(Stream& stream, const Tensor& chosen, const Tensor& scores) {
  const Cost cost{4 * static_cast<double>(scores.elements()), bytes_of(chosen, scores)};
  WITAN_LAUNCH(stream, choose_keys, cost, chosen, scores);
}

void keep_chosen(Stream& stream, const Tensor& scores, const Tensor& chosen) {
  const Cost cost{0, 2 * bytes_of(scores) + bytes_of(chosen)};
  WITAN_LAUNCH(stream, keep_chosen, cost, scores, chosen);
}

SparseMemory sparse_memory(Stream& stream, const SparseInputs& in) {
  const int64_t hd = in.q.size(2), hd_v = in.v.size(3), most = 256;
  const bool tiles = size_of(in.q.dtype()) == 2 && hd % 8 == 0 && hd_v % 8 == 0 && std::max(hd, hd_v) <= most;
  if (!stream.plans_for_cuda() || !tiles) return {};
  const auto empty = [&](const Shape& shape, DType dtype) { return stream.empty(shape, dtype, MemoryTag::workspace); };
  const int64_t slots = in.where.slots;
  return {empty({in.where.rows, slots + 2}, DType::i32), empty({in.q.size(0), (slots + 63) / 64}, DType::i64)};
}

void sparse_attention_forward(Stream& stream, const Tensor& y, const Tensor& lse, const SparseInputs& in,
                              const SparseMemory& memory) {
  const Cost cost{2 * attended_pairs(in) * (channels_of_token(in.q) + channels_of_token(y)),
                  bytes_of(y, lse, in.q, in.k, in.v, in.chosen)};
  WITAN_LAUNCH(stream, sparse_attention_forward, cost, y, lse, in, memory);
}

void choosers_of_keys(Stream& stream, const ChoosersOfKeys& to, const Tensor& chosen, const KeyRows& where) {
  const Cost cost{4 * slots_of_all(chosen, where.slots), bytes_of(to.begin, to.tokens, chosen)};
  WITAN_LAUNCH(stream, choosers_of_keys, cost, to, chosen, where);
}

// Five products as of attention_backward, with the scores and dy v^T once more for dk and dv.
void sparse_attention_backward(Stream& stream, const SparseGradients& to, const Tensor& dy, const Tensor& y,
                               const Tensor& lse, const SparseInputs& in, const ChoosersOfKeys& choosers) {
  const Cost cost{2 * attended_pairs(in) * (4 * channels_of_token(in.q) + 3 * channels_of_token(y)),
                  bytes_of(to.dq, to.dk, to.dv, to.delta, dy, y, lse, in.q, in.k, in.v, in.chosen) +
                      bytes_of(choosers.begin, choosers.tokens)};
  WITAN_LAUNCH(stream, sparse_attention_backward, cost, to, dy, y, lse, in, choosers);
}

void attention_distribution(Stream& stream, const Tensor& p, const Tensor& lse, const SparseInputs& in, int64_t heads) {
  const Cost cost{2 * attended_pairs(in) * channels_of_token(in.q), bytes_of(p, lse, in.q, in.k, in.chosen)};
  WITAN_LAUNCH(stream, attention_distribution, cost, p, lse, in, heads);
}

void index_divergence(Stream& stream, const Tensor& divergence, const Tensor& scores, const Tensor& p,
                      const Tensor& ids) {
  const Cost cost{6 * static_cast<double>(scores.elements()), bytes_of(divergence, p, ids) + 2 * bytes_of(scores)};
  WITAN_LAUNCH(stream, index_divergence, cost, divergence, scores, p, ids);
}

void mean_over_tokens(Stream& stream, const Tensor& mean, const Tensor& share, const Tensor& values,
                      const Tensor& ids) {
  const Cost cost{static_cast<double>(values.elements()), bytes_of(mean, share, values, ids)};
  WITAN_LAUNCH(stream, mean_over_tokens, cost, mean, share, values, ids);
}

void scale_by(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& a, const Tensor& b) {
  const Cost cost{static_cast<double>(x.elements()), bytes_of(y, x, a, b)};
  WITAN_LAUNCH(stream, scale_by, cost, y, x, a, b);
}

}  // namespace witan::kernels
