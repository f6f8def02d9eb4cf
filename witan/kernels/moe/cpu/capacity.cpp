#include "witan/kernels/moe/capacity.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "witan/base/threads/threads.h"

namespace witan::kernels::cpu {
namespace {

// Moves the best `most` assignments to the front. The order is total, so that the choice is unique.
template <class A>
void best_first(int64_t* first, int64_t* last, int64_t most, const A* weights) {
  const auto rank = [&](int64_t i) { return std::isnan(weights[i]) ? -1.0F : static_cast<float>(weights[i]); };
  std::nth_element(first, first + most, last, [&](int64_t a, int64_t b) {
    const float of_a = rank(a), of_b = rank(b);
    return of_a != of_b ? of_a > of_b : a < b;
  });
}

}  // namespace

void limit_to_capacity(Stream& stream, const Assignments& kept, const Tensor& order, const Assignments& all,
                       const Tensor& weights, const Capacity& capacity) {
  const auto count = all.counts.span<int64_t>();
  std::vector<int64_t> begin(count.size());
  std::exclusive_scan(count.begin(), count.end(), begin.begin(), int64_t{0});
  std::vector<int64_t> next = begin;
  const auto id = all.ids.span<int32_t>();
  int64_t* sorted = order.data<int64_t>();
  for (size_t i = 0; i < id.size(); ++i)
    if (id[i] >= 0) sorted[next[static_cast<size_t>(id[i])]++] = static_cast<int64_t>(i);
  const auto experts = static_cast<int64_t>(count.size());
  int64_t per_expert = capacity.per_expert;
  if (capacity.tokens.defined())
    per_expert = std::min(per_expert,
                          even_capacity(capacity.tokens.data<int64_t>()[0], capacity.topk, experts, capacity.factor));

  int32_t* to = kept.ids.data<int32_t>();
  stream.pool().run(experts, [&](int64_t e) {
    const auto expert = static_cast<size_t>(e);
    int64_t *first = sorted + begin[expert], *last = first + count[expert];
    const int64_t most = std::min(count[expert], per_expert);
    if (most < count[expert] && capacity.policy == DropPolicy::probs)
      dispatch_floating(weights.dtype(), [&]<class A>() {
        if constexpr (std::is_same_v<A, Accumulator<A>>) best_first(first, last, most, weights.data<A>());
      });
    for (const int64_t* i = first; i != last; ++i) to[*i] = i < first + most ? static_cast<int32_t>(e) : -1;
    kept.counts.data<int64_t>()[e] = most;
  });
}

}  // namespace witan::kernels::cpu
