#include "witan/kernels/norm/magnitude.h"

#include <algorithm>

#include "witan/kernels/gemm/gemm.h"
#include "witan/kernels/norm/norm.h"
#include "witan/kernels/pointwise/elementwise.h"
#include "witan/ops/linear/linear.h"
#include "witan/ops/shape/shape.h"

namespace witan::ops {
namespace {

using kernels::Transpose;

void check_rescaling(const Var& y, const std::vector<Magnitude>& magnitudes) {
  require<ShapeError>(y.shape().dims() >= 1 && y.value().contiguous(),
                      "rescale_columns: y must be contiguous [.., N], got ", y.shape());
  for (const Magnitude& one : magnitudes) {
    const int64_t n = one.change.shape().elements();
    require<ShapeError>(one.change.shape() == Shape{n} && one.change.dtype() == y.dtype() &&
                            one.squares.shape() == Shape{2, n} && one.squares.dtype() == accumulator(y.dtype()),
                        "rescale_columns: a change must be [n] of y's dtype with squares [2, n], got ",
                        one.change.dtype(), " ", one.change.shape(), " and ", one.squares.shape());
    require<ShapeError>(one.first >= 0 && one.first + n <= y.shape().last(), "rescale_columns: ", n, " columns from ",
                        one.first, " on are not those of y ", y.shape());
  }
}

// The trained part of the magnitude of some columns.
struct SavedChange {
  Slot to;
  int64_t first, size;
};

// d change[n] = sum_t dy[t,n] y[t,n] / |w[n] + scale b[n] a|
void add_changes(Backward& b, const std::vector<SavedChange>& changes, const Tensor& dy, const Tensor& y,
                 const Tensor& inverses) {
  Stream& s = b.stream();
  const Tensor ones = s.empty({dy.size(0)}, inverses.dtype()), sums = s.empty_like(inverses);
  kernels::fill(s, ones, 1);
  kernels::rmsnorm_backward_weight(s, sums, Write::overwrite, dy, y, ones);
  kernels::product(s, sums, sums, inverses);
  for (const SavedChange& one : changes)
    b.write(one.to,
            [&](const Tensor& to, Write how) { kernels::accumulate(s, to, how, sums.narrow(0, one.first, one.size)); });
}

}  // namespace

Tensor row_squares(Stream& stream, const Tensor& w, const Tensor& a, const Tensor& b, double scale) {
  const DType wide = accumulator(w.dtype());
  const int64_t N = w.size(0), r = a.size(0);
  const Tensor squares = stream.empty({2, N}, wide), p = stream.empty({N, r}, wide), g = stream.empty({r, r}, wide);
  const auto row = [&](int64_t i) { return squares.narrow(0, i, 1).reshape({N}); };
  kernels::sharded_rmsnorm_squares(stream, row(0), w);
  kernels::gemm(stream, p, Write::overwrite, w, Transpose::no, a, Transpose::yes);
  kernels::gemm(stream, g, Write::overwrite, a, Transpose::no, a, Transpose::yes);
  kernels::low_rank_squares(stream, row(1), row(0), p, g, b, scale);
  return squares;
}

Var rescale_columns(Tape& tape, const Var& y, const std::vector<Magnitude>& magnitudes) {
  check_rescaling(y, magnitudes);
  Stream& s = tape.stream();
  const int64_t N = y.shape().last();
  const Tensor factors = s.empty({N}, accumulator(y.dtype())), inverses = s.empty_like(factors);
  int64_t covered = 0;
  for (const Magnitude& one : magnitudes) covered += one.change.size(0);
  if (covered < N) {
    kernels::fill(s, factors, 1);
    kernels::fill(s, inverses, 0);
  }
  std::vector<Var> inputs = {y};
  std::vector<SavedChange> changes;
  for (const auto& [change, squares, first] : magnitudes) {
    const int64_t n = change.size(0);
    kernels::magnitude_factors(s, factors.narrow(0, first, n), inverses.narrow(0, first, n), change.value(),
                               squares.narrow(0, 0, 1).reshape({n}), squares.narrow(0, 1, 1).reshape({n}));
    inputs.push_back(change);
    if (change.needs_gradient()) changes.push_back({tape.slot(change), first, n});
  }
  const Tensor out = s.empty_like(y.value());
  kernels::scale_columns(s, as_matrix(out), as_matrix(y.value()), factors);
  const bool trained = !changes.empty();
  return tape.record("rescale_columns", out, inputs,
                     [y = tape.slot(y), in = trained ? tape.save(y) : Saved(), factors = tape.save(factors),
                      inverses = trained ? tape.save(inverses) : Saved(), changes](Backward& b, const Tensor& dy) {
                       if (!changes.empty())
                         add_changes(b, changes, as_matrix(dy), as_matrix(b.value(in)), b.value(inverses));
                       if (!b.wants(y)) return;
                       const Tensor dx = b.stream().empty_like(dy);
                       kernels::scale_columns(b.stream(), as_matrix(dx), as_matrix(dy), b.value(factors));
                       b.add(y, dx);
                     });
}

}  // namespace witan::ops
