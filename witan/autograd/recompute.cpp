#include "witan/autograd/recompute.h"

#include <algorithm>
#include <iterator>

namespace witan {

std::vector<Var> recomputed(Tape& tape, const std::vector<Var>& inputs,
                            const std::function<std::vector<Var>(Tape&, const std::vector<Var>&)>& segment) {
  if (!tape.recording()) return segment(tape, inputs);

  Tape first(tape.stream(), Tape::Mode::off);
  first.training_forward_ = tape.training_forward_;
  std::vector<Tensor> outputs;
  for (const Var& output : segment(first, inputs)) outputs.push_back(output.value());
  for (Leaf* leaf : first.leaves()) tape.parameter(*leaf);  // the outer tape knows them as used

  std::vector<Saved> saved;
  for (const Var& input : inputs) saved.push_back(tape.save(input));
  auto backward = [segment, saved](Backward& b, const std::vector<Tensor>& gradients) {
    Tape again(b.stream());
    again.signals_ready_ = false;
    again.training_forward_ = false;
    std::vector<Var> values;
    for (const Saved& input : saved) {
      const Tensor value = b.value(input);
      values.push_back(b.wants(input) ? again.input(value) : again.constant(value));
    }
    std::vector<std::pair<Var, Tensor>> roots;
    const std::vector<Var> results = segment(again, values);
    for (size_t i = 0; i < results.size(); ++i)
      if (gradients[i].defined()) roots.emplace_back(results[i], gradients[i]);
    again.backward(roots);
    for (size_t i = 0; i < saved.size(); ++i) {
      if (!b.wants(saved[i])) continue;
      Tensor gradient = again.gradient(values[i]);
      if (gradient.defined()) b.add(saved[i], std::move(gradient));
    }
  };
  std::vector<Leaf*> leaves;
  std::ranges::copy_if(first.leaves(), std::back_inserter(leaves), &Leaf::trained);
  for (const Var& input : inputs)
    if (input.data_->leaf && input.needs_gradient()) leaves.push_back(input.data_->leaf);
  return tape.record_with_leaves("recomputed", std::move(outputs), inputs, std::move(leaves), std::move(backward));
}

Var rematerialised(Tape& tape, const std::vector<Var>& inputs,
                   const std::function<Var(Tape&, const std::vector<Var>&)>& op) {
  const Var output = op(tape, inputs);
  std::vector<Saved> saved;
  for (const Var& input : inputs) saved.push_back(tape.save(input));
  return tape.with_recipe(output, [op, saved](Backward& b) {
    Tape off(b.stream(), Tape::Mode::off);
    std::vector<Var> values;
    for (const Saved& input : saved) values.push_back(off.constant(b.value(input)));
    return op(off, values).value();
  });
}

}  // namespace witan
