#include "witan/ops/state_space/ssd.h"

#include <utility>

#include "witan/ops/linear_attention/written_together.h"

namespace witan::ops {
namespace {

void check_wide(const char* op, const char* name, const Var& v, const Shape& shape, DType of) {
  const DType wide = accumulator(of);
  require<ShapeError>(v.shape() == shape && v.dtype() == wide, op, ": ", name, " must be ", wide, " ", shape, ", got ",
                      v.dtype(), " ", v.shape());
}

void check_ssd(const Var& xbc, const SsdGates& gates, const Var& D, const Tensor& ids, const kernels::SsdHeads& heads) {
  const char* const op = "ssd";
  require<ShapeError>(heads.groups > 0 && heads.heads % heads.groups == 0, op, ": ", heads.heads,
                      " heads cannot share ", heads.groups, " groups evenly");
  require<ShapeError>(xbc.shape().dims() == 3 && xbc.size(2) == heads.channels() && xbc.value().contiguous(), op,
                      ": xbc must be contiguous [B, S, ", heads.channels(), "], got ", xbc.shape());
  const Shape tokens{xbc.size(0), xbc.size(1)};
  check_wide(op, "dt", gates.dt, {tokens[0], tokens[1], heads.heads}, xbc.dtype());
  check_wide(op, "a", gates.a, {tokens[0], tokens[1], heads.heads}, xbc.dtype());
  check_wide(op, "D", D, {heads.heads}, xbc.dtype());
  require<ShapeError>(!ids.defined() || (ids.shape() == tokens && ids.dtype() == DType::i32), op,
                      ": sequence_ids must be int32 ", tokens, ", got ", ids.defined() ? ids.shape() : Shape());
}

Saved saved_if_defined(Tape& tape, const Tensor& x) {
  return x.defined() ? tape.save(x) : Saved();
}

Tensor zeros_unless_defined(Stream& stream, const Tensor& gradient, const Tensor& like) {
  return gradient.defined() ? gradient : stream.zeros(like.shape(), like.dtype());
}

}  // namespace

SsdGates ssd_gates(Tape& tape, const Var& raw, const Var& A_log, const Var& dt_bias, double least) {
  const Shape heads{raw.shape().last()};
  require<ShapeError>(raw.value().contiguous(), "ssd_gates: raw must be contiguous");
  check_wide("ssd_gates", "A_log", A_log, heads, raw.dtype());
  check_wide("ssd_gates", "dt_bias", dt_bias, heads, raw.dtype());
  Stream& s = tape.stream();
  const Tensor dt = s.empty(raw.shape(), accumulator(raw.dtype())), a = s.empty_like(dt);
  kernels::ssd_gates_forward(s, dt, a, raw.value(), A_log.value(), dt_bias.value(), least);
  auto backward = [raw = tape.save(raw), A = tape.save(A_log), bias = tape.save(dt_bias), least](
                      Backward& b, const std::vector<Tensor>& gradients) {
    Stream& stream = b.stream();
    const Tensor in = b.value(raw);
    const Tensor& any = gradients[0].defined() ? gradients[0] : gradients[1];
    const Tensor ddt = zeros_unless_defined(stream, gradients[0], any),
                 da = zeros_unless_defined(stream, gradients[1], any);
    kernels::SsdGateGradients to{stream.empty_like(in)};
    write_together(b, {{A, to.dA, to.write_A}, {bias, to.dbias, to.write_bias}},
                   [&] { kernels::ssd_gates_backward(stream, to, ddt, da, in, b.value(A), b.value(bias), least); });
    b.add(raw, to.draw);
  };
  const auto out = tape.record("ssd_gates", std::vector{dt, a}, {raw, A_log, dt_bias}, std::move(backward));
  return {out[0], out[1]};
}

Var ssd(Tape& tape, const Var& xbc, const SsdGates& gates, const Var& D, const Tensor& sequence_ids,
        const kernels::SsdHeads& heads, bool tensor_cores) {
  check_ssd(xbc, gates, D, sequence_ids, heads);
  Stream& s = tape.stream();
  const Tensor y = s.empty({xbc.size(0), xbc.size(1), heads.inner()}, xbc.dtype());
  kernels::ssd_forward(s, y, {}, {xbc.value(), gates.dt.value(), gates.a.value(), D.value(), sequence_ids, heads},
                       tensor_cores ? kernels::ssd_memory(s, xbc.value(), heads, false) : kernels::SsdMemory());
  auto backward = [xbc = tape.save(xbc), dt = tape.save(gates.dt), a = tape.save(gates.a), D = tape.save(D),
                   ids = saved_if_defined(tape, sequence_ids), heads](Backward& b, const Tensor& dy) {
    Stream& stream = b.stream();
    const kernels::SsdInputs in{b.value(xbc), b.value(dt), b.value(a), b.value(D), b.value(ids), heads};
    kernels::SsdGradients to{stream.empty_like(in.xbc), stream.empty_like(in.dt), stream.empty_like(in.a)};
    to.memory = kernels::ssd_memory(stream, in.xbc, heads, true);
    write_together(b, {{D, to.dD, to.write_D}}, [&] { kernels::ssd_backward(stream, to, dy, in); });
    b.add(xbc, to.dxbc);
    b.add(dt, to.ddt);
    b.add(a, to.da);
  };
  return tape.record("ssd", y, {xbc, gates.dt, gates.a, D}, std::move(backward));
}

Var gated_group_rmsnorm(Tape& tape, const Var& x, const Var& z, const Var& w, int64_t groups, double eps) {
  const int64_t D = x.shape().last();
  require<ShapeError>(groups > 0 && D % groups == 0, "gated_group_rmsnorm: ", D, " channels have no ", groups,
                      " equal groups");
  require<ShapeError>(
      z.shape() == x.shape() && z.dtype() == x.dtype() && z.value().contiguous() && x.value().contiguous(),
      "gated_group_rmsnorm: x and z must be contiguous and alike, got ", x.dtype(), " ", x.shape(), " and ", z.dtype(),
      " ", z.shape());
  check_wide("gated_group_rmsnorm", "w", w, {D}, x.dtype());
  Stream& s = tape.stream();
  const Tensor y = s.empty_like(x.value()), r = s.empty({x.shape().as_rows().first, groups}, accumulator(x.dtype()));
  kernels::gated_group_rmsnorm_forward(s, y, r, x.value(), z.value(), w.value(), eps);
  return tape.record(
      "gated_group_rmsnorm", y, {x, z, w},
      [x = tape.save(x), z = tape.save(z), w = tape.save(w), r = tape.save(r)](Backward& b, const Tensor& dy) {
        const Tensor in = b.value(x), gate = b.value(z);
        kernels::GatedGroupNormGradients to{b.stream().empty_like(in), b.stream().empty_like(gate)};
        write_together(b, {{w, to.dw, to.write}}, [&] {
          kernels::gated_group_rmsnorm_backward(b.stream(), to, dy, in, gate, b.value(w), b.value(r));
        });
        b.add(x, to.dx);
        b.add(z, to.dz);
      });
}

}  // namespace witan::ops
