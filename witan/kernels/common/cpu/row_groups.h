// Row-wise loops over the rows of groups, for the CPU twins of kernels that take RowGroups.
#pragma once

#include <algorithm>
#include <vector>

#include "witan/kernels/common/cpu/rows.h"
#include "witan/tensor/ragged.h"

namespace witan::kernels::cpu {

// body(t, e) for each row t of x, seen as [T, D], that lies in group e. The groups are cut as if their rows lay end to
// end, so that one large group keeps every thread busy.
template <class Body>
void for_rows_by_group(Stream& stream, const Tensor& x, const RowGroups& groups, const Body& body) {
  const auto begins = groups.begin.span<int64_t>(), counts = groups.count.span<int64_t>();
  std::vector<int64_t> before(begins.size() + 1, 0);  // rows in the groups before each
  for (size_t e = 0; e < begins.size(); ++e) before[e + 1] = before[e] + counts[e];
  const int64_t grain = kTaskElements / std::max<int64_t>(x.shape().last(), 1);
  stream.pool().for_ranges(before.back(), grain, [&](int64_t begin, int64_t end) {
    auto e = static_cast<size_t>(std::upper_bound(before.begin(), before.end(), begin) - before.begin()) - 1;
    for (int64_t i = begin; i < end; ++i) {
      while (i >= before[e + 1]) ++e;
      body(begins[e] + i - before[e], static_cast<int64_t>(e));
    }
  });
}

// body(t) for each row t of x that lies in a group; for every row when groups.begin is undefined.
template <class Body>
void for_group_rows(Stream& stream, const Tensor& x, const RowGroups& groups, const Body& body) {
  if (!groups.begin.defined()) return for_rows(stream, x, body);
  for_rows_by_group(stream, x, groups, [&](int64_t t, int64_t) { body(t); });
}

}  // namespace witan::kernels::cpu
