#include "witan/kernels/attention/sequence_pieces.h"

#include <cassert>

namespace witan::kernels {

PieceLayout pieces_by_heads(const Tensor& x, int64_t ranks) {
  const int64_t row = x.size(2) * x.size(3);
  return {.sequence = x.size(1) * row,
          .row = row,
          .late = x.size(1) / 2,
          .heads = x.size(2),
          .ranks = ranks,
          .step = x.size(3)};
}

PieceLayout pieces_by_positions(const Tensor& x, int64_t ranks) {
  const int64_t row = x.size(2) * x.size(3), chunk = x.size(1) / (2 * ranks);
  return {
      .sequence = x.size(1) * row, .row = row, .early = chunk, .late = (2 * ranks - 1) * chunk, .late_step = -chunk};
}

PieceLayout pieces_of_message(const PieceSize& size, int64_t elements, int64_t before) {
  return {.sequence = 2 * size.chunk * size.width,
          .row = size.width,
          .late = size.chunk,
          .offset = before,
          .step = elements};
}

void copy_pieces(Stream& stream, const std::vector<PieceCopy>& copies, int64_t ranks) {
  assert(!copies.empty() && copies.size() <= kMostPieceCopies);
  double bytes = 0;
  for (const PieceCopy& copy : copies)
    bytes += static_cast<double>(ranks * copy.size.elements() * size_of(copy.from.dtype()));
  WITAN_LAUNCH(stream, copy_pieces, (Cost{0, 2 * bytes}), copies, ranks);
}

void sum_shares(Stream& stream, const Tensor& y, const Tensor& x) {
  WITAN_LAUNCH(stream, sum_shares, (Cost{static_cast<double>(x.elements() - y.elements()), bytes_of(x, y)}), y, x);
}

}  // namespace witan::kernels
