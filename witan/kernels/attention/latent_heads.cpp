#include "witan/kernels/attention/latent_heads.h"

namespace witan::kernels {
namespace {

double rows_bytes(const LatentRows& rows) {
  return bytes_of(rows.q, rows.kv, rows.rope_key);
}

// Channels that rotate in all heads.
double turned(const Heads& heads, const LatentRows& rows) {
  return static_cast<double>(heads.q.elements() / heads.q.shape().last() * rows.rope_key.shape().last());
}

}  // namespace

void latent_heads(Stream& stream, const Heads& heads, const LatentRows& rows, const Tensor& table,
                  const RopeArgs& args) {
  const Cost cost{3 * 2 * turned(heads, rows), rows_bytes(rows) + bytes_of(heads.q, heads.k, heads.v, table)};
  WITAN_LAUNCH(stream, latent_heads, cost, heads, rows, table, args);
}

// A key's channels are added up, and turned once.
void latent_heads_backward(Stream& stream, const LatentRows& to, const Heads& gradients, const Tensor& table,
                           const RopeArgs& args) {
  const double key = static_cast<double>(to.rope_key.elements());
  const Cost cost{4 * turned(gradients, to) + 3 * key,
                  rows_bytes(to) + bytes_of(gradients.q, gradients.k, gradients.v, table)};
  WITAN_LAUNCH(stream, latent_heads_backward, cost, to, gradients, table, args);
}

}  // namespace witan::kernels
