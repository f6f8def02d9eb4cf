#include "witan/kernels/gemm/gemm.h"
#include "witan/kernels/pointwise/elementwise.h"
#include "witan/ops/linear/linear.h"

namespace witan::ops {
namespace {

using kernels::Transpose;

Tensor rows_of(const Tensor& tensor) {
  if (tensor.shape().dims() == 2) return tensor;
  const auto [rows, columns] = tensor.shape().as_rows();
  return tensor.reshape({rows, columns});
}

void check_low_rank(const Var& y, const Var& x, const Var& a, const Var& b, int64_t first) {
  require<ShapeError>(y.shape().dims() >= 1 && x.shape().dims() == y.shape().dims() && y.value().contiguous() &&
                          y.shape().as_rows().first == x.shape().as_rows().first,
                      "add_low_rank: x must have a row for each row of y, got ", x.shape(), " and ", y.shape());
  require<ShapeError>(a.shape().dims() == 2 && a.size(1) == x.shape().last(),
                      "add_low_rank: a must be [r, K=", x.shape().last(), "], got ", a.shape());
  require<ShapeError>(b.shape().dims() == 2 && b.size(1) == a.size(0), "add_low_rank: b must be [N, r=", a.size(0),
                      "], got ", b.shape());
  require<ShapeError>(first >= 0 && first + b.size(0) <= y.shape().last(), "add_low_rank: ", b.size(0),
                      " columns from ", first, " on are not those of y ", y.shape());
  for (const Var* other : {&x, &a, &b})
    require<ShapeError>(other->dtype() == y.dtype(), "add_low_rank: y is ", y.dtype(), " and something else is ",
                        other->dtype());
}

}  // namespace

// With u = scale x a^T:  y += u b^T     db = dy^T u     du = scale dy b     da = du^T x     dx = du a
Var add_low_rank(Tape& tape, Var y, const Var& x, const Var& a, const Var& b, double scale, int64_t first) {
  check_low_rank(y, x, a, b, first);
  Stream& s = tape.stream();
  const int64_t rows = y.shape().as_rows().first, rank = a.size(0), columns = b.size(0);
  const Tensor u = s.empty({rows, rank}, y.dtype());
  kernels::gemm(s, u, Write::overwrite, rows_of(x.value()), Transpose::no, a.value(), Transpose::yes);
  if (scale != 1) kernels::scale(s, u, Write::overwrite, u, scale);
  kernels::gemm(s, rows_of(y.value()).narrow(1, first, columns), Write::accumulate, u, Transpose::no, b.value(),
                Transpose::yes);
  return tape.record(
      "add_low_rank", y.value(), {y, x, a, b},
      [y = tape.slot(y), x = tape.slot(x), in = tape.save_for(a, x), u = tape.save_for(b, tape.constant(u)),
       a = tape.save(a), b = tape.save(b), scale, first, rank, columns](Backward& context, const Tensor& gradient) {
        Stream& stream = context.stream();
        const Tensor dy = rows_of(gradient).narrow(1, first, columns);
        context.write(b, [&](const Tensor& db, Write how) {
          kernels::gemm(stream, db, how, dy, Transpose::yes, context.value(u), Transpose::no);
        });
        if (context.wants(a) || context.wants(x)) {
          const Tensor du = stream.empty({dy.size(0), rank}, dy.dtype());
          kernels::gemm(stream, du, Write::overwrite, dy, Transpose::no, context.value(b), Transpose::no);
          if (scale != 1) kernels::scale(stream, du, Write::overwrite, du, scale);
          context.write(a, [&](const Tensor& da, Write how) {
            kernels::gemm(stream, da, how, du, Transpose::yes, rows_of(context.value(in)), Transpose::no);
          });
          context.write(x, [&](const Tensor& dx, Write how) {
            kernels::gemm(stream, rows_of(dx), how, du, Transpose::no, context.value(a), Transpose::no);
          });
        }
        context.add(y, gradient);
      });
}

}  // namespace witan::ops
