#include "witan/kernels/attention/heads.h"

namespace witan::kernels {

// Sines are not counted: they are made once for all blocks.
void rotary_table(Stream& stream, const Tensor& table, const Tensor& positions, const RopeArgs& args) {
  WITAN_LAUNCH(stream, rotary_table, (Cost{0, bytes_of(table, positions)}), table, positions, args);
}

void split_heads(Stream& stream, const Heads& heads, const Tensor& packed, const Tensor& table, const RopeArgs& args) {
  const Cost cost{3.0 * static_cast<double>(heads.q.elements() + heads.k.elements()),
                  2 * bytes_of(packed) + bytes_of(table)};
  WITAN_LAUNCH(stream, split_heads, cost, heads, packed, table, args);
}

void merge_heads(Stream& stream, const Tensor& dpacked, const Heads& gradients, const Tensor& table,
                 const RopeArgs& args) {
  const Cost cost{3.0 * static_cast<double>(gradients.q.elements() + gradients.k.elements()),
                  2 * bytes_of(dpacked) + bytes_of(table)};
  WITAN_LAUNCH(stream, merge_heads, cost, dpacked, gradients, table, args);
}

}  // namespace witan::kernels
