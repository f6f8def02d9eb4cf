#include "witan/ops/shape/overlap.h"

#include <memory>
#include <utility>

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

}  // namespace witan::ops
