#include "witan/kernels/moe/capacity.h"

namespace witan::kernels {

void limit_to_capacity(Stream& stream, const Assignments& kept, const Tensor& order, const Assignments& all,
                       const Tensor& weights, const Capacity& capacity) {
  const Cost cost{0, bytes_of(kept.ids, kept.counts, all.ids, all.counts, weights) + 2 * bytes_of(order)};
  WITAN_LAUNCH(stream, limit_to_capacity, cost, kept, order, all, weights, capacity);
}

}  // namespace witan::kernels
