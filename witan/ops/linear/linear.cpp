#include "witan/ops/linear/linear.h"

#include "witan/kernels/gemm/gemm.h"
#include "witan/kernels/moe/router.h"
#include "witan/kernels/norm/norm.h"
#include "witan/kernels/pointwise/elementwise.h"
#include "witan/ops/shape/shape.h"

namespace witan::ops {
namespace {

using kernels::Transpose;

void check_shapes(const char* op, const Var& x, const Var& w) {
  require<ShapeError>(x.shape().dims() >= 1, op, ": x must have at least one dim");
  const int64_t K = x.shape().last();
  require<ShapeError>(w.shape().dims() == 2 && w.size(1) == K, op, ": w must be [N, K=", K, "], got ", w.shape());
}

void check_bias(const char* op, const Var& x, const Var& bias, int64_t N) {
  require<ShapeError>(bias.shape() == Shape{N}, op, ": bias must be [N=", N, "], got ", bias.shape());
  require<ShapeError>(bias.dtype() == x.dtype(), op, ": bias is ", bias.dtype(), " but x is ", x.dtype());
}

void check_linear(const Var& x, const Var& w, const Var& bias) {
  check_shapes("linear", x, w);
  require<ShapeError>(w.dtype() == x.dtype(), "linear: w is ", w.dtype(), " but x is ", x.dtype());
  if (bias.defined()) check_bias("linear", x, bias, w.size(0));
}

void check_wide_linear(const Var& x, const Var& w) {
  check_shapes("wide_linear", x, w);
  require<ShapeError>(is_floating(x.dtype()) && x.value().contiguous() && w.value().contiguous(),
                      "wide_linear: x and w must be floating and contiguous, got ", x.dtype(), " ", x.shape(), " and ",
                      w.dtype(), " ", w.shape());
  require<ShapeError>(w.dtype() == accumulator(x.dtype()), "wide_linear: w is ", w.dtype(), " but x is ", x.dtype(),
                      ", which is summed in ", accumulator(x.dtype()));
}

void check_joined(const Var& x, const std::vector<Var>& ws) {
  require<ShapeError>(x.shape().dims() >= 1 && x.value().contiguous() && !ws.empty(),
                      "joined_linear: x must be contiguous, with at least one weight, got ", x.shape());
  const int64_t K = x.shape().last();
  for (const Var& w : ws)
    require<ShapeError>(w.shape().dims() == 2 && w.size(1) == K && w.dtype() == x.dtype(), "joined_linear: w must be ",
                        x.dtype(), " [N, K=", K, "], got ", w.dtype(), " ", w.shape());
}

// y = x w^T
void joined_product(Stream& stream, const Tensor& y, const Tensor& x, const std::vector<Tensor>& weights) {
  if (const Tensor all = joined_rows(weights); all.defined())
    return kernels::gemm(stream, y, Write::overwrite, x, Transpose::no, all, Transpose::yes);
  int64_t first = 0;
  for (const Tensor& w : weights) {
    kernels::gemm(stream, y.narrow(1, first, w.size(0)), Write::overwrite, x, Transpose::no, w, Transpose::yes);
    first += w.size(0);
  }
}

// dx (=|+=) dy w
void joined_product_back(Stream& stream, const Tensor& dx, Write how, const Tensor& dy,
                         const std::vector<Tensor>& weights) {
  if (const Tensor all = joined_rows(weights); all.defined())
    return kernels::gemm(stream, dx, how, dy, Transpose::no, all, Transpose::no);
  int64_t first = 0;
  for (const Tensor& w : weights) {
    kernels::gemm(stream, dx, first == 0 ? how : Write::accumulate, dy.narrow(1, first, w.size(0)), Transpose::no, w,
                  Transpose::no);
    first += w.size(0);
  }
}

}  // namespace

Var linear(Tape& tape, const Var& x, const Var& w, const Var& bias) {
  check_linear(x, w, bias);
  Stream& s = tape.stream();
  const int64_t N = w.size(0);
  const Tensor y = s.empty(x.shape().with(x.shape().dims() - 1, N), x.dtype());
  if (bias.defined())
    kernels::gemm_with_bias(s, as_matrix(y), as_matrix(x.value()), Transpose::no, w.value(), Transpose::yes,
                            bias.value());
  else
    kernels::gemm(s, as_matrix(y), Write::overwrite, as_matrix(x.value()), Transpose::no, w.value(), Transpose::yes);
  std::vector<Var> inputs = {x, w};
  if (bias.defined()) inputs.push_back(bias);
  const Slot bias_slot = bias.defined() ? tape.slot(bias) : Slot();
  // dw = dy^T x     dbias = sum_t dy     dx = dy w
  return tape.record(
      "linear", y, inputs,
      [x = tape.slot(x), in = tape.save_for(w, x), w = tape.save(w), bias_slot](Backward& b, const Tensor& gradient) {
        const Tensor dy = as_matrix(gradient);
        b.write(w, [&](const Tensor& dw, Write how) {
          kernels::gemm(b.stream(), dw, how, dy, Transpose::yes, as_matrix(b.value(in)), Transpose::no);
        });
        b.write(bias_slot, [&](const Tensor& db, Write how) { kernels::bias_backward(b.stream(), db, how, dy); });
        b.write(x, [&](const Tensor& dx, Write how) {
          kernels::gemm(b.stream(), as_matrix(dx), how, dy, Transpose::no, b.value(w), Transpose::no);
        });
      });
}

Var block_linear(Tape& tape, const Var& x, const Var& w, int64_t blocks) {
  require<ShapeError>(x.shape().dims() >= 1 && x.value().contiguous() && blocks > 0 && w.shape().dims() == 2 &&
                          w.size(0) % blocks == 0 && x.shape().last() == blocks * w.size(1) && w.dtype() == x.dtype(),
                      "block_linear: x must be [.., g K] and w [g N, K] for ", blocks, " blocks, of one dtype, got ",
                      x.dtype(), " ", x.shape(), " and ", w.dtype(), " ", w.shape());
  const int64_t N = w.size(0) / blocks, K = w.size(1);
  const auto columns = [](const Tensor& of, int64_t i, int64_t width) {
    return as_matrix(of).narrow(1, i * width, width);
  };
  const Tensor y = tape.stream().empty(x.shape().with(x.shape().dims() - 1, w.size(0)), x.dtype());
  for (int64_t i = 0; i < blocks; ++i)
    kernels::gemm(tape.stream(), columns(y, i, N), Write::overwrite, columns(x.value(), i, K), Transpose::no,
                  w.value().narrow(0, i * N, N), Transpose::yes);
  return tape.record("block_linear", y, {x, w},
                     [x = tape.slot(x), in = tape.save_for(w, x), w = tape.save(w), columns, blocks, N, K](
                         Backward& b, const Tensor& dy) {
                       b.write(w, [&](const Tensor& dw, Write how) {
                         for (int64_t i = 0; i < blocks; ++i)
                           kernels::gemm(b.stream(), dw.narrow(0, i * N, N), how, columns(dy, i, N), Transpose::yes,
                                         columns(b.value(in), i, K), Transpose::no);
                       });
                       b.write(x, [&](const Tensor& dx, Write how) {
                         for (int64_t i = 0; i < blocks; ++i)
                           kernels::gemm(b.stream(), columns(dx, i, K), how, columns(dy, i, N), Transpose::no,
                                         b.value(w).narrow(0, i * N, N), Transpose::no);
                       });
                     });
}

Var joined_linear(Tape& tape, const Var& x, const std::vector<Var>& ws) {
  check_joined(x, ws);
  Stream& s = tape.stream();
  int64_t N = 0;
  for (const Var& w : ws) N += w.size(0);
  const Tensor y = s.empty(x.shape().with(x.shape().dims() - 1, N), x.dtype());
  std::vector<Var> inputs = {x};
  std::vector<Tensor> values;
  std::vector<Saved> saved;
  Saved in;
  for (const Var& w : ws) {
    inputs.push_back(w);
    values.push_back(w.value());
    saved.push_back(tape.save(w));
    if (w.needs_gradient()) in = tape.save(x);
  }
  joined_product(s, as_matrix(y), as_matrix(x.value()), values);
  return tape.record("joined_linear", y, inputs, [x = tape.slot(x), in, saved](Backward& b, const Tensor& gradient) {
    const Tensor dy = as_matrix(gradient);
    std::vector<Tensor> weights;
    for (const Saved& w : saved) weights.push_back(b.value(w));
    int64_t first = 0;
    for (size_t i = 0; i < saved.size(); first += weights[i].size(0), ++i)
      b.write(saved[i], [&](const Tensor& dw, Write how) {
        kernels::gemm(b.stream(), dw, how, dy.narrow(1, first, weights[i].size(0)), Transpose::yes,
                      as_matrix(b.value(in)), Transpose::no);
      });
    b.write(x, [&](const Tensor& dx, Write how) { joined_product_back(b.stream(), as_matrix(dx), how, dy, weights); });
  });
}

Var add_bias(Tape& tape, const Var& x, const Var& bias) {
  require<ShapeError>(x.shape().dims() >= 1 && is_floating(x.dtype()) && x.value().contiguous(),
                      "add_bias: x must be [.., N], floating and contiguous, got ", x.dtype(), " ", x.shape());
  check_bias("add_bias", x, bias, x.shape().last());
  Stream& s = tape.stream();
  const Tensor y = s.empty_like(x.value());
  kernels::repeat_row(s, as_matrix(y), bias.value());
  kernels::add(s, y, y, x.value());
  return tape.record(
      "add_bias", y, {x, bias}, [x = tape.slot(x), bias = tape.slot(bias)](Backward& b, const Tensor& dy) {
        b.write(bias, [&](const Tensor& db, Write how) { kernels::bias_backward(b.stream(), db, how, as_matrix(dy)); });
        b.add(x, dy);
      });
}

Var wide_linear(Tape& tape, const Var& x, const Var& w) {
  check_wide_linear(x, w);
  Stream& s = tape.stream();
  const Tensor y = s.empty(x.shape().with(x.shape().dims() - 1, w.size(0)), w.dtype());
  kernels::wide_linear(s, as_matrix(y), as_matrix(x.value()), w.value());
  return tape.record("wide_linear", y, {x, w},
                     [x = tape.slot(x), in = tape.save_for(w, x), w = tape.save(w)](Backward& b, const Tensor& dy) {
                       b.write(w, [&](const Tensor& dw, Write how) {
                         kernels::wide_linear_backward_weight(b.stream(), dw, how, as_matrix(dy),
                                                              as_matrix(b.value(in)));
                       });
                       b.write(x, [&](const Tensor& dx, Write how) {
                         kernels::wide_linear_backward_input(b.stream(), as_matrix(dx), how, as_matrix(dy), b.value(w));
                       });
                     });
}

}  // namespace witan::ops
