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

void sum_shares(Stream& stream, const Tensor& y, const Tensor& x, int64_t w) {
  if (y.elements() == 0) return;
  const int64_t T = y.size(0), P = y.size(1) / w, N = x.size(1) / y.size(1);
  assert(x.size(0) == T && y.size(1) == P * w && x.size(1) == P * N * w && y.dtype() == x.dtype());
  assert(y.stride(1) == 1 && x.stride(1) == 1);
  dispatch_floating(x.dtype(), [&]<class E>() {
    using A = Accumulator<E>;
    stream.pool().for_ranges(T * P, kTaskElements / (N * w), [&](int64_t begin, int64_t end) {
      for (int64_t head = begin; head < end; ++head) {
        const int64_t t = head / P, p = head - t * P;
        const E* const from = x.data<E>() + t * x.stride(0) + p * N * w;
        E* const to = y.data<E>() + t * y.stride(0) + p * w;
        for (int64_t d = 0; d < w; ++d) {
          A sum = A(from[d]);
          for (int64_t i = 1; i < N; ++i) sum += A(from[i * w + d]);
          store(to[d], sum);
        }
      }
    });
  });
}

}  // namespace witan::kernels::cpu
