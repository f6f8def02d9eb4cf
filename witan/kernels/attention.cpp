#include "witan/kernels/attention.h"

namespace witan::kernels {
namespace {

// Query-key pairs of all rows and heads: Sq queries, the first of which sees `past` keys and itself. Documents make it
// fewer, which no shape tells.
double causal_pairs(const Tensor& q, int64_t past) {
  const double Sq = static_cast<double>(q.size(1));
  return static_cast<double>(q.size(0) * q.size(2)) * Sq * (static_cast<double>(past) + (Sq + 1) / 2);
}

double head_size(const Tensor& q) {
  return static_cast<double>(q.size(3));
}

}  // namespace

// Two products of hd multiply-adds for each pair.
void attention_forward(Stream& stream, const Tensor& y, const Tensor& lse, const AttentionInputs& in) {
  const Cost cost{4 * causal_pairs(in.q, 0) * head_size(in.q), bytes_of(y, lse, in.q, in.k, in.v, in.sequence_ids)};
  WITAN_LAUNCH(stream, attention_forward, cost, y, lse, in);
}

// Five products: s again, dy v^T, and one for each gradient.
void attention_backward(Stream& stream, const AttentionGradients& to, const Tensor& dy, const Tensor& y,
                        const Tensor& lse, const AttentionInputs& in) {
  const Cost cost{10 * causal_pairs(in.q, 0) * head_size(in.q),
                  bytes_of(to.dq, to.dk, to.dv, dy, y, lse, in.q, in.k, in.v, in.sequence_ids)};
  WITAN_LAUNCH(stream, attention_backward, cost, to, dy, y, lse, in);
}

void attention_decode(Stream& stream, const Tensor& y, const Tensor& q, const Tensor& k_cache, const Tensor& v_cache,
                      int64_t past, double scale) {
  const int64_t keys = past + q.size(1), key_bytes = k_cache.size(2) * k_cache.size(3) * size_of(k_cache.dtype());
  const Cost cost{4 * causal_pairs(q, past) * head_size(q),
                  bytes_of(y, q) + 2 * static_cast<double>(q.size(0) * keys * key_bytes)};
  WITAN_LAUNCH(stream, attention_decode, cost, y, q, k_cache, v_cache, past, scale);
}

}  // namespace witan::kernels
