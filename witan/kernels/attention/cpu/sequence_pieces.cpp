#include "witan/kernels/attention/sequence_pieces.h"

#include <cassert>
#include <cstring>

#include "witan/kernels/common/cpu/rows.h"

namespace witan::kernels::cpu {
namespace {

void copy_all(Stream& stream, const PieceCopy& copy, int64_t ranks) {
  const auto [B, chunk, width] = copy.size;
  const int64_t element = size_of(copy.from.dtype()), bytes = width * element;
  assert(copy.to.dtype() == copy.from.dtype());
  if (bytes == 0) return;
  constexpr int64_t kTaskBytes = 4 * kTaskElements;
  stream.pool().for_ranges(ranks * B * 2 * chunk, kTaskBytes / bytes, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t s = i % chunk, late = i / chunk % 2, b = i / (2 * chunk) % B, rank = i / (2 * chunk * B);
      const auto at = [&](const PieceLayout& in) {
        return (in.begin(rank) + b * in.sequence + (in.first_row(rank, late == 1) + s) * in.row) * element;
      };
      std::memcpy(copy.to.raw() + at(copy.to_layout), copy.from.raw() + at(copy.from_layout),
                  static_cast<size_t>(bytes));
    }
  });
}

}  // namespace

void copy_pieces(Stream& stream, const std::vector<PieceCopy>& copies, int64_t ranks) {
  for (const PieceCopy& copy : copies) copy_all(stream, copy, ranks);
}

void sum_shares(Stream& stream, const Tensor& y, const Tensor& x) {
  const int64_t R = x.size(0), N = x.size(1), w = x.size(2);
  assert(y.shape() == (Shape{R, w}) && y.dtype() == x.dtype());
  dispatch_floating(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const T* const from = x.data<T>();
    T* const to = y.data<T>();
    for_rows(stream, y, [&](int64_t r) {
      for (int64_t d = 0; d < w; ++d) {
        A sum = A(from[r * N * w + d]);
        for (int64_t i = 1; i < N; ++i) sum += A(from[(r * N + i) * w + d]);
        store(to[r * w + d], sum);
      }
    });
  });
}

}  // namespace witan::kernels::cpu
