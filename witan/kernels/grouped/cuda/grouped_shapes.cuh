// Chooses the tile of a grouped product. It depends on shapes alone, and changes no bit, since all sums are formed in
// the order of K. docs/performance-log.md, steps 35 and 38, has the measurements of each tile.
#pragma once

#include "witan/kernels/grouped/cuda/grouped_gemm_hopper.cuh"

namespace witan::kernels::cuda {

// The two largest tiles. Operands come from the L2 cache no faster than they are multiplied. Pairs of blocks that share
// an operand read less from the cache and use less power, but they wait for each other, and for each other's epilogues.
using WideTile = TileShape<128, 256, Consumers::cooperative, Multicast::none>;
using WidePair = TileShape<128, 256, Consumers::cooperative, Multicast::b>;
using TallTile = TileShape<256, 128, Consumers::cooperative, Multicast::none>;
using TallPair = TileShape<256, 128, Consumers::cooperative, Multicast::a>;

// Calls body.template operator()<Shape>() with the tile for results [M of all experts together, columns] whose blocks
// share no operand.
template <class Body>
void with_unshared_shape(int64_t M, int64_t experts, int64_t columns, const Body& body) {
  if (M <= 64 * experts)
    body.template operator()<TileShape<64, 256, Consumers::ping_pong, Multicast::none>>();
  else if (columns <= 128)
    body.template operator()<TileShape<128, 128, Consumers::ping_pong, Multicast::none>>();
  else
    body.template operator()<WideTile>();
}

// The tile if M runs over experts' rows: pairs of blocks share the columns of b if experts have two tiles or more.
template <class Body>
void with_m_shape(int64_t M, int64_t experts, int64_t columns, const Body& body) {
  if (columns <= 128 || M < WidePair::kClusterM * experts)
    with_unshared_shape(M, experts, columns, body);
  else
    body.template operator()<WidePair>();
}

// The tile for paired columns and more than 64 rows per expert: always a wide one.
template <class Body>
void with_paired_shape(int64_t M, int64_t experts, const Body& body) {
  if (M < WidePair::kClusterM * experts)
    body.template operator()<WideTile>();
  else
    body.template operator()<WidePair>();
}

}  // namespace witan::kernels::cuda
