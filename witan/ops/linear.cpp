#include "witan/ops/linear.h"

#include "witan/kernels/gemm.h"
#include "witan/kernels/norm.h"

namespace witan::ops {
namespace {

using kernels::Transpose;

// [.., D] as [rows, D]; a matrix keeps its strides.
Tensor as_matrix(const Tensor& tensor) {
  if (tensor.shape().dims() == 2) return tensor;
  const auto [rows, columns] = tensor.shape().as_rows();
  return tensor.reshape({rows, columns});
}

void check_linear(const Var& x, const Var& w, const Var& bias) {
  require<ShapeError>(x.shape().dims() >= 1, "linear: x must have at least one dim");
  const int64_t K = x.shape().last();
  require<ShapeError>(w.shape().dims() == 2 && w.size(1) == K, "linear: w must be [N, K=", K, "], got ", w.shape());
  require<ShapeError>(w.dtype() == x.dtype(), "linear: w is ", w.dtype(), " but x is ", x.dtype());
  if (!bias.defined()) return;
  require<ShapeError>(bias.shape() == Shape{w.size(0)}, "linear: bias must be [N=", w.size(0), "], got ", bias.shape());
  require<ShapeError>(bias.dtype() == x.dtype(), "linear: bias is ", bias.dtype(), " but x is ", x.dtype());
}

}  // namespace

Var linear(Tape& tape, const Var& x, const Var& w, const Var& bias) {
  check_linear(x, w, bias);
  Stream& s = tape.stream();
  const int64_t N = w.size(0);
  const Tensor y = s.empty(x.shape().with(x.shape().dims() - 1, N), x.dtype());
  if (bias.defined()) kernels::repeat_row(s, as_matrix(y), bias.value());
  kernels::gemm(s, as_matrix(y), bias.defined() ? Write::accumulate : Write::overwrite, as_matrix(x.value()),
                Transpose::no, w.value(), Transpose::yes);
  std::vector<Var> inputs = {x, w};
  if (bias.defined()) inputs.push_back(bias);
  const Slot bias_slot = bias.defined() ? tape.slot(bias) : Slot();
  // dw = dy^T x     dbias = sum_t dy     dx = dy w
  return tape.record(
      "linear", y, inputs, [x = tape.save(x), w = tape.save(w), bias_slot](Backward& b, const Tensor& gradient) {
        const Tensor dy = as_matrix(gradient);
        b.write(w, [&](const Tensor& dw, Write how) {
          kernels::gemm(b.stream(), dw, how, dy, Transpose::yes, as_matrix(b.value(x)), Transpose::no);
        });
        b.write(bias_slot, [&](const Tensor& db, Write how) { kernels::bias_backward(b.stream(), db, how, dy); });
        b.write(x, [&](const Tensor& dx, Write how) {
          kernels::gemm(b.stream(), as_matrix(dx), how, dy, Transpose::no, b.value(w), Transpose::no);
        });
      });
}

}  // namespace witan::ops
