#include "witan/ops/shape/shape.h"

#include <algorithm>
#include <utility>

#include "witan/kernels/common/blocks.h"

namespace witan::ops {

Var join_columns(Tape& tape, const Var& a, const Var& b) {
  const auto [rows, I] = a.shape().as_rows();
  const auto [others, J] = b.shape().as_rows();
  require<ShapeError>(rows == others && a.shape().dims() == b.shape().dims() && a.value().dtype() == b.value().dtype(),
                      "join_columns: a ", a.shape(), " and b ", b.shape(), " must have equal rows and one dtype");
  Shape shape;
  for (int dim = 0; dim + 1 < a.shape().dims(); ++dim) shape.append(a.shape()[dim]);
  shape.append(I + J);
  Stream& s = tape.stream();
  const Tensor y = s.empty(shape, a.value().dtype());
  kernels::copy_columns(s, as_matrix(y), as_matrix(a.value()), {0, 0, I});
  kernels::copy_columns(s, as_matrix(y), as_matrix(b.value()), {I, 0, J});
  const auto backward = [a = tape.slot(a), b = tape.slot(b), of_a = a.shape(), of_b = b.shape()](Backward& back,
                                                                                                 const Tensor& dy) {
    const auto part = [&](const Shape& of, int64_t first) {
      const Tensor dx = back.stream().empty(of, dy.dtype());
      kernels::copy_columns(back.stream(), as_matrix(dx), as_matrix(dy), {0, first, of.last()});
      return dx;
    };
    if (back.wants(a)) back.add(a, part(of_a, 0));
    if (back.wants(b)) back.add(b, part(of_b, of_a.last()));
  };
  return tape.record("join_columns", y, {a, b}, backward);
}

Var reshape(Tape& tape, const Var& x, const Shape& shape) {
  return tape.record(
      "reshape", x.value().reshape(shape), {x},
      [x = tape.slot(x), before = x.shape()](Backward& b, const Tensor& dy) { b.add(x, dy.reshape(before)); });
}

Var take_part(Tape& tape, const Var& x, int64_t part) {
  require<ShapeError>(x.shape().dims() == 3 && part >= 0 && part < x.size(1), "take_part: part ", part,
                      " of x, which must be [A, N > ", part, ", I], got ", x.shape());
  Stream& s = tape.stream();
  const Tensor y = s.empty({x.size(0), x.size(2)}, x.dtype());
  kernels::take_part(s, y, x.value(), part);
  return tape.record("take_part", y, {x}, [x = tape.slot(x), shape = x.shape(), part](Backward& b, const Tensor& dy) {
    const Tensor dx = b.stream().empty(shape, dy.dtype());
    kernels::place_part(b.stream(), dx, dy, part);
    b.add(x, dx);
  });
}

std::vector<Var> split_parts(Tape& tape, const Var& x) {
  require<ShapeError>(x.shape().dims() == 3 && x.value().contiguous(),
                      "split_parts: x must be [A, N, I] and contiguous, got ", x.shape());
  const int64_t A = x.size(0), N = x.size(1), I = x.size(2);
  const auto part_of = [A, I](const Tensor& all, int64_t n) { return all.narrow(0, n, 1).reshape({A, I}); };
  const Tensor swapped = tape.stream().empty({N, A, I}, x.dtype());
  kernels::swap_blocks(tape.stream(), swapped, x.value());
  std::vector<Tensor> parts;
  for (int64_t n = 0; n < N; ++n) parts.push_back(part_of(swapped, n));
  return tape.record("split_parts", std::move(parts), {x},
                     [x = tape.slot(x), A, N, I, part_of](Backward& b, const std::vector<Tensor>& gradients) {
                       if (!b.wants(x)) return;
                       Stream& s = b.stream();
                       const auto given = std::ranges::find_if(gradients, &Tensor::defined);
                       const Tensor together = s.empty({N, A, I}, given->dtype());
                       for (int64_t n = 0; n < N; ++n) {
                         const Tensor& gradient = gradients[static_cast<size_t>(n)];
                         if (gradient.defined())
                           s.copy(part_of(together, n), gradient);
                         else
                           s.zero(part_of(together, n));
                       }
                       const Tensor dx = s.empty({A, N, I}, together.dtype());
                       kernels::swap_blocks(s, dx, together);
                       b.add(x, dx);
                     });
}

Var take_rows(Tape& tape, const Var& x, int64_t parts, int64_t part) {
  require<ShapeError>(parts > 0 && x.size(0) % parts == 0 && part >= 0 && part < parts && x.value().contiguous(),
                      "take_rows: part ", part, " of ", parts, " equal parts of x ", x.shape());
  if (parts == 1) return x;
  Stream& s = tape.stream();
  const Tensor y = s.empty(x.shape().with(0, x.size(0) / parts), x.dtype());
  const Shape of_all{1, parts, y.elements()}, of_part{1, y.elements()};
  kernels::take_part(s, y.reshape(of_part), x.value().reshape(of_all), part);
  auto backward = [x = tape.slot(x), shape = x.shape(), of_all, of_part, part](Backward& b, const Tensor& dy) {
    const Tensor dx = b.stream().empty(of_all, dy.dtype());
    kernels::place_part(b.stream(), dx, dy.reshape(of_part), part);
    b.add(x, dx.reshape(shape));
  };
  return tape.with_wide_gradient(tape.record("take_rows", y, {x}, std::move(backward)));
}

}  // namespace witan::ops
