#include "witan/parallel/sharding/grad_tree.h"

#include <algorithm>
#include <bit>

#include "witan/kernels/elementwise.h"

namespace witan::grad_tree {

int64_t level_of(int64_t index) {
  return std::popcount(static_cast<uint64_t>(index));
}

int64_t level_count(int64_t micro_batches) {
  int64_t levels = 1;
  for (int64_t index = 0; index < micro_batches; ++index) levels = std::max(levels, level_of(index) + 1);
  return levels;
}

// One addition for each bit that counting on carries.
void sum_levels(Stream& stream, const Tensor& levels, int64_t index, bool last) {
  const int64_t top = level_of(index);
  const int64_t bottom = last ? 0 : top - std::countr_one(static_cast<uint64_t>(index));
  const auto level = [&](int64_t i) { return levels.narrow(0, i, 1); };
  for (int64_t i = top; i > bottom; --i) kernels::add(stream, level(i - 1), level(i - 1), level(i));
}

void sum_sources(Stream& stream, const Tensor& sources) {
  const auto source = [&](int64_t i) { return sources.narrow(0, i, 1); };
  for (int64_t apart = 1; apart < sources.size(0); apart *= 2)
    for (int64_t i = 0; i + apart < sources.size(0); i += 2 * apart)
      kernels::add(stream, source(i), source(i), source(i + apart));
}

}  // namespace witan::grad_tree
