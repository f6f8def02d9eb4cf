// Which tile a grouped product takes. It follows from shapes alone, as all sums are formed in the order of their steps
// in any case. What was measured tile by tile is in docs/performance.md, step 35 of the log.
#pragma once

#include "witan/kernels/cuda/grouped/grouped_gemm_hopper.cuh"

namespace witan::kernels::cuda {

// The two largest tiles: operands come from the L2 cache no faster than they are multiplied. Blocks that share one of
// them would ask the cache for less, but wait for each other, and for each other's epilogues.
using WideTile = TileShape<128, 256, Consumers::halves, Multicast::none>;
using TallTile = TileShape<256, 128, Consumers::halves, Multicast::none>;

// Calls body.template operator()<Shape>() with the tile for results [lines, columns] of so many experts, in which
// blocks share nothing.
template <class Body>
void with_unshared_shape(int64_t lines, int64_t experts, int64_t columns, const Body& body) {
  if (lines <= 64 * experts)
    body.template operator()<TileShape<64, 256, Consumers::turns, Multicast::none>>();
  else if (columns <= 128)
    body.template operator()<TileShape<128, 128, Consumers::turns, Multicast::none>>();
  else
    body.template operator()<WideTile>();
}

// The same for lines that lie in a pool and sums of `steps`. Of two tiles of lines an expert's columns are read once by
// blocks that share them. Of more, one warpgroup stores a tile while the other multiplies the next, and where sums are
// long enough to wait for each other, blocks share lines.
template <class Body>
void with_lines_shape(int64_t lines, int64_t experts, int64_t columns, int64_t steps, const Body& body) {
  constexpr int64_t kTwoTiles = 256, kFourTiles = 512, kLongSum = 1024;
  if (columns <= 128 || lines < kTwoTiles * experts)
    with_unshared_shape(lines, experts, columns, body);
  else if (lines < kFourTiles * experts)
    body.template operator()<TileShape<128, 256, Consumers::halves, Multicast::b>>();
  else if (steps < kLongSum)
    body.template operator()<TileShape<128, 192, Consumers::turns, Multicast::none>>();
  else
    body.template operator()<TileShape<128, 128, Consumers::turns, Multicast::a>>();
}

}  // namespace witan::kernels::cuda
