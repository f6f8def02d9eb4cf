#include "witan/comm/earlier_tokens.h"

#include <algorithm>

#include "witan/kernels/common/blocks.h"
#include "witan/kernels/pointwise/elementwise.h"

namespace witan {
namespace {

// x [2 B, M] of this rank's chunks as [2, B, M], the early ones first, or the way back.
Tensor swapped(Stream& stream, const Tensor& x, int64_t outer, int64_t inner) {
  const int64_t M = x.elements() / std::max<int64_t>(outer * inner, 1);
  const Tensor y = stream.empty({inner, outer, M}, x.dtype());
  kernels::swap_blocks(stream, y, x.reshape({outer, inner, M}));
  return y;
}

// Rows [B, M] of the 2n chunks of all sequences, and of those around this rank's.
class ChunkRows {
 public:
  // x [2 B, M] of this rank's chunks. A collective.
  ChunkRows(Stream& stream, const Tensor& x, Group& context)
      : n_(context.size()),
        rank_(context.rank()),
        rows_(stream.empty({2 * n_, x.elements() / 2}, x.dtype())),
        none_(stream.zeros({x.size(0) / 2, x.size(1)}, x.dtype())) {
    context.all_gather(stream, rows_, swapped(stream, x, x.size(0) / 2, 2).reshape({2, x.elements() / 2}));
  }
  // Those of the chunk `distance` after this rank's early or late one; 0 beyond the sequences' ends.
  Tensor beside(int64_t half, int64_t distance) const {
    const int64_t chunk = (half == 0 ? rank_ : 2 * n_ - 1 - rank_) + distance;
    if (chunk < 0 || chunk >= 2 * n_) return none_;
    const int64_t row = chunk < n_ ? 2 * chunk : 2 * (2 * n_ - 1 - chunk) + 1;
    return rows_.narrow(0, row, 1).reshape(none_.shape());
  }

 private:
  int64_t n_, rank_;
  Tensor rows_, none_;
};

// Tokens [from, from + tokens) of the last `sent` of a chunk are [to, to + tokens) of the earlier ones of a chunk after
// it.
struct Overlap {
  int64_t from, to, tokens;
};
// Calls each(distance, overlap) for the chunks of C tokens of which `count` earlier tokens are, the nearest first. All
// ranks make the same calls.
template <class Each>
void for_overlaps(int64_t count, int64_t C, const Each& each) {
  const int64_t sent = std::min(count, C);
  for (int64_t distance = 1; sent > 0 && (distance - 1) * C < count; ++distance) {
    const int64_t to = count - (distance - 1) * C - sent, from = std::max<int64_t>(-to, 0);
    each(distance, Overlap{from, to + from, sent - from});
  }
}

}  // namespace

Tensor earlier_tokens(Stream& stream, const Tensor& part, int64_t count, Group& context) {
  const int64_t B = part.size(0), C = part.size(1) / 2, I = part.size(2), sent = std::min(count, C);
  const Tensor last = stream.empty({2 * B, sent * I}, part.dtype()),
               found = stream.empty({2, B, count * I}, part.dtype());
  kernels::copy_columns(stream, last, part.reshape({2 * B, C * I}), {0, (C - sent) * I, sent * I});
  const ChunkRows rows(stream, last, context);
  for (int64_t half = 0; half < 2; ++half)
    for_overlaps(count, C, [&](int64_t distance, const Overlap& of) {
      kernels::copy_columns(stream, found.narrow(0, half, 1).reshape({B, count * I}), rows.beside(half, -distance),
                            {of.to * I, of.from * I, of.tokens * I});
    });
  return swapped(stream, found, 2, B).reshape({2 * B, count, I});
}

Tensor sum_of_earlier_tokens(Stream& stream, const Tensor& dy, int64_t C, Group& context) {
  const int64_t B = dy.size(0) / 2, count = dy.size(1), I = dy.size(2), sent = std::min(count, C);
  const ChunkRows rows(stream, dy.reshape({2 * B, count * I}), context);
  const Tensor sums = stream.zeros({2, B, sent * I}, dy.dtype());
  for (int64_t half = 0; half < 2; ++half)
    for_overlaps(count, C, [&](int64_t distance, const Overlap& of) {
      const Tensor sum = sums.narrow(0, half, 1).reshape({B, sent * I}), one = stream.zeros(sum.shape(), sum.dtype());
      kernels::copy_columns(stream, one, rows.beside(half, distance), {of.from * I, of.to * I, of.tokens * I});
      kernels::add(stream, sum, sum, one);
    });
  return swapped(stream, sums, 2, B).reshape({2 * B, sent, I});
}

}  // namespace witan
