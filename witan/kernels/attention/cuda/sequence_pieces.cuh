// Pieces of sequences (kernels/attention/sequence_pieces.h) as kernel arguments, in the widest units that divide all of
// them. Units are numbered rank by rank, so a kernel can start with any rank by shifting the numbers.
#pragma once

#include "witan/kernels/attention/sequence_pieces.h"
#include "witan/kernels/common/cuda/common.cuh"

namespace witan::kernels::cuda {

struct PieceUnit {
  uint32_t copy, nth;        // among a call's copies; among the ranks
  uint32_t b, late, row, k;  // within the piece
};

// PieceLayout in units.
struct PieceEnd {
  int64_t sequence, row, early, late, late_step, offset, step;
  uint32_t heads, ranks;

  __device__ __forceinline__ int64_t at(uint32_t rank, const PieceUnit& unit) const {
    const int64_t first = unit.late ? late + rank * late_step : rank * early;
    return offset + rank * heads / ranks * step + unit.b * sequence + (first + unit.row) * row + unit.k;
  }
};

struct PieceUnits {
  const std::byte* source[kMostPieceCopies];
  PieceEnd to[kMostPieceCopies], from[kMostPieceCopies];
  uint32_t end[kMostPieceCopies];    // where a copy's units end among those of a rank
  uint32_t width[kMostPieceCopies];  // units per position
  uint32_t chunk, per_rank, all;     // positions per chunk; units per rank, and in all

  __device__ __forceinline__ PieceUnit find(uint32_t i) const {
    PieceUnit unit{.copy = 0, .nth = i / per_rank};
    uint32_t within = i - unit.nth * per_rank, begin = 0;
    while (within >= end[unit.copy]) begin = end[unit.copy++];
    within -= begin;
    const uint32_t row = within / width[unit.copy], chunks = row / chunk;
    unit.k = within - row * width[unit.copy];
    unit.row = row - chunks * chunk;
    unit.late = chunks & 1;
    unit.b = chunks >> 1;
    return unit;
  }
};

// The addresses and sizes of all copies in bytes, ORed together, which has their common alignment.
inline uintptr_t piece_bits(const std::vector<PieceCopy>& copies) {
  uintptr_t bits = 0;
  for (const PieceCopy& copy : copies) {
    const int64_t item = size_of(copy.from.dtype());
    bits |= reinterpret_cast<uintptr_t>(copy.to.raw()) | reinterpret_cast<uintptr_t>(copy.from.raw());
    for (const PieceLayout* end : {&copy.to_layout, &copy.from_layout})
      bits |= static_cast<uintptr_t>((end->sequence | end->row | end->offset | end->step) * item);
    bits |= static_cast<uintptr_t>(copy.size.width * item);
  }
  return bits;
}

// All copies must have the same number and length of sequences.
template <class Unit>
PieceUnits piece_units(const std::vector<PieceCopy>& copies, int64_t ranks) {
  assert(!copies.empty() && copies.size() <= kMostPieceCopies);
  PieceUnits units{};
  int64_t per_rank = 0;
  for (size_t i = 0; i < copies.size(); ++i) {
    const PieceCopy& copy = copies[i];
    assert(copy.size.B == copies[0].size.B && copy.size.chunk == copies[0].size.chunk);
    const auto of = [&](int64_t elements) {
      return elements * size_of(copy.from.dtype()) / static_cast<int64_t>(sizeof(Unit));
    };
    const auto end_of = [&](const PieceLayout& end) {
      return PieceEnd{of(end.sequence),
                      of(end.row),
                      end.early,
                      end.late,
                      end.late_step,
                      of(end.offset),
                      of(end.step),
                      static_cast<uint32_t>(end.heads),
                      static_cast<uint32_t>(end.ranks)};
    };
    per_rank += of(copy.size.elements());
    units.source[i] = copy.from.raw();
    units.to[i] = end_of(copy.to_layout);
    units.from[i] = end_of(copy.from_layout);
    units.end[i] = static_cast<uint32_t>(per_rank);
    units.width[i] = static_cast<uint32_t>(of(copy.size.width));
  }
  require<ShapeError>(per_rank * ranks < int64_t{1} << 31, "pieces of sequences: up to 2^31 units are moved at once");
  units.chunk = static_cast<uint32_t>(copies[0].size.chunk);
  units.per_rank = static_cast<uint32_t>(per_rank);
  units.all = static_cast<uint32_t>(per_rank * ranks);
  return units;
}

// Calls body.template operator()<Unit>() with the widest unit that `bits` allows.
template <class Body>
void with_piece_unit(uintptr_t bits, const Body& body) {
  if (bits % 16 == 0)
    body.template operator()<uint4>();
  else if (bits % 4 == 0)
    body.template operator()<uint32_t>();
  else
    body.template operator()<uint16_t>();
}

}  // namespace witan::kernels::cuda
