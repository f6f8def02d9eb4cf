#include "witan/ops/pointwise/activation.h"

#include "witan/ops/shape/shape.h"

namespace witan::ops {
namespace {

void check(const char* op, const Var& h, const Var& row_weight, const RowGroups* groups) {
  require<ShapeError>(h.shape().dims() >= 1 && is_floating(h.dtype()), op, ": h must be floating and have a dim, got ",
                      h.dtype(), " ", h.shape());
  require<ShapeError>(h.value().contiguous(), op, ": h must be contiguous");
  const int64_t rows = h.shape().as_rows().first;
  if (row_weight.defined()) {
    require<ShapeError>(row_weight.shape() == Shape{rows}, op, ": row_weight must be [rows of h=", rows, "], got ",
                        row_weight.shape());
    require<ShapeError>(row_weight.dtype() == accumulator(h.dtype()), op, ": row_weight must be ",
                        accumulator(h.dtype()), " for h of ", h.dtype(), ", got ", row_weight.dtype());
  }
  if (!groups) return;
  require<ShapeError>(groups->begin.dtype() == DType::i64 && groups->count.dtype() == DType::i64 &&
                          groups->begin.shape().dims() == 1 && groups->begin.shape() == groups->count.shape(),
                      op, ": groups must be two tensors [E] int64, got ", groups->begin.shape(), " and ",
                      groups->count.shape());
}

// The tensors saved for both backwards.
struct KeptActivation {
  Saved h, row_weight;
  SavedGroups groups;
  bool weighted;

  KeptActivation(Tape& tape, const Var& input, const Var& weight, const RowGroups* within)
      : h(tape.save(input)),
        row_weight(weight.defined() ? tape.save(weight) : Saved()),
        groups(tape, within ? *within : RowGroups{}),
        weighted(weight.defined()) {}
};

// kernel(stream, dh, ds, dy, h, s, groups)
template <class Kernel>
Tape::BackwardFn1 backward_of(KeptActivation kept, Kernel kernel) {
  return [kept = std::move(kept), kernel](Backward& b, const Tensor& dy) {
    const Tensor h = b.value(kept.h), s = kept.weighted ? b.value(kept.row_weight) : Tensor();
    const Tensor dh = b.stream().empty_like(h);
    const Tensor ds = b.wants(kept.row_weight) ? b.stream().empty_like(s) : Tensor();
    kernel(b.stream(), dh, ds, dy, h, s, kept.groups.value(b));
    b.add(kept.h, dh);
    if (ds.defined()) b.add(kept.row_weight, ds);
  };
}

std::vector<Var> inputs_of(const Var& h, const Var& row_weight) {
  if (!row_weight.defined()) return {h};
  return {h, row_weight};
}

Tensor weight_or_none(const Var& var) {
  return var.defined() ? var.value() : Tensor();
}

// The output of a gate: h holds [gate | up].
Tensor empty_half(const char* op, Stream& stream, const Var& h) {
  require<ShapeError>(h.shape().last() % 2 == 0, op, ": the last dim holds [gate | up] and must be even, got ",
                      h.shape());
  return stream.empty(h.shape().with(h.shape().dims() - 1, h.shape().last() / 2), h.dtype());
}

}  // namespace

Var swiglu(Tape& tape, const Var& h, const Var& row_weight, const RowGroups* groups) {
  check("swiglu", h, row_weight, groups);
  const Tensor y = empty_half("swiglu", tape.stream(), h);
  kernels::swiglu_forward(tape.stream(), y, h.value(), weight_or_none(row_weight), groups ? *groups : RowGroups{});
  return tape.record("swiglu", y, inputs_of(h, row_weight),
                     backward_of(KeptActivation(tape, h, row_weight, groups), kernels::swiglu_backward));
}

Var clamped_swiglu(Tape& tape, const Var& h, const Var& row_weight, const RowGroups* groups, const SwigluForm& form) {
  check("clamped_swiglu", h, row_weight, groups);
  const Tensor y = empty_half("clamped_swiglu", tape.stream(), h);
  kernels::clamped_swiglu_forward(tape.stream(), y, h.value(), weight_or_none(row_weight),
                                  groups ? *groups : RowGroups{}, form);
  return tape.record(
      "clamped_swiglu", y, inputs_of(h, row_weight),
      backward_of(KeptActivation(tape, h, row_weight, groups), [form](Stream& stream, const auto&... rest) {
        kernels::clamped_swiglu_backward(stream, rest..., form);
      }));
}

Var squared_relu(Tape& tape, const Var& h, const Var& row_weight, const RowGroups* groups) {
  check("squared_relu", h, row_weight, groups);
  const Tensor y = tape.stream().empty_like(h.value());
  kernels::squared_relu_forward(tape.stream(), y, h.value(), weight_or_none(row_weight),
                                groups ? *groups : RowGroups{});
  return tape.record("squared_relu", y, inputs_of(h, row_weight),
                     backward_of(KeptActivation(tape, h, row_weight, groups), kernels::squared_relu_backward));
}

Var squared_reglu(Tape& tape, const Var& h, const Var& row_weight, const RowGroups* groups) {
  check("squared_reglu", h, row_weight, groups);
  const Tensor y = empty_half("squared_reglu", tape.stream(), h);
  kernels::squared_reglu_forward(tape.stream(), y, h.value(), weight_or_none(row_weight),
                                 groups ? *groups : RowGroups{});
  return tape.record("squared_reglu", y, inputs_of(h, row_weight),
                     backward_of(KeptActivation(tape, h, row_weight, groups), kernels::squared_reglu_backward));
}

Var silu(Tape& tape, const Var& h, const Var& row_weight, const RowGroups* groups) {
  check("silu", h, row_weight, groups);
  const Tensor y = tape.stream().empty_like(h.value());
  kernels::silu_forward(tape.stream(), y, h.value(), weight_or_none(row_weight), groups ? *groups : RowGroups{});
  return tape.record("silu", y, inputs_of(h, row_weight),
                     backward_of(KeptActivation(tape, h, row_weight, groups), kernels::silu_backward));
}

Var gelu(Tape& tape, const Var& h, const Var& row_weight, const RowGroups* groups, GeluKind kind) {
  check("gelu", h, row_weight, groups);
  const Tensor y = tape.stream().empty_like(h.value());
  kernels::gelu_forward(tape.stream(), y, h.value(), weight_or_none(row_weight), groups ? *groups : RowGroups{}, kind);
  return tape.record(
      "gelu", y, inputs_of(h, row_weight),
      backward_of(KeptActivation(tape, h, row_weight, groups),
                  [kind](Stream& stream, const auto&... rest) { kernels::gelu_backward(stream, rest..., kind); }));
}

Var geglu(Tape& tape, const Var& h, const Var& row_weight, const RowGroups* groups, GeluKind kind) {
  check("geglu", h, row_weight, groups);
  const Tensor y = empty_half("geglu", tape.stream(), h);
  kernels::geglu_forward(tape.stream(), y, h.value(), weight_or_none(row_weight), groups ? *groups : RowGroups{}, kind);
  return tape.record(
      "geglu", y, inputs_of(h, row_weight),
      backward_of(KeptActivation(tape, h, row_weight, groups),
                  [kind](Stream& stream, const auto&... rest) { kernels::geglu_backward(stream, rest..., kind); }));
}

}  // namespace witan::ops
