#include "witan/kernels/pointwise/elementwise.h"

#include <utility>

#include "witan/ops/pointwise/elementwise.h"

namespace witan::ops {
namespace {

void check(const char* op, const Var& x) {
  require<ShapeError>(is_floating(x.dtype()) && x.value().contiguous(), op, ": x must be floating and contiguous, got ",
                      x.dtype(), " ", x.shape());
}

void check_term(const ScaledTerm& term, const Var& like) {
  require<ShapeError>(is_floating(term.x.dtype()) && term.x.value().contiguous(),
                      "scaled_sum: x must be floating and contiguous, got ", term.x.dtype(), " ", term.x.shape());
  require<ShapeError>(term.x.shape() == like.shape() && term.x.dtype() == like.dtype(),
                      "scaled_sum: a and b must be alike, got ", like.dtype(), " ", like.shape(), " and ",
                      term.x.dtype(), " ", term.x.shape());
  require<ShapeError>(!term.w.defined() || (term.w.shape() == Shape{1} && term.w.dtype() == like.dtype()),
                      "scaled_sum: w must be ", like.dtype(), " [1]",
                      term.w.defined() ? cat(", got ", term.w.dtype(), " ", term.w.shape()) : "");
}

Tensor value_or_undefined(const Var& var) {
  return var.defined() ? var.value() : Tensor();
}

// The part of a term that its backward needs. A term without a factor needs only the slot of its gradient.
struct KeptTerm {
  Slot to;
  Saved x, w;
  bool scaled = false;

