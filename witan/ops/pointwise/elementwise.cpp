#include "witan/ops/pointwise/elementwise.h"

#include "witan/kernels/pointwise/elementwise.h"

namespace witan::ops {
namespace {

void check(const char* op, const Var& x) {
  require<ShapeError>(is_floating(x.dtype()) && x.value().contiguous(), op, ": x must be floating and contiguous, got ",
                      x.dtype(), " ", x.shape());
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

}  // namespace witan::ops
