// The table by which a GPU finds the items of kernels/optimizer/muon.h.
#pragma once

#include "witan/kernels/optimizer/muon.h"

namespace witan::kernels {

struct MuonRow {
  int64_t value, remainder, momentum, gradient, direction, orthogonal;  // addresses; remainder 0 where there is none
  int64_t elements;
  int64_t first_chunk;
  double weight_decay, scale;
};
static_assert(sizeof(MuonRow) == kMuonColumns * sizeof(int64_t));

}  // namespace witan::kernels
