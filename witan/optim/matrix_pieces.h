// Matrices that tensor-parallel ranks divide, made whole for what needs whole matrices, and divided again: each of them
// on every rank, or each on one.
#pragma once

#include <utility>

#include "witan/optim/optimizer.h"

namespace witan {

// Matrices of one size, each as this rank holds it and as a whole.
class MatrixPieces {
 public:
  // Those of a shard. Throws ShapeError where the shard cuts a matrix.
  explicit MatrixPieces(const ParameterShard& shard);
  // Those of which each rank of the group has a piece of this size, side by side or, else, one above the other; null:
  // whole ones.
  MatrixPieces(Group* group, const MatrixSize& piece, bool columns_divided);

  int64_t count() const { return count_; }
  const MatrixSize& whole() const { return whole_; }

  // Of the shard's flat tensor the index-th matrix, [rows, columns]: gathered over the ranks that have its other
  // pieces, or a view where it is here.
  Tensor gathered(Stream& stream, const Tensor& shard, int64_t index) const;
  // This rank's piece of a whole matrix [rows, columns], flat.
  Tensor piece(Stream& stream, const Tensor& whole) const;

  // Of pieces [n, rows, columns], equal on all ranks and n divisible by them, this rank's share as whole matrices
  // [n / ranks, rows, columns]: an all-to-all. Theirs, where nothing is divided.
  Tensor to_owners(Stream& stream, const Tensor& pieces) const;
  // Its inverse.
  Tensor from_owners(Stream& stream, const Tensor& whole) const;

 private:
  // What lies side by side in a rank's pieces of so many matrices: stretches, and elements of each.
  std::pair<int64_t, int64_t> stretches(int64_t matrices) const;

  MatrixSize whole_, piece_;
  bool columns_divided_ = false;
  int64_t count_, held_;  // matrices, and elements that this rank has of each
  Region region_;         // of this rank's piece in a matrix
  Group* pieces_;
};

}  // namespace witan
