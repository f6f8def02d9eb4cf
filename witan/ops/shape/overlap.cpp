#include "witan/ops/shape/overlap.h"

#include <memory>
#include <utility>
#include <vector>

#include "witan/autograd/concurrent.h"

namespace witan::ops {
namespace {

// A backward between its two nodes. It lives as long as the second one, and with it what the side stream reads.
struct UnderWay {
  decltype(MovableOp::backward) backward;
  std::vector<Tensor> gradients;  // of the op's inputs
};

std::vector<Slot> slots_of(const Tape& tape, const std::vector<Var>& vars) {
  std::vector<Slot> slots;
  for (const Var& var : vars) slots.push_back(tape.slot(var));
  return slots;
}

void add_all(Backward& b, const std::vector<Slot>& slots, std::vector<Tensor> gradients) {
  for (size_t i = 0; i < slots.size(); ++i)
    if (gradients[i].defined()) b.add(slots[i], std::move(gradients[i]));
}

std::array<Tensor, 2> halves_of(const Tensor& x) {
  const int64_t rows = x.size(0) / 2;
  return {x.narrow(0, 0, rows), x.narrow(0, rows, rows)};
}

}  // namespace

std::vector<Var> overlapped(Tape& tape, const MovableOp& op, const Meanwhile& meanwhile) {
  Stream& side = *meanwhile.side;
  fork(tape.stream(), side);
  op.forward(side);
  const auto under_way = std::make_shared<UnderWay>(UnderWay{op.backward, {}});
  // In the backward this comes second. Until it is over it holds the gradients that the side stream reads.
  const std::vector<Var> moving =
      tape.record("overlapped", op.outputs, op.inputs,
                  [inputs = slots_of(tape, op.inputs), under_way, &side](Backward& b, const std::vector<Tensor>&) {
                    join(b.stream(), side);
                    add_all(b, inputs, std::move(under_way->gradients));
                  });
  meanwhile.compute(tape);
  join(tape.stream(), side);
  return tape.record(
      "overlapped", op.outputs, moving,
      [moved = slots_of(tape, moving), under_way, &side](Backward& b, const std::vector<Tensor>& gradients) {
        fork(b.stream(), side);
        under_way->gradients = under_way->backward(b, side, gradients);
        add_all(b, moved, gradients);
      });
}

std::array<Var, 2> split_batch(Tape& tape, const Var& x) {
  require<ShapeError>(x.shape().dims() > 0 && x.size(0) % 2 == 0 && x.value().contiguous(),
                      "split_batch: x must be contiguous and have an even number of rows, got ", x.shape());
  const auto [first, last] = halves_of(x.value());
  const auto vars = tape.record(
      "split_batch", std::vector{first, last}, {x},
      [x = tape.slot(x), shape = x.shape(), dtype = x.dtype()](Backward& b, const std::vector<Tensor>& gradients) {
        if (!b.wants(x)) return;
        const Tensor dx = b.stream().empty(shape, dtype);
        const std::array<Tensor, 2> to = halves_of(dx);
        for (size_t i = 0; i < to.size(); ++i)
          if (gradients[i].defined())
            b.stream().copy(to[i], gradients[i]);
          else
            b.stream().zero(to[i]);
        b.add(x, dx);
      });
  return {vars[0], vars[1]};
}

Var join_batch(Tape& tape, const std::array<Var, 2>& halves) {
  const auto& [first, last] = halves;
  const bool contiguous = first.value().contiguous() && last.value().contiguous();
  require<ShapeError>(first.shape() == last.shape() && first.dtype() == last.dtype() && contiguous,
                      "join_batch: halves must be alike and contiguous, got ", first.shape(), " and ", last.shape());
  const Tensor y = tape.stream().empty(first.shape().with(0, 2 * first.size(0)), first.dtype());
  const std::array<Tensor, 2> to = halves_of(y);
  for (size_t i = 0; i < to.size(); ++i) tape.stream().copy(to[i], halves[i].value());
  return tape.record("join_batch", y, {first, last},
                     [slots = std::array{tape.slot(first), tape.slot(last)}](Backward& b, const Tensor& dy) {
                       const std::array<Tensor, 2> parts = halves_of(dy);
                       for (size_t i = 0; i < parts.size(); ++i) b.add(slots[i], parts[i]);
                     });
}

}  // namespace witan::ops
