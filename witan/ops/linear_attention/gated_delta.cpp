#include "witan/ops/linear_attention/gated_delta.h"

#include <utility>

#include "witan/kernels/linear_attention/short_convolution.h"
#include "witan/ops/linear_attention/written_together.h"

namespace witan::ops {
namespace {

void check_sequence_ids(const char* op, const Tensor& ids, const Var& x) {
  if (!ids.defined()) return;
  require<ShapeError>(ids.shape() == Shape{x.size(0), x.size(1)} && ids.dtype() == DType::i32, op,
                      ": sequence_ids must be int32 ", Shape{x.size(0), x.size(1)}, ", got ", ids.dtype(), " ",
                      ids.shape());
}

void check_vector(const char* op, const char* name, const Var& v, const Var& x) {
  const Shape expected{x.shape().last()};
  const DType wide = accumulator(x.dtype());
  require<ShapeError>(v.shape() == expected && v.dtype() == wide, op, ": ", name, " must be ", wide, " ", expected,
                      ", got ", v.dtype(), " ", v.shape());
}

void check_alike(const char* op, const char* name, const Var& v, const Var& x) {
  require<ShapeError>(v.shape() == x.shape() && v.dtype() == x.dtype() && v.value().contiguous(), op, ": ", name,
                      " must be contiguous and ", x.dtype(), " ", x.shape(), ", got ", v.dtype(), " ", v.shape());
}

void check_convolution(const Var& x, const std::vector<Var>& ws, const std::vector<Var>& biases, const Tensor& ids) {
  const char* const op = "short_convolution";
  require<ShapeError>(x.shape().dims() == 3 && x.value().contiguous(), op, ": x must be contiguous [B, S, C], got ",
                      x.shape());
  int64_t channels = 0;
  for (const Var& w : ws) {
    require<ShapeError>(w.shape().dims() == 2 && w.size(1) >= 2 && w.dtype() == x.dtype(), op, ": w must be ",
                        x.dtype(), " [C, W], W at least 2, got ", w.dtype(), " ", w.shape());
    channels += w.size(0);
  }
  require<ShapeError>(channels == x.size(2), op, ": taps of ", channels, " channels for x ", x.shape());
  require<ShapeError>(biases.empty() || biases.size() == ws.size(), op, ": ", biases.size(), " biases for ", ws.size(),
                      " tensors of taps");
  for (size_t i = 0; i < biases.size(); ++i)
    require<ShapeError>(biases[i].shape() == Shape{ws[i].size(0)} && biases[i].dtype() == x.dtype(), op,
                        ": a bias must be ", x.dtype(), " ", Shape{ws[i].size(0)}, ", got ", biases[i].dtype(), " ",
                        biases[i].shape());
  check_sequence_ids(op, ids, x);
}

void check_delta(const Var& qkv, const DeltaGates& gates, const Tensor& ids, const kernels::DeltaHeads& heads) {
  const char* const op = "gated_delta_rule";
  require<ShapeError>(heads.keys > 0 && heads.values % heads.keys == 0, op, ": ", heads.values,
                      " heads of values cannot share ", heads.keys, " heads of keys evenly");
  require<ShapeError>(qkv.shape().dims() == 3 && qkv.size(2) == heads.channels() && qkv.value().contiguous(), op,
                      ": qkv must be contiguous [B, S, ", heads.channels(), "], got ", qkv.shape());
  const DType wide = accumulator(qkv.dtype());
  const auto is = [&](const Var& gate, int64_t channels) {
    return gate.shape() == Shape{qkv.size(0), qkv.size(1), channels} && gate.dtype() == wide;
  };
  const Shape of_gates{qkv.size(0), qkv.size(1), heads.values};
  require<ShapeError>(is(gates.beta, heads.values), op, ": gates must be ", wide, " ", of_gates, ", got ",
                      gates.beta.dtype(), " ", gates.beta.shape());
  require<ShapeError>(is(gates.g, heads.values) || is(gates.g, heads.values * heads.key_dim), op, ": gates must be ",
                      wide, " ", of_gates, ", those of decays also with ", heads.key_dim, " numbers for each, got ",
                      gates.g.dtype(), " ", gates.g.shape());
  check_sequence_ids(op, ids, qkv);
}

Saved save_if_defined(Tape& tape, const Tensor& x) {
  return x.defined() ? tape.save(x) : Saved();
}

}  // namespace

Var short_convolution(Tape& tape, const Var& x, const std::vector<Var>& ws, const std::vector<Var>& biases,
                      const Tensor& sequence_ids) {
  check_convolution(x, ws, biases, sequence_ids);
  Stream& s = tape.stream();
  const Tensor y = s.empty_like(x.value());
  std::vector<Var> inputs = {x};
  std::vector<std::pair<Saved, Saved>> saved;  // taps, and biases or nothing
  int64_t first = 0;
  for (size_t i = 0; i < ws.size(); ++i) {
    const Var& w = ws[i];
    const Var bias = biases.empty() ? Var() : biases[i];
    kernels::short_convolution_forward(s, y.narrow(2, first, w.size(0)), x.value().narrow(2, first, w.size(0)),
                                       {w.value(), bias.defined() ? bias.value() : Tensor()}, sequence_ids);
    first += w.size(0);
    inputs.push_back(w);
    if (bias.defined()) inputs.push_back(bias);
    saved.emplace_back(tape.save(w), bias.defined() ? tape.save(bias) : Saved());
  }
  auto backward = [x = tape.save(x), saved, ids = save_if_defined(tape, sequence_ids)](Backward& b, const Tensor& dy) {
    const Tensor in = b.value(x);
    const Tensor dx = b.wants(x) ? b.stream().empty_like(in) : Tensor();
    int64_t begin = 0;
    for (const auto& [w, bias] : saved) {
      const Tensor taps = b.value(w);
      const auto part = [&](const Tensor& of) { return of.defined() ? of.narrow(2, begin, taps.size(0)) : Tensor(); };
      kernels::ConvolutionGradients to{part(dx), {}};
      const auto run = [&] {
        kernels::short_convolution_backward(b.stream(), to, part(dy), part(in), {taps, b.value(bias)}, b.value(ids));
      };
      write_together(b, {{w, to.dw, to.write_w}, {bias, to.dbias, to.write_bias}}, run);
      begin += taps.size(0);
    }
    if (dx.defined()) b.add(x, dx);
  };
  return tape.record("short_convolution", y, inputs, std::move(backward));
}

DeltaGates delta_gates(Tape& tape, const Var& a, const Var& b, const Var& A_log, const Var& dt_bias) {
  const int64_t heads = b.shape().last(), channels = a.shape().last();
  require<ShapeError>(heads > 0 && channels % heads == 0, "delta_gates: ", channels, " decays for ", heads, " heads");
  check_alike("delta_gates", "b", b, channels == heads ? a : b);
  check_vector("delta_gates", "A_log", A_log, b);
  check_vector("delta_gates", "dt_bias", dt_bias, a);
  Stream& s = tape.stream();
  const Tensor g = s.empty(a.shape(), accumulator(a.dtype())), beta = s.empty(b.shape(), g.dtype());
  kernels::delta_gates_forward(s, g, beta, a.value(), b.value(), A_log.value(), dt_bias.value());
  auto backward = [a = tape.save(a), b = tape.save(b), A = tape.save(A_log), bias = tape.save(dt_bias)](
                      Backward& context, const std::vector<Tensor>& gradients) {
    Stream& stream = context.stream();
    const Tensor in_a = context.value(a), in_b = context.value(b);
    const auto gradient = [&](size_t i, const Tensor& like) {
      return gradients[i].defined() ? gradients[i] : stream.zeros(like.shape(), accumulator(like.dtype()));
    };
    const Tensor dg = gradient(0, in_a), dbeta = gradient(1, in_b);
    kernels::DeltaGateGradients to{stream.empty_like(in_a), stream.empty_like(in_b), {}, {}};
    const auto run = [&] {
      kernels::delta_gates_backward(stream, to, dg, dbeta, in_a, in_b, context.value(A), context.value(bias));
    };
    write_together(context, {{A, to.dA, to.write_A}, {bias, to.dbias, to.write_bias}}, run);
    context.add(a, to.da);
    context.add(b, to.db);
  };
  const auto out = tape.record("delta_gates", std::vector{g, beta}, {a, b, A_log, dt_bias}, std::move(backward));
  return {out[0], out[1]};
}

Var gated_delta_rule(Tape& tape, const Var& qkv, const DeltaGates& gates, const Tensor& sequence_ids,
                     const kernels::DeltaHeads& heads) {
  check_delta(qkv, gates, sequence_ids, heads);
  Stream& stream = tape.stream();
  const Tensor o = stream.empty({qkv.size(0), qkv.size(1), heads.value_channels()}, qkv.dtype());
  const kernels::DeltaInputs inputs{qkv.value(), gates.g.value(), gates.beta.value(), sequence_ids, heads};
  kernels::gated_delta_forward(stream, o, {}, inputs, kernels::delta_memory(stream, inputs, false));
  auto backward = [qkv = tape.save(qkv), g = tape.save(gates.g), beta = tape.save(gates.beta),
                   ids = save_if_defined(tape, sequence_ids), heads](Backward& b, const Tensor& d_o) {
    Stream& s = b.stream();
    const kernels::DeltaInputs in{b.value(qkv), b.value(g), b.value(beta), b.value(ids), heads};
    const kernels::DeltaGradients to{s.empty_like(in.qkv), s.empty_like(in.g), s.empty_like(in.beta),
                                     kernels::delta_memory(s, in, true)};
    kernels::gated_delta_backward(s, to, d_o, in);
    b.add(qkv, to.dqkv);
    b.add(g, to.dg);
    b.add(beta, to.dbeta);
  };
  return tape.record("gated_delta_rule", o, {qkv, gates.g, gates.beta}, std::move(backward));
}

Var gated_rmsnorm(Tape& tape, const Var& x, const Var& z, const Var& w, double eps) {
  check_alike("gated_rmsnorm", "x", x, x);
  check_alike("gated_rmsnorm", "z", z, x);
  check_vector("gated_rmsnorm", "w", w, x);
  Stream& s = tape.stream();
  const Tensor y = s.empty_like(x.value()), r = s.empty({x.shape().as_rows().first}, accumulator(x.dtype()));
  kernels::gated_rmsnorm_forward(s, y, r, x.value(), z.value(), w.value(), eps);
  return tape.record(
      "gated_rmsnorm", y, {x, z, w},
      [x = tape.save(x), z = tape.save(z), w = tape.save(w), r = tape.save(r)](Backward& b, const Tensor& dy) {
        const Tensor in = b.value(x), gate = b.value(z);
        kernels::GatedNormGradients to{b.stream().empty_like(in), b.stream().empty_like(gate), {}};
        const auto run = [&](const Tensor& dw, Write how) {
          to.dw = dw, to.write = how;
          kernels::gated_rmsnorm_backward(b.stream(), to, dy, in, gate, b.value(w), b.value(r));
        };
        b.write(w, run);
        if (!b.wants(w)) run({}, Write::overwrite);
        b.add(x, to.dx);
        b.add(z, to.dz);
      });
}

}  // namespace witan::ops
