// Row-wise loops shared by the CPU twins: how work over [T, D] is cut into tasks.
#pragma once

#include <algorithm>
#include <array>
#include <cassert>

#include "witan/base/threads/threads.h"
#include "witan/tensor/tensor.h"

namespace witan::kernels::cpu {

inline constexpr int64_t kTaskElements = 1 << 14;  // about 10 µs of row-wise work: worth waking a thread for

// Whether row t is padding: its sequence id is negative.
inline bool is_padding(const Tensor& sequence_ids, int64_t t) {
  return sequence_ids.defined() && sequence_ids.data<int32_t>()[t] < 0;
}

// body(t) for each of the rows of x seen as [T, D].
template <class Body>
void for_rows(Stream& stream, const Tensor& x, const Body& body) {
  const auto [T, D] = x.shape().as_rows();
  stream.pool().for_ranges(T, kTaskElements / std::max<int64_t>(D, 1), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) body(t);
  });
}

// to[d] (=|+=) sum_t of what add(t, begin, end, sums) adds for the columns [begin, end). Rows are summed in order
// within blocks of 64, and the blocks in order: neither threads nor the number of columns changes the result.
template <class T, class A, class Add>
void sum_over_rows(Stream& stream, const Tensor& to, Write write, const Shape& shape, const Add& add) {
  constexpr int64_t kColumns = 64, kRows = 64;
  const auto [rows, columns] = shape.as_rows();
  assert(to.elements() == columns);
  const int64_t panels = (columns + kColumns - 1) / kColumns;
  stream.pool().run(panels, [&, T_ = rows, D = columns](int64_t panel) {
    const int64_t begin = panel * kColumns, end = std::min(begin + kColumns, D);
    std::array<A, kColumns> total{}, block{};
    for (int64_t first = 0; first < T_; first += kRows) {
      block.fill(A(0));
      for (int64_t t = first; t < std::min(first + kRows, T_); ++t) add(t, begin, end, block.data());
      for (int64_t d = 0; d < end - begin; ++d) total[static_cast<size_t>(d)] += block[static_cast<size_t>(d)];
    }
    dispatch_floating(to.dtype(), [&]<class G>() {
      G* out = to.data<G>();
      for (int64_t d = begin; d < end; ++d) {
        const A before = write == Write::accumulate ? A(out[d]) : A(0);
        out[d] = G(before + total[static_cast<size_t>(d - begin)]);
      }
    });
  });
}

}  // namespace witan::kernels::cpu
