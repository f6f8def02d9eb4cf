#include "witan/kernels/attention/qk_clip.h"

#include "witan/kernels/attention/attention_cost.h"

namespace witan::kernels {

void attention_max_logits(Stream& stream, const Tensor& largest, const AttentionInputs& in) {
  const Cost cost{2 * visible_pairs(in) * static_cast<double>(in.q.size(3)),
                  bytes_of(largest, in.q, in.k, in.sequence_ids, in.block.key_ids)};
  WITAN_LAUNCH(stream, attention_max_logits, cost, largest, in);
}

void clip_projection(Stream& stream, const ClippedTensors& to, const Tensor& largest, int64_t groups,
                     const Tensor& step, const ClipArgs& args) {
  const Cost cost{static_cast<double>(to.value.elements()), 2 * bytes_of(to.value, to.remainder) + bytes_of(largest)};
  WITAN_LAUNCH(stream, clip_projection, cost, to, largest, groups, step, args);
}

}  // namespace witan::kernels
