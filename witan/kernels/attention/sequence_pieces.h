// Sequences that ranks divide by positions on one side and by heads on the other, and the pieces that they send each
// other to go from one to the other: pure copies, and the sum of what several ranks send of one head.
//
// n ranks hold two chunks of C positions each of B sequences (comm/context.h). A piece is [B, 2, C, width]: an early
// and a late chunk of each sequence, of each position `width` elements side by side. Each rank has one for every rank,
// in whatever tensor it lies.
#pragma once

#include <vector>

#include "witan/kernels/common/launch.h"

namespace witan::kernels {

struct PieceSize {
  int64_t B, chunk, width;
  int64_t elements() const { return B * 2 * chunk * width; }
};

// The place of rank r's piece in a tensor, in elements: sequence b, position s of its early chunk begins at
//   offset + r heads / ranks step + b sequence + (r early + s) row,
// and with late + r late_step in place of r early in the late chunk. r heads / ranks is rounded down.
struct PieceLayout {
  int64_t sequence, row;
  int64_t early = 0, late = 0, late_step = 0;  // rows
  int64_t offset = 0, heads = 1, ranks = 1, step = 0;

  int64_t begin(int64_t rank) const { return offset + rank * heads / ranks * step; }
  int64_t first_row(int64_t rank, bool of_late) const { return of_late ? late + rank * late_step : rank * early; }
};

// Heads that lie side by side in x [B, S, ..]: `heads` of `width` elements each, from element `first` of a position on.
struct HeadChannels {
  int64_t first, heads, width;
};
inline HeadChannels all_heads(const Tensor& x) {
  return {0, x.size(2), x.size(3)};
}
inline int64_t elements_per_position(const Tensor& x) {
  return x.shape().dims() == 4 ? x.size(2) * x.size(3) : x.size(2);
}

// The pieces of x [B, 2 C, ..], this rank's positions of these P heads: each of n ranks gets P / n heads in order, or
// the head that it shares if there are fewer heads than ranks.
inline PieceLayout pieces_by_heads(const Tensor& x, const HeadChannels& of, int64_t ranks) {
  const int64_t row = elements_per_position(x);
  return {.sequence = x.size(1) * row,
          .row = row,
          .late = x.size(1) / 2,
          .offset = of.first,
          .heads = of.heads,
          .ranks = ranks,
          .step = of.width};
}
// The pieces of x [B, 2 n C, ..], all positions of these heads, which are this rank's.
inline PieceLayout pieces_by_positions(const Tensor& x, const HeadChannels& of, int64_t ranks) {
  const int64_t row = elements_per_position(x), chunk = x.size(1) / (2 * ranks);
  return {.sequence = x.size(1) * row,
          .row = row,
          .early = chunk,
          .late = (2 * ranks - 1) * chunk,
          .late_step = -chunk,
          .offset = of.first};
}
// Does the same for all heads of x [B, S, heads, width].
inline PieceLayout pieces_by_heads(const Tensor& x, int64_t ranks) {
  return pieces_by_heads(x, all_heads(x), ranks);
}
inline PieceLayout pieces_by_positions(const Tensor& x, int64_t ranks) {
  return pieces_by_positions(x, all_heads(x), ranks);
}
// The piece in a message to or from all ranks, n pieces of `elements` each, after `before` other elements.
inline PieceLayout pieces_of_message(const PieceSize& size, int64_t elements, int64_t before) {
  return {.sequence = 2 * size.chunk * size.width,
          .row = size.width,
          .late = size.chunk,
          .offset = before,
          .step = elements};
}

// A copy of the pieces of a tensor for all ranks: those of `from`, in order, to the places of those of `to`.
struct PieceCopy {
  Tensor to, from;
  PieceLayout to_layout, from_layout;
  PieceSize size;
};
inline constexpr size_t kMostPieceCopies = 3;  // of a call

// Piece r of each `to` = piece r of its `from`, for r in [0, ranks). Of one dtype.
void copy_pieces(Stream& stream, const std::vector<PieceCopy>& copies, int64_t ranks);
WITAN_KERNEL_TWINS(copy_pieces)

// y[t,p,:] = sum_i x[t,p,i,:], in the accumulator dtype, in the order of i;  x [T, P N w], y [T, P w], each contiguous
// or some columns of such a matrix
void sum_shares(Stream& stream, const Tensor& y, const Tensor& x, int64_t w);
WITAN_KERNEL_TWINS(sum_shares)

}  // namespace witan::kernels
