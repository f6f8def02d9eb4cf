// Matrices that tensor-parallel ranks divide, made whole on each of them for what needs whole matrices, and divided
// again.
#pragma once

#include "witan/optim/optimizer.h"

namespace witan {

// The matrices of a shard, each as this rank holds it and as a whole.
class MatrixPieces {
 public:
  // Throws ShapeError where the shard cuts a matrix.
  explicit MatrixPieces(const ParameterShard& shard);

  int64_t count() const { return count_; }
  const MatrixSize& whole() const { return whole_; }

  // Of the shard's flat tensor the index-th matrix, [rows, columns]: gathered over the ranks that have its other
  // pieces, or a view where it is here.
  Tensor gathered(Stream& stream, const Tensor& shard, int64_t index) const;
  // This rank's piece of a whole matrix [rows, columns], flat.
  Tensor piece(Stream& stream, const Tensor& whole) const;

 private:
  MatrixSize whole_;
  int64_t count_, held_;  // matrices, and elements that this rank has of each
  Region region_;         // of this rank's piece in a matrix
  Group* pieces_;
};

}  // namespace witan
