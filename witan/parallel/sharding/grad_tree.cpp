#include "witan/parallel/sharding/grad_tree.h"

#include <bit>

#include "witan/kernels/pointwise/elementwise.h"

namespace witan::grad_tree {
namespace {

// So many additions of one level to another, as kernels::add counts them.
void count_additions(Stream& stream, const Tensor& level, double times) {
  if (times == 0) return;  // Stream::count takes no calls for one
  stream.count(
      "add", {times * static_cast<double>(level.elements()), times * kernels::bytes_of(level, level, level), 0, times});
}

}  // namespace

int64_t level_of(int64_t index) {
  return std::popcount(static_cast<uint64_t>(index));
}

int64_t level_count(int64_t micro_batches) {
  return std::bit_width(static_cast<uint64_t>(micro_batches));
}

// One addition for each bit that counting on carries: in total as many as there are micro-batches, less one.
void sum_levels(Stream& stream, const Tensor& levels, int64_t index, int64_t micro_batches) {
  const int64_t end = micro_batches - 1;
  const auto level = [&](int64_t i) { return levels.narrow(0, i, 1); };
  if (stream.is_meta() && index < end) {
    if (index == 0) count_additions(stream, level(0), static_cast<double>(end - level_of(end)));
    return;
  }
  const int64_t top = level_of(index);
  const int64_t bottom = index == end ? 0 : top - std::countr_one(static_cast<uint64_t>(index));
  for (int64_t i = top; i > bottom; --i) kernels::add(stream, level(i - 1), level(i - 1), level(i));
}

void sum_sources(Stream& stream, const Tensor& sources) {
  const auto source = [&](int64_t i) { return sources.narrow(0, i, 1); };
  for (int64_t apart = 1; apart < sources.size(0); apart *= 2)
    for (int64_t i = 0; i + apart < sources.size(0); i += 2 * apart)
      kernels::add(stream, source(i), source(i), source(i + apart));
}

}  // namespace witan::grad_tree