  KeptTerm(Tape& tape, const ScaledTerm& term)
      : to(term.x.defined() ? tape.slot(term.x) : Slot()), scaled(term.w.defined()) {
    if (scaled) x = tape.save_for(term.w, term.x), w = tape.save(term.w);
  }
};

void term_backward(Backward& b, const KeptTerm& term, const Tensor& dy) {
  if (!term.scaled) return b.add(term.to, dy);
  Stream& s = b.stream();
  const Tensor dx = b.wants(term.to) ? s.empty_like(dy) : Tensor(), w = b.value(term.w);
  bool done = false;
  b.write(term.w, [&](const Tensor& dw, Write how) {
    const int64_t blocks = (dy.elements() + kernels::kSumBlock - 1) / kernels::kSumBlock;
    const Tensor partials = s.empty({blocks}, DType::f64, MemoryTag::workspace);
    kernels::scaled_sum_backward(s, dx, dw, how, partials, dy, b.value(term.x), w);
    done = true;
  });
  if (!dx.defined()) return;
  if (!done) kernels::scaled_sum(s, dx, dy, w, {}, {});
  b.add(term.to, dx);
}

}  // namespace

Var add(Tape& tape, const Var& a, const Var& b) {
  check("add", a);
  check("add", b);
  require<ShapeError>(a.shape() == b.shape() && a.dtype() == b.dtype(), "add: a and b must be alike, got ", a.dtype(),
                      " ", a.shape(), " and ", b.dtype(), " ", b.shape());
  const Tensor y = tape.stream().empty_like(a.value());
  kernels::add(tape.stream(), y, a.value(), b.value());
  return tape.record("add", y, {a, b}, [a = tape.slot(a), b = tape.slot(b)](Backward& context, const Tensor& dy) {
    context.add(a, dy);
    context.add(b, dy);
  });
}

Var scale(Tape& tape, const Var& x, double factor) {
  check("scale", x);
  const Tensor y = tape.stream().empty_like(x.value());
  kernels::scale(tape.stream(), y, Write::overwrite, x.value(), factor);
  return tape.record("scale", y, {x}, [x = tape.slot(x), factor](Backward& b, const Tensor& dy) {
    b.write(x, [&](const Tensor& dx, Write how) { kernels::scale(b.stream(), dx, how, dy, factor); });
  });
}

Var scale_over(Tape& tape, Var x, double factor) {
  check("scale_over", x);
  const Tensor y = x.unique() ? x.value() : tape.stream().empty_like(x.value());
  kernels::scale(tape.stream(), y, Write::overwrite, x.value(), factor);
  return tape.record("scale_over", y, {x}, [slot = tape.slot(x), factor](Backward& b, const Tensor& dy) {
    const Tensor dx = dy.unique() ? dy : b.stream().empty_like(dy);
    kernels::scale(b.stream(), dx, Write::overwrite, dy, factor);
    b.add(slot, dx);
  });
}

Var cast(Tape& tape, const Var& x, DType dtype) {
  check("cast", x);
  require<ShapeError>(is_floating(dtype), "cast: only floating dtypes carry gradients, asked for ", dtype);
  const Tensor y = tape.stream().empty(x.shape(), dtype);
  kernels::cast(tape.stream(), y, x.value());
  return tape.record("cast", y, {x}, [slot = tape.slot(x), from = x.dtype()](Backward& b, const Tensor& dy) {
    const Tensor dx = b.stream().empty(dy.shape(), from);
    kernels::cast(b.stream(), dx, dy);
    b.add(slot, dx);
  });
}

Var sum(Tape& tape, const Var& x) {
  check("sum", x);
  Stream& s = tape.stream();
  const int64_t blocks = (x.value().elements() + kernels::kSumBlock - 1) / kernels::kSumBlock;
  const Tensor y = s.empty({1}, accumulator(x.dtype()));
  const Tensor partials = s.empty({blocks}, DType::f64, MemoryTag::workspace);
  kernels::sum(s, y, partials, x.value());
  return tape.record("sum", y, {x},
                     [slot = tape.slot(x), shape = x.shape(), dtype = x.dtype()](Backward& b, const Tensor& dy) {
                       const Tensor dx = b.stream().empty(shape, dtype);
                       kernels::broadcast(b.stream(), dx, dy);
                       b.add(slot, dx);
                     });
}

Var weighted_sum(Tape& tape, const std::vector<std::pair<Var, double>>& terms) {
  require<ShapeError>(!terms.empty(), "weighted_sum: at least one term is needed");
  const DType dtype = terms[0].first.dtype();
  const Tensor y = tape.stream().empty({1}, dtype);
  std::vector<Var> inputs;
  std::vector<std::pair<Slot, double>> slots;
  for (const auto& [x, factor] : terms) {
    check("weighted_sum", x);
    require<ShapeError>(x.shape() == Shape{1} && x.dtype() == dtype, "weighted_sum: every term must be [1] ", dtype,
                        ", got ", x.dtype(), " ", x.shape());
    kernels::scale(tape.stream(), y, inputs.empty() ? Write::overwrite : Write::accumulate, x.value(), factor);
    inputs.push_back(x);
    slots.emplace_back(tape.slot(x), factor);
  }
  return tape.record("weighted_sum", y, inputs, [slots = std::move(slots)](Backward& b, const Tensor& dy) {
    for (const auto& [x, factor] : slots)
      b.write(x, [&, alpha = factor](const Tensor& dx, Write how) { kernels::scale(b.stream(), dx, how, dy, alpha); });
  });
}

Var clamp(Tape& tape, const Var& x, double bound) {
  require<ShapeError>(is_floating(x.dtype()) && x.value().contiguous(),
                      "clamp: x must be floating and contiguous, got ", x.dtype(), " ", x.shape());
  require<ShapeError>(bound > 0, "clamp: the bound must be above 0, got ", bound);
  const Tensor y = tape.stream().empty_like(x.value());
  kernels::clamp_forward(tape.stream(), y, x.value(), bound);
  return tape.record("clamp", y, {x}, [x = tape.save(x), bound](Backward& b, const Tensor& dy) {
    const Tensor in = b.value(x), dx = b.stream().empty_like(in);
    kernels::clamp_backward(b.stream(), dx, dy, in, bound);
    b.add(x, dx);
  });
}

Var soft_cap(Tape& tape, Var x, double scale, double cap) {
  require<ShapeError>(is_floating(x.dtype()) && x.value().contiguous(),
                      "soft_cap: x must be floating and contiguous, got ", x.dtype(), " ", x.shape());
  require<ShapeError>(cap > 0, "soft_cap: the bound must be above 0, got ", cap);
  const Tensor y = x.unique() ? x.value() : tape.stream().empty_like(x.value());
  kernels::soft_cap_forward(tape.stream(), y, x.value(), scale, cap);
  return tape.record("soft_cap", y, {x},
                     [slot = tape.slot(x), y = tape.save(y), scale, cap](Backward& b, const Tensor& dy) {
                       const Tensor dx = dy.unique() ? dy : b.stream().empty_like(dy);
                       kernels::soft_cap_backward(b.stream(), dx, dy, b.value(y), scale, cap);
                       b.add(slot, dx);
                     });
}

Var scaled_sum(Tape& tape, const ScaledTerm& a, const ScaledTerm& b) {
  check_term(a, a.x);
  std::vector<Var> inputs;
  for (const ScaledTerm* term : {&a, &b}) {
    if (!term->x.defined()) continue;
    check_term(*term, a.x);
    inputs.push_back(term->x);
    if (term->w.defined()) inputs.push_back(term->w);
  }
  const Tensor y = tape.stream().empty_like(a.x.value());
  kernels::scaled_sum(tape.stream(), y, a.x.value(), value_or_undefined(a.w), value_or_undefined(b.x),
                      value_or_undefined(b.w));
  return tape.record("scaled_sum", y, inputs,
                     [first = KeptTerm(tape, a), second = KeptTerm(tape, b), two = b.x.defined()](Backward& context,
                                                                                                  const Tensor& dy) {
                       term_backward(context, first, dy);
                       if (two) term_backward(context, second, dy);
                     });
}

Var row_gate(Tape& tape, const Var& x, const Var& gate) {
  require<ShapeError>(x.shape().dims() >= 1 && is_floating(x.dtype()) && x.value().contiguous(),
                      "row_gate: x must be [.., D], floating and contiguous, got ", x.dtype(), " ", x.shape());
  require<ShapeError>(gate.shape() == x.shape().with(x.shape().dims() - 1, 1) && gate.dtype() == x.dtype(),
                      "row_gate: gate must be ", x.dtype(), " ", x.shape().with(x.shape().dims() - 1, 1), ", got ",
                      gate.dtype(), " ", gate.shape());
  const Tensor y = tape.stream().empty_like(x.value());
  kernels::row_gate_forward(tape.stream(), y, x.value(), gate.value());
  return tape.record("row_gate", y, {x, gate},
                     [x = tape.save(x), gate = tape.save(gate)](Backward& b, const Tensor& dy) {
                       const Tensor in = b.value(x), of = b.value(gate);
                       const Tensor dx = b.stream().empty_like(in), dgate = b.stream().empty_like(of);
                       kernels::row_gate_backward(b.stream(), dx, dgate, dy, in, of);
                       b.add(x, dx);
                       b.add(gate, dgate);
                     });
}

Var sigmoid_gate(Tape& tape, const Var& x, const Var& gate) {
  require<ShapeError>(x.shape().dims() >= 1 && is_floating(x.dtype()) && x.value().contiguous(),
                      "sigmoid_gate: x must be floating and contiguous, got ", x.dtype(), " ", x.shape());
  require<ShapeError>(gate.shape() == x.shape() && gate.dtype() == x.dtype() && gate.value().contiguous(),
                      "sigmoid_gate: gate must be contiguous and ", x.dtype(), " ", x.shape(), ", got ", gate.dtype(),
                      " ", gate.shape());
  const Tensor y = tape.stream().empty_like(x.value());
  kernels::sigmoid_gate_forward(tape.stream(), y, x.value(), gate.value());
  return tape.record("sigmoid_gate", y, {x, gate},
                     [x = tape.save(x), gate = tape.save(gate)](Backward& b, const Tensor& dy) {
                       const Tensor in = b.value(x), of = b.value(gate);
                       const Tensor dx = b.stream().empty_like(in), dgate = b.stream().empty_like(of);
                       kernels::sigmoid_gate_backward(b.stream(), dx, dgate, dy, in, of);
                       b.add(x, dx);
                       b.add(gate, dgate);
                     });
}

}  // namespace witan::ops
