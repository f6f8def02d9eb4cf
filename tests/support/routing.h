// Outputs of routers, and tokens in the rows of their experts.
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "support/rank.h"
#include "witan/kernels/moe/dispatch.h"
#include "witan/kernels/moe/router.h"
#include "witan/ops/experts/grouped_linear.h"

namespace witan::testing {

// Output buffers for router kernels, for T tokens with K of E experts each and accumulator dtype A. Floating-point
// outputs are poisoned, integers are -7.
inline kernels::RouterOutputs poisoned_outputs(Rank& rank, int64_t T, int64_t E, int64_t K, DType A) {
  const kernels::RouterOutputs out{
      rank.stream.empty({T, K}, DType::i32), rank.poisoned({T, K}, A), rank.poisoned({T, E}, A), rank.poisoned({T}, A),
      rank.stream.empty({E}, DType::i64),    rank.poisoned({1}, A),    rank.poisoned({1}, A),    rank.poisoned({1}, A)};
  std::ranges::fill(out.ids.span<int32_t>(), -7);
  std::ranges::fill(out.counts.span<int64_t>(), -7);
  return out;
}

// Tokens in the rows of a receive buffer, where ops read them.
struct RoutedRows {
  ops::TokenRows rows;
  RowGroups groups;
  int64_t capacity() const { return rows.source.size(0); }
};

// ids is [T, K], with -1 for dropped assignments; the buffer has `spare` unused rows.
inline RoutedRows routed_rows(Rank& rank, const std::vector<int32_t>& ids, int64_t topk, int64_t experts,
                              int64_t spare = 0) {
  std::vector<int64_t> counts(static_cast<size_t>(experts)), begin(counts.size());
  for (const int32_t id : ids)
    if (id >= 0) ++counts[static_cast<size_t>(id)];
  std::exclusive_scan(counts.begin(), counts.end(), begin.begin(), int64_t{0});
  const int64_t all = std::ssize(ids), kept = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  const Tensor count = rank.tensor<int64_t>({experts}, counts);
  RoutedRows out{{rank.stream.empty({kept + spare}, DType::i64), rank.stream.empty({all}, DType::i64), topk},
                 {rank.tensor<int64_t>({experts}, begin), count}};
  kernels::send_order(rank.stream, out.rows.slot, out.rows.source, rank.tensor<int32_t>({all / topk, topk}, ids),
                      count);
  return out;
}

}  // namespace witan::testing
