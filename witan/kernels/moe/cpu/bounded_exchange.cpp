#include <numeric>

#include "witan/kernels/moe/dispatch.h"

namespace witan::kernels::cpu {

void spread_to_parts(Stream&, const Tensor& slot, const Tensor& parts, const Tensor& source, const Tensor& counts) {
  const int64_t R = counts.elements(), B = parts.elements() / R;
  const int64_t* from = source.data<int64_t>();
  int64_t *row = parts.data<int64_t>(), *slots = slot.data<int64_t>();
  for (int64_t r = 0; r < R; ++r) {
    const int64_t count = counts.data<int64_t>()[r];
    require<ShapeError>(count <= B, "spread_to_parts: ", count, " rows for rank ", r, ", in a part of ", B);
    for (int64_t i = 0; i < B; ++i, ++row) {
      *row = i < count ? *from++ : -1;
      if (*row >= 0) slots[*row] = r * B + i;
    }
  }
}

void find_in_parts(Stream&, const Tensor& arrival, const RowGroups& groups, int64_t part_rows) {
  const int64_t R = groups.source_count.size(0), E = groups.source_count.size(1);
  for (int64_t r = 0; r < R; ++r)
    for (int64_t e = 0, row = r * part_rows; e < E; ++e) {
      const int64_t count = groups.source_count.data<int64_t>()[r * E + e];
      int64_t* to = arrival.data<int64_t>() + groups.source_begin.data<int64_t>()[r * E + e];
      std::iota(to, to + count, row);
      row += count;
    }
}

}  // namespace witan::kernels::cpu
