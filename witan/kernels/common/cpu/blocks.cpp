#include "witan/kernels/common/blocks.h"

#include <cassert>
#include <cstring>
#include <numeric>

#include "witan/kernels/common/cpu/rows.h"

namespace witan::kernels::cpu {
namespace {

// Calls copy(i) for each of `count` blocks of `bytes` bytes.
template <class Copy>
void for_blocks(Stream& stream, int64_t count, int64_t bytes, const Copy& copy) {
  constexpr int64_t kTaskBytes = 4 * kTaskElements;
  if (bytes == 0) return;
  stream.pool().for_ranges(count, kTaskBytes / bytes, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) copy(i);
  });
}

}  // namespace

void swap_blocks(Stream& stream, const Tensor& y, const Tensor& x) {
  const int64_t A = x.size(0), N = x.size(1), bytes = x.size(2) * size_of(x.dtype());
  assert(y.shape() == (Shape{N, A, x.size(2)}) && y.dtype() == x.dtype());
  for_blocks(stream, A * N, bytes, [&, to = y.raw(), from = x.raw()](int64_t i) {
    const int64_t n = i / A, a = i % A;
    std::memcpy(to + i * bytes, from + (a * N + n) * bytes, static_cast<size_t>(bytes));
  });
}

void take_part(Stream& stream, const Tensor& y, const Tensor& x, int64_t part) {
  const int64_t A = x.size(0), N = x.size(1), bytes = x.size(2) * size_of(x.dtype());
  assert(y.shape() == (Shape{A, x.size(2)}) && y.dtype() == x.dtype() && part >= 0 && part < N);
  for_blocks(stream, A, bytes, [&, to = y.raw(), from = x.raw()](int64_t a) {
    std::memcpy(to + a * bytes, from + (a * N + part) * bytes, static_cast<size_t>(bytes));
  });
}

void place_part(Stream& stream, const Tensor& y, const Tensor& x, int64_t part) {
  const int64_t A = y.size(0), N = y.size(1), bytes = y.size(2) * size_of(y.dtype());
  assert(x.shape() == (Shape{A, y.size(2)}) && y.dtype() == x.dtype() && part >= 0 && part < N);
  for_blocks(stream, A * N, bytes, [&, to = y.raw(), from = x.raw()](int64_t i) {
    if (i % N == part) {
      std::memcpy(to + i * bytes, from + i / N * bytes, static_cast<size_t>(bytes));
    } else {
      std::memset(to + i * bytes, 0, static_cast<size_t>(bytes));
    }
  });
}

void copy_columns(Stream& stream, const Tensor& y, const Tensor& x, const Columns& columns) {
  const int64_t element = size_of(x.dtype()), bytes = columns.count * element;
  assert(y.dtype() == x.dtype() && y.size(0) == x.size(0) && columns.count >= 0);
  assert(columns.y_first >= 0 && columns.y_first + columns.count <= y.size(1));
  assert(columns.x_first >= 0 && columns.x_first + columns.count <= x.size(1));
  for_blocks(stream, x.size(0), bytes, [&, to = y.raw(), from = x.raw()](int64_t a) {
    std::memcpy(to + (a * y.size(1) + columns.y_first) * element, from + (a * x.size(1) + columns.x_first) * element,
                static_cast<size_t>(bytes));
  });
}

void zero_last_rows(Stream& stream, const Tensor& y, const Tensor& counts) {
  const auto all = counts.span<int64_t>();
  const int64_t kept = std::accumulate(all.begin(), all.end(), int64_t{0});
  const int64_t R = y.size(0), bytes = y.size(1) * size_of(y.dtype());
  assert(kept >= 0 && kept <= R);
  for_blocks(stream, R - kept, bytes, [&, to = y.raw() + kept * bytes](int64_t i) {
    std::memset(to + i * bytes, 0, static_cast<size_t>(bytes));
  });
}

}  // namespace witan::kernels::cpu
