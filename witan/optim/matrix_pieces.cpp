#include "witan/optim/matrix_pieces.h"

#include "witan/comm/group.h"
#include "witan/kernels/blocks.h"

namespace witan {
namespace {

// A region of a matrix as columns of another view of it: [runs, distance between them].
struct Strips {
  int64_t runs, distance, first, length;
};
Strips strips_of(const Region& region, int64_t elements) {
  const int64_t runs = region.runs(), distance = elements / runs;
  assert(runs == 1 || distance == region.distance());
  return {runs, distance, region.first(), region.length()};
}

}  // namespace

MatrixPieces::MatrixPieces(const ParameterShard& shard)
    : whole_(matrix_size(shard.parameter->spec())), pieces_(shard.pieces) {
  const ShardMatrices matrices = matrices_of(*shard.parameter, shard.first, shard.elements);
  count_ = matrices.count;
  held_ = matrices.piece.elements();
  if (pieces_ == nullptr) return;
  const auto regions = shard.parameter->region().slice(shard.first, shard.first + held_);
  assert(regions.size() == 1);
  const Region& first = regions.front();
  region_ = {first.first() - matrices.first * whole_.elements(), first.length(), first.runs(), first.distance()};
}

Tensor MatrixPieces::gathered(Stream& stream, const Tensor& shard, int64_t index) const {
  const Tensor piece = shard.narrow(0, index * held_, held_);
  if (pieces_ == nullptr) return piece.reshape({whole_.rows, whole_.columns});
  const auto [runs, distance, first, length] = strips_of(region_, whole_.elements());
  // A sum with zeros is exact, whatever the shapes of the pieces.
  const Tensor whole = stream.zeros({runs, distance}, piece.dtype(), MemoryTag::workspace);
  kernels::copy_columns(stream, whole, piece.reshape({runs, length}), {first, 0, length});
  pieces_->all_reduce(stream, whole);
  return whole.reshape({whole_.rows, whole_.columns});
}

Tensor MatrixPieces::piece(Stream& stream, const Tensor& whole) const {
  if (pieces_ == nullptr) return whole.reshape({whole_.elements()});
  const auto [runs, distance, first, length] = strips_of(region_, whole_.elements());
  const Tensor own = stream.empty({runs, length}, whole.dtype(), MemoryTag::workspace);
  kernels::copy_columns(stream, own, whole.reshape({runs, distance}), {0, first, length});
  return own.reshape({held_});
}

}  // namespace witan
