#include "witan/ops/pointwise/scaled_sum.h"

#include "witan/kernels/pointwise/elementwise.h"

namespace witan::ops {
namespace {

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

// What the backward of a term needs: of one without a factor nothing but where its gradient goes.
struct KeptTerm {
  Slot to;
  Saved x, w;
  bool scaled = false;

  KeptTerm(Tape& tape, const ScaledTerm& term)
      : to(term.x.defined() ? tape.slot(term.x) : Slot()), scaled(term.w.defined()) {
    if (scaled) x = tape.save(term.x), w = tape.save(term.w);
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

}  // namespace witan::ops
