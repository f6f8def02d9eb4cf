// Gathers matrices that tensor-parallel ranks divide, for optimizers of whole matrices, and divides them again. A
// matrix is gathered on every rank, or on one.
#pragma once

#include <utility>

#include "witan/optim/optimizer.h"

namespace witan {

// Matrices of one size, as this rank's pieces and as whole matrices.
class MatrixPieces {
 public:
  // The matrices of a shard. Throws ShapeError if the shard cuts a matrix.
  explicit MatrixPieces(const ParameterShard& shard);
  // A matrix of which each rank of the group has a piece of this size, side by side or else one above the other; null:
  // the piece is the whole matrix.
  MatrixPieces(Group* group, const MatrixSize& piece, bool columns_divided);

  int64_t count() const { return count_; }
  const MatrixSize& whole() const { return whole_; }

  // The index-th matrix [rows, columns] of the shard's flat tensor: gathered over the ranks that have its other pieces,
  // or a view if this rank has it whole.
  Tensor gathered(Stream& stream, const Tensor& shard, int64_t index) const;
  // This rank's piece of a whole matrix [rows, columns], flat.
  Tensor piece(Stream& stream, const Tensor& whole) const;

  // pieces [n, rows, columns] -> this rank's share as whole matrices [n / ranks, rows, columns], by an all-to-all. n is
  // equal on all ranks and divisible by their number. Undivided matrices are returned as they are.
  Tensor to_owners(Stream& stream, const Tensor& pieces) const;
  // Its inverse.
  Tensor from_owners(Stream& stream, const Tensor& whole) const;

 private:
  // The contiguous stretches of a rank's pieces of so many matrices: their number, and the elements of each.
  std::pair<int64_t, int64_t> stretches(int64_t matrices) const;

  MatrixSize whole_, piece_;
  bool columns_divided_ = false;
  int64_t count_, held_;  // matrices, and this rank's elements of each
  Region region_;         // this rank's piece in a matrix
  Group* pieces_;
};

}  // namespace witan
