// Views, parts and joins of tensors, and row groups that a backward needs.
#pragma once

#include <vector>

#include "witan/autograd/tape.h"
#include "witan/tensor/ragged.h"
#include "witan/tensor/tensor.h"

namespace witan::ops {

// A view of the elements under another shape of equal size. Throws ShapeError.
Var reshape(Tape& tape, const Var& x, const Shape& shape);

// One of N equal parts of a dim.
// y[a,:] = x[a,part,:];  x [A, N, I] -> [A, I]. The other parts' gradient is zero. Throws ShapeError.
Var take_part(Tape& tape, const Var& x, int64_t part);

// All N equal parts of a dim.
// y_n[a,:] = x[a,n,:];  x [A, N, I] -> N of [A, I]. Throws ShapeError.
std::vector<Var> split_parts(Tape& tape, const Var& x);

// One of N equal parts of the rows of a parameter, of which ranks use different parts.
// y[r,..] = x[part R / N + r,..];  x [R, ..] -> [R / N, ..]. The other rows' gradient is zero; it is summed in the
// accumulator dtype, as a parameter's own. Throws ShapeError.
Var take_rows(Tape& tape, const Var& x, int64_t parts, int64_t part);

// Two tensors side by side.
// y[t,:] = a[t,:], then b[t,:];  a [.., I], b [.., J] -> [.., I + J]. Throws ShapeError.
Var join_columns(Tape& tape, const Var& a, const Var& b);

// A tensor [.., D] as the matrix [rows, D] that kernels take; a matrix keeps its strides.
inline Tensor as_matrix(const Tensor& tensor) {
  if (tensor.shape().dims() == 2) return tensor;
  const auto [rows, columns] = tensor.shape().as_rows();
  return tensor.reshape({rows, columns});
}

// Row groups saved for the backward.
class SavedGroups {
 public:
  SavedGroups(Tape& tape, const RowGroups& groups)
      : begin_(save(tape, groups.begin)),
        count_(save(tape, groups.count)),
        source_begin_(save(tape, groups.source_begin)),
        source_count_(save(tape, groups.source_count)),
        expected_rows_(groups.expected_rows) {}

  RowGroups value(Backward& b) const {
    return {b.value(begin_), b.value(count_), b.value(source_begin_), b.value(source_count_), expected_rows_};
  }

 private:
  static Saved save(Tape& tape, const Tensor& tensor) { return tensor.defined() ? tape.save(tensor) : Saved(); }

  Saved begin_, count_, source_begin_, source_count_;
  int64_t expected_rows_;
};

}  // namespace witan::ops
