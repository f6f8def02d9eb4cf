#include "witan/kernels/moe/expert_pool.h"

namespace witan::kernels {

void limit_to_pool(Stream& stream, const PoolAssignments& sent, const Tensor& fill, const Tensor& ids,
                   const Tensor& counts, const PoolWave& wave) {
  WITAN_LAUNCH(stream, limit_to_pool, (Cost{0, bytes_of(sent.ids, sent.counts, ids, counts)}), sent, fill, ids, counts,
               wave);
}

void number_rows(Stream& stream, const Tensor& index) {
  WITAN_LAUNCH(stream, number_rows, (Cost{0, bytes_of(index)}), index);
}

void skip_overflow(Stream& stream, const Tensor& step, const Tensor& fill) {
  WITAN_LAUNCH(stream, skip_overflow, (Cost{0, bytes_of(fill)}), step, fill);
}

}  // namespace witan::kernels
