// Row-wise loops shared by the CPU twins: how work on [T, D] is divided into tasks, and how results are stored.
#pragma once

#include <algorithm>
#include <array>
#include <cassert>
#include <vector>

#include "witan/base/numbers/half.h"
#include "witan/base/threads/threads.h"
#include "witan/tensor/ragged.h"
#include "witan/tensor/tensor.h"

namespace witan::kernels::cpu {

inline constexpr int64_t kTaskElements = 1 << 14;  // about 10 µs of row-wise work, enough to wake a thread for

// Whether row t is padding, that is, has a negative sequence id.
inline bool is_padding(const Tensor& sequence_ids, int64_t t) {
  return sequence_ids.defined() && sequence_ids.data<int32_t>()[t] < 0;
}

// The end of the document that contains position `begin` of row b of ids [B, S]; S if ids are undefined.
inline int64_t document_end(const Tensor& ids, int64_t b, int64_t begin, int64_t S) {
  if (!ids.defined()) return S;
  const int32_t* const row = ids.data<int32_t>() + b * S;
  int64_t end = begin + 1;
  while (end < S && row[end] == row[begin]) ++end;
  return end;
}

// Calls body(t) for each row of x seen as [T, D].
template <class Body>
void for_rows(Stream& stream, const Tensor& x, const Body& body) {
  const auto [T, D] = x.shape().as_rows();
  stream.pool().for_ranges(T, kTaskElements / std::max<int64_t>(D, 1), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) body(t);
  });
}

// to[d] (=|+=) the sum over t of the terms that add(t, begin, end, sums) adds for the columns [begin, end). Rows are
// summed in order within blocks of 64, and the blocks in order, so the result depends neither on threads nor on the
// number of columns.
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

// Calls body(t, e) for each row t of x, seen as [T, D], that lies in group e. Tasks divide the groups' concatenated
// rows, so that even one large group keeps every thread busy.
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

// Calls body(t) for each row t of x that lies in a group, or for every row if groups.begin is undefined.
template <class Body>
void for_group_rows(Stream& stream, const Tensor& x, const RowGroups& groups, const Body& body) {
  if (!groups.begin.defined()) return for_rows(stream, x, body);
  for_rows_by_group(stream, x, groups, [&](int64_t t, int64_t) { body(t); });
}

// Stores the rounded value inside a `#pragma omp simd` loop. With `to = bf16(value)`, g++ copies a struct and does not
// vectorise the loop, which is then 10 times slower.
template <class T, class A>
[[gnu::always_inline]] inline void store(T& to, A value) {
  to = static_cast<T>(value);
}
template <class A>
[[gnu::always_inline]] inline void store(bf16& to, A value) {
  to.bits = bf16(value).bits;
}
template <class A>
[[gnu::always_inline]] inline void store(f16& to, A value) {
  to.bits = f16(value).bits;
}

}  // namespace witan::kernels::cpu
