#include "witan/ops/linear_attention/gated_convolution.h"

#include "witan/kernels/linear_attention/short_convolution.h"
#include "witan/ops/linear_attention/written_together.h"
#include "witan/ops/shape/shape.h"

namespace witan::ops {
namespace {

using kernels::multiply_columns;

void check_gated_convolution(const Var& bcx, const Var& w, const Var& bias, const Tensor& ids) {
  const char* const op = "gated_convolution";
  require<ShapeError>(w.shape().dims() == 2 && w.size(1) >= 2 && w.dtype() == bcx.dtype(), op, ": w must be ",
                      bcx.dtype(), " [C, W], W at least 2, got ", w.dtype(), " ", w.shape());
  const int64_t C = w.size(0);
  require<ShapeError>(bcx.shape().dims() == 3 && bcx.size(2) == 3 * C && bcx.value().contiguous(), op,
                      ": bcx must be contiguous [B, S, 3 C = ", 3 * C, "], got ", bcx.shape());
  require<ShapeError>(!bias.defined() || (bias.shape() == Shape{C} && bias.dtype() == bcx.dtype()), op,
                      ": bias must be ", bcx.dtype(), " ", Shape{C});
  require<ShapeError>(!ids.defined() || (ids.shape() == Shape{bcx.size(0), bcx.size(1)} && ids.dtype() == DType::i32),
                      op, ": sequence_ids must be int32 ", Shape{bcx.size(0), bcx.size(1)});
}

// The part-th third of the columns of a [B, S, 3 C], as [B S, C].
Tensor third(const Tensor& bcx, int64_t part) {
  const Tensor rows = as_matrix(bcx);
  const int64_t C = rows.size(1) / 3;
  return rows.narrow(1, part * C, C);
}

}  // namespace

Var gated_convolution(Tape& tape, const Var& bcx, const Var& w, const Var& bias, const Tensor& sequence_ids) {
  check_gated_convolution(bcx, w, bias, sequence_ids);
  Stream& s = tape.stream();
  const Tensor y = s.empty({bcx.size(0), bcx.size(1), w.size(0)}, bcx.dtype());
  {
    const Tensor u = s.empty_like(y), v = s.empty_like(y);
    multiply_columns(s, as_matrix(u), third(bcx.value(), 0), third(bcx.value(), 2));
    kernels::short_convolution_forward(s, v, u, {w.value(), bias.defined() ? bias.value() : Tensor(), false},
                                       sequence_ids);
    multiply_columns(s, as_matrix(y), third(bcx.value(), 1), as_matrix(v));
  }
  auto backward = [bcx = tape.save(bcx), w = tape.save(w), bias = bias.defined() ? tape.save(bias) : Saved(),
                   ids = sequence_ids.defined() ? tape.save(sequence_ids) : Saved()](Backward& b, const Tensor& dy) {
    Stream& stream = b.stream();
    const Tensor in = b.value(bcx), gradient = stream.empty_like(in);
    const kernels::ConvolutionFilters filters{b.value(w), b.value(bias), false};
    const Tensor u = stream.empty_like(dy), other = stream.empty_like(dy), du = stream.empty_like(dy);
    multiply_columns(stream, as_matrix(u), third(in, 0), third(in, 2));
    kernels::short_convolution_forward(stream, other, u, filters, b.value(ids));
    multiply_columns(stream, third(gradient, 1), as_matrix(dy), as_matrix(other));
    multiply_columns(stream, as_matrix(other), as_matrix(dy), third(in, 1));
    kernels::ConvolutionGradients to{du, {}};
    write_together(b, {{w, to.dw, to.write_w}, {bias, to.dbias, to.write_bias}},
                   [&] { kernels::short_convolution_backward(stream, to, other, u, filters, b.value(ids)); });
    multiply_columns(stream, third(gradient, 0), as_matrix(du), third(in, 2));
    multiply_columns(stream, third(gradient, 2), as_matrix(du), third(in, 0));
    b.add(bcx, gradient);
  };
  std::vector<Var> inputs = {bcx, w};
  if (bias.defined()) inputs.push_back(bias);
  return tape.record("gated_convolution", y, inputs, std::move(backward));
}

}  // namespace witan::ops
