// Which tile a grouped product takes. It follows from shapes alone, as all sums are formed in the order of their steps
// in any case. What was measured tile by tile is in docs/performance-log.md, steps 35 and 38.
#pragma once

#include "witan/kernels/grouped/cuda/grouped_gemm_hopper.cuh"

namespace witan::kernels::cuda {

// The two largest tiles. Operands come from the L2 cache no faster than they are multiplied: pairs of blocks that share
// one of them ask the cache for less, and so for less power, but wait for each other, and for each other's epilogues.
using WideTile = TileShape<128, 256, Consumers::cooperative, Multicast::none>;
using WidePair = TileShape<128, 256, Consumers::cooperative, Multicast::b>;
using TallTile = TileShape<256, 128, Consumers::cooperative, Multicast::none>;
using TallPair = TileShape<256, 128, Consumers::cooperative, Multicast::a>;

// Calls body.template operator()<Shape>() with the tile for results [lines, columns] of so many experts, in which
// blocks share nothing.
template <class Body>
void with_unshared_shape(int64_t lines, int64_t experts, int64_t columns, const Body& body) {
  if (lines <= 64 * experts)
    body.template operator()<TileShape<64, 256, Consumers::ping_pong, Multicast::none>>();
  else if (columns <= 128)
    body.template operator()<TileShape<128, 128, Consumers::ping_pong, Multicast::none>>();
  else
    body.template operator()<WideTile>();
}

// The same for lines that are an expert's rows: where it has two tiles of them, or more, pairs of blocks share its
// columns.
template <class Body>
void with_lines_shape(int64_t lines, int64_t experts, int64_t columns, const Body& body) {
  if (columns <= 128 || lines < WidePair::kSpanLines * experts)
    with_unshared_shape(lines, experts, columns, body);
  else
    body.template operator()<WidePair>();
}

// The same where half of a tile's columns are the partners of the other half, of more than 64 lines for each expert: a
// wide tile in any case.
template <class Body>
void with_paired_shape(int64_t lines, int64_t experts, const Body& body) {
  if (lines < WidePair::kSpanLines * experts)
    body.template operator()<WideTile>();
  else
    body.template operator()<WidePair>();
}

}  // namespace witan::kernels::cuda
