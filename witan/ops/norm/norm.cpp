#include "witan/ops/norm/norm.h"

#include "witan/kernels/norm/norm.h"
#include "witan/kernels/pointwise/elementwise.h"

namespace witan::ops {
namespace {

void check_weight(const char* op, const char* name, const Var& x, const Var& w) {
  require<ShapeError>(x.shape().dims() >= 1, op, ": x must have at least one dim");
  const int64_t D = x.shape().last();
  require<ShapeError>(w.shape() == Shape{D}, op, ": ", name, " must be [D=", D, "], got ", w.shape());
  require<ShapeError>(w.dtype() == x.dtype(), op, ": ", name, " is ", w.dtype(), " but x is ", x.dtype());
}

// The weight that leaves rows as they are, which kernels read if a norm has none.
Var or_neutral(Tape& tape, const Var& w, const Var& x, bool zero_centered) {
  if (w.defined() || x.shape().dims() == 0) return w;
  const Tensor neutral = tape.stream().empty({x.shape().last()}, x.dtype());
  kernels::fill(tape.stream(), neutral, zero_centered ? 0 : 1);
  return tape.constant(neutral);
}

// A weight that the backward reads.
struct SavedWeight {
  Saved values;
  bool zero_centered;

  kernels::NormWeight in(Backward& b) const { return {b.value(values), zero_centered}; }
};

// dx = [dsum +] the gradient of rmsnorm's input; dx undefined: not wanted.
void rmsnorm_backward(Backward& b, const Tensor& dx, const Tensor& dsum, const Tensor& dy, const Tensor& x,
                      const SavedWeight& w, const Tensor& r) {
  b.write(w.values, [&](const Tensor& dw, Write how) {
    if (dx.defined())
      kernels::rmsnorm_backward(b.stream(), dx, dw, how, dsum, dy, x, w.in(b), r);
    else
      kernels::rmsnorm_backward_weight(b.stream(), dw, how, dy, x, r);
  });
  if (dx.defined() && !b.wants(w.values)) kernels::add_rmsnorm_backward_input(b.stream(), dx, dsum, dy, x, w.in(b), r);
}

Tensor value_or_none(const Var& v) {
  return v.defined() ? v.value() : Tensor();
}
Slot slot_or_none(Tape& tape, const Var& v) {
  return v.defined() ? tape.slot(v) : Slot();
}

struct LayerNormSaved {
  SavedWeight w;
  Slot bias;
  Saved mean, r;
};

// dx, as in rmsnorm_backward().
void layernorm_backward(Backward& b, const Tensor& dx, const Tensor& dsum, const Tensor& dy, const Tensor& x,
                        const LayerNormSaved& saved) {
  const Tensor mean = b.value(saved.mean), r = b.value(saved.r);
  kernels::NormGradients to;
  const auto run = [&] {
    if (dx.defined()) return kernels::layernorm_backward(b.stream(), dx, to, dsum, dy, x, saved.w.in(b), mean, r);
    if (to.dw.defined()) kernels::layernorm_backward_weight(b.stream(), to.dw, to.write_dw, dy, x, mean, r);
    if (to.db.defined()) kernels::bias_backward(b.stream(), to.db, to.write_db, dy);
  };
  // Both buffers are written by one call, which stands within what asks for them.
  const auto with_bias = [&] {
    if (!b.wants(saved.bias)) return run();
    b.write(saved.bias, [&](const Tensor& db, Write how) {
      to.db = db, to.write_db = how;
      run();
    });
  };
  if (!b.wants(saved.w.values)) return with_bias();
  b.write(saved.w.values, [&](const Tensor& dw, Write how) {
    to.dw = dw, to.write_dw = how;
    with_bias();
  });
}

// Gradients of a sum and of its norm -> that of a and of b; backward(dx, dsum, dy) makes it.
template <class Run>
void add_both(Backward& context, const Slot& a, const Slot& b, const std::vector<Tensor>& gradients, const Run& run) {
  const Tensor &dsum = gradients[0], &dy = gradients[1];
  const bool in_place = !dy.defined() || (dsum.defined() && dsum.unique());
  const Tensor dx = in_place ? dsum : context.stream().empty_like(dy);
  if (dy.defined()) run(dx, dsum, dy);
  context.add(a, dx);
  context.add(b, dx);
}

void check_sum(const char* op, const Var& a, const Var& b, const Var& w) {
  check_weight(op, "w", a, w);
  require<ShapeError>(a.shape() == b.shape() && a.dtype() == b.dtype(), op, ": a and b must be alike, got ", a.dtype(),
                      " ", a.shape(), " and ", b.dtype(), " ", b.shape());
}

}  // namespace

Var rmsnorm(Tape& tape, const Var& x, const Var& weight, double eps, bool zero_centered) {
  const Var w = or_neutral(tape, weight, x, zero_centered);
  check_weight("rmsnorm", "w", x, w);
  Stream& s = tape.stream();
  const int64_t T = x.shape().as_rows().first;
  const Tensor y = s.empty_like(x.value()), r = s.empty({T}, accumulator(x.dtype()));
  kernels::rmsnorm_forward(s, y, r, x.value(), {w.value(), zero_centered}, eps);
  return tape.record("rmsnorm", y, {x, w},
                     [x = tape.save(x), w = SavedWeight{tape.save(w), zero_centered}, r = tape.save(r)](
                         Backward& b, const Tensor& dy) {
                       const Tensor in = b.value(x);
                       const Tensor dx = b.wants(x) ? b.stream().empty_like(in) : Tensor();
                       rmsnorm_backward(b, dx, {}, dy, in, w, b.value(r));
                       if (dx.defined()) b.add(x, dx);
                     });
}

SumAndNorm add_rmsnorm(Tape& tape, const Var& a, const Var& b, const Var& weight, double eps, bool zero_centered) {
  const Var w = or_neutral(tape, weight, a, zero_centered);
  check_sum("add_rmsnorm", a, b, w);
  Stream& s = tape.stream();
  const int64_t T = a.shape().as_rows().first;
  const Tensor sum = s.empty_like(a.value()), y = s.empty_like(sum), r = s.empty({T}, accumulator(a.dtype()));
  kernels::add_rmsnorm_forward(s, sum, y, r, a.value(), b.value(), {w.value(), zero_centered}, eps);
  const auto out =
      tape.record("add_rmsnorm", {sum, y}, {a, b, w},
                  [a = tape.slot(a), b = tape.slot(b), w = SavedWeight{tape.save(w), zero_centered},
                   sum = tape.save(sum), r = tape.save(r)](Backward& context, const std::vector<Tensor>& gradients) {
                    add_both(context, a, b, gradients, [&](const Tensor& dx, const Tensor& dsum, const Tensor& dy) {
                      rmsnorm_backward(context, dx, dsum, dy, context.value(sum), w, context.value(r));
                    });
                  });
  return {out[0], out[1]};
}

Var sharded_rmsnorm(Tape& tape, const Var& x, const Var& weight, double eps, Group& group, bool zero_centered) {
  const Var w = or_neutral(tape, weight, x, zero_centered);
  if (group.size() == 1) return rmsnorm(tape, x, w, eps, zero_centered);
  check_weight("sharded_rmsnorm", "w", x, w);
  Stream& s = tape.stream();
  const auto [T, D] = x.shape().as_rows();
  const int64_t width = D * group.size();
  const Tensor y = s.empty_like(x.value()), r = s.empty({T}, accumulator(x.dtype()));
  {
    const Tensor sums = s.empty_like(r);
    kernels::sharded_rmsnorm_squares(s, sums, x.value());
    group.all_reduce(s, sums);
    kernels::sharded_rmsnorm_forward(s, y, r, x.value(), {w.value(), zero_centered}, sums, width, eps);
  }
  return tape.record("sharded_rmsnorm", y, {x, w},
                     [x = tape.save(x), w = SavedWeight{tape.save(w), zero_centered}, r = tape.save(r), width, &group](
                         Backward& b, const Tensor& dy) {
                       const Tensor in = b.value(x), scale = b.value(r), sums = b.stream().empty_like(scale);
                       kernels::sharded_rmsnorm_products(b.stream(), sums, dy, in, w.in(b));
                       group.all_reduce(b.stream(), sums);
                       b.write(w.values, [&](const Tensor& dw, Write how) {
                         kernels::rmsnorm_backward_weight(b.stream(), dw, how, dy, in, scale);
                       });
                       if (!b.wants(x)) return;
                       const Tensor dx = b.stream().empty_like(in);
                       kernels::sharded_rmsnorm_backward_input(b.stream(), dx, dy, in, w.in(b), scale, sums, width);
                       b.add(x, dx);
                     });
}

Var layernorm(Tape& tape, const Var& x, const Var& weight, const Var& bias, double eps, bool zero_centered) {
  const Var w = or_neutral(tape, weight, x, zero_centered);
  check_weight("layernorm", "w", x, w);
  if (bias.defined()) check_weight("layernorm", "b", x, bias);
  Stream& s = tape.stream();
  const int64_t T = x.shape().as_rows().first;
  const Tensor y = s.empty_like(x.value());
  const Tensor mean = s.empty({T}, accumulator(x.dtype())), r = s.empty_like(mean);
  kernels::layernorm_forward(s, y, mean, r, x.value(), {w.value(), zero_centered}, value_or_none(bias), eps);
  std::vector<Var> inputs = {x, w};
  if (bias.defined()) inputs.push_back(bias);
  return tape.record(
      "layernorm", y, inputs,
      [x = tape.save(x),
       saved = LayerNormSaved{{tape.save(w), zero_centered}, slot_or_none(tape, bias), tape.save(mean), tape.save(r)}](
          Backward& b, const Tensor& dy) {
        const Tensor in = b.value(x);
        const Tensor dx = b.wants(x) ? b.stream().empty_like(in) : Tensor();
        layernorm_backward(b, dx, {}, dy, in, saved);
        if (dx.defined()) b.add(x, dx);
      });
}

SumAndNorm add_layernorm(Tape& tape, const Var& a, const Var& b, const Var& weight, const Var& bias, double eps,
                         bool zero_centered) {
  const Var w = or_neutral(tape, weight, a, zero_centered);
  check_sum("add_layernorm", a, b, w);
  if (bias.defined()) check_weight("add_layernorm", "bias", a, bias);
  Stream& s = tape.stream();
  const int64_t T = a.shape().as_rows().first;
  const Tensor sum = s.empty_like(a.value()), y = s.empty_like(sum), mean = s.empty({T}, accumulator(a.dtype())),
               r = s.empty_like(mean);
  kernels::add_layernorm_forward(s, sum, y, mean, r, a.value(), b.value(), {w.value(), zero_centered},
                                 value_or_none(bias), eps);
  std::vector<Var> inputs = {a, b, w};
  if (bias.defined()) inputs.push_back(bias);
  const auto out = tape.record(
      "add_layernorm", {sum, y}, inputs,
      [a = tape.slot(a), b = tape.slot(b), sum = tape.save(sum),
       saved = LayerNormSaved{{tape.save(w), zero_centered}, slot_or_none(tape, bias), tape.save(mean), tape.save(r)}](
          Backward& context, const std::vector<Tensor>& gradients) {
        add_both(context, a, b, gradients, [&](const Tensor& dx, const Tensor& dsum, const Tensor& dy) {
          layernorm_backward(context, dx, dsum, dy, context.value(sum), saved);
        });
      });
  return {out[0], out[1]};
}

}  // namespace witan::ops
