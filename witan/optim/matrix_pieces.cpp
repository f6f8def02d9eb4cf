#include "witan/optim/matrix_pieces.h"

#include "witan/comm/group.h"
#include "witan/kernels/common/blocks.h"

namespace witan {
namespace {

// A region of a matrix as columns of its view [runs, distance between runs].
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
  piece_ = matrices.piece;
  held_ = piece_.elements();
  columns_divided_ = piece_.columns < whole_.columns;
  if (pieces_ == nullptr) return;
  const auto regions = shard.parameter->region().slice(shard.first, shard.first + held_);
  assert(regions.size() == 1);
  const Region& first = regions.front();
  region_ = {first.first() - matrices.first * whole_.elements(), first.length(), first.runs(), first.distance()};
}

MatrixPieces::MatrixPieces(Group* group, const MatrixSize& piece, bool columns_divided)
    : whole_(piece),
      piece_(piece),
      columns_divided_(columns_divided),
      count_(1),
      held_(piece.elements()),
      pieces_(group) {
  if (group == nullptr) return;
  (columns_divided ? whole_.columns : whole_.rows) *= group->size();
  region_ = columns_divided ? Region(group->rank() * piece.columns, piece.columns, piece.rows, whole_.columns)
                            : Region(group->rank() * held_, held_);
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

std::pair<int64_t, int64_t> MatrixPieces::stretches(int64_t matrices) const {
  return columns_divided_ ? std::pair(matrices * piece_.rows, piece_.columns) : std::pair(matrices, held_);
}

Tensor MatrixPieces::to_owners(Stream& stream, const Tensor& pieces) const {
  if (pieces_ == nullptr) return pieces;
  const auto empty = [&](const Shape& shape) { return stream.empty(shape, pieces.dtype(), MemoryTag::workspace); };
  const Tensor received = empty({pieces.elements()});
  pieces_->all_to_all_equal(stream, received, pieces.reshape({pieces.elements()}));
  const int64_t T = pieces_->size(), matrices = pieces.size(0) / T;
  const auto [outer, inner] = stretches(matrices);
  const Tensor whole = empty({outer, T, inner});
  kernels::swap_blocks(stream, whole, received.reshape({T, outer, inner}));
  return whole.reshape({matrices, whole_.rows, whole_.columns});
}

Tensor MatrixPieces::from_owners(Stream& stream, const Tensor& whole) const {
  if (pieces_ == nullptr) return whole;
  const auto empty = [&](const Shape& shape) { return stream.empty(shape, whole.dtype(), MemoryTag::workspace); };
  const int64_t T = pieces_->size(), matrices = whole.size(0);
  const auto [outer, inner] = stretches(matrices);
  const Tensor sent = empty({T, outer, inner}), pieces = empty({whole.elements()});
  kernels::swap_blocks(stream, sent, whole.reshape({outer, T, inner}));
  pieces_->all_to_all_equal(stream, pieces, sent.reshape({sent.elements()}));
  return pieces.reshape({T * matrices, piece_.rows, piece_.columns});
}

}  // namespace witan
