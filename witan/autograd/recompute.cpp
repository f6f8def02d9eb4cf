#include "witan/autograd/recompute.h"

#include <algorithm>
#include <cassert>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include "witan/autograd/offload_store.h"

namespace witan {

// A segment of a tape: its inputs and, once backward has reached it, the tape of its second run.
class RecomputedSegment {
 public:
  using Run = std::function<std::vector<Var>(Tape&, const std::vector<Var>&)>;
  enum class Outputs : uint8_t { kept, remade };  // by later ops

  static std::vector<Var> record(Tape& tape, const std::vector<Var>& inputs, const Run& run, Outputs outputs,
                                 Offload offload = {});

  RecomputedSegment(Tape& tape, const std::vector<Var>& inputs, Run run, std::shared_ptr<OffloadStore::Kept> first)
      : run_(std::move(run)), first_(std::move(first)) {
    for (const Var& input : inputs)
      if (first_ && saved_.empty())
        static_cast<Slot&>(saved_.emplace_back()) = tape.slot(input);
      else
        saved_.push_back(tape.save(input));
  }

 private:
  // The segment's outputs, followed by the losses that its modules recorded: gradients of both come back.
  static std::vector<Var> with_losses(std::vector<Var> outputs, const Tape& tape) {
    for (const LossRecord& loss : tape.losses()) outputs.push_back(loss.value);
    return outputs;
  }
  void run_again(Backward& b);
  void backward(Backward& b, const std::vector<Tensor>& gradients);

  const Run run_;
  std::vector<Saved> saved_;
  std::shared_ptr<OffloadStore::Kept> first_;  // the first input's value; null: it is saved
  std::optional<Tape> again_;
  std::vector<Var> values_, results_;  // on it: of the inputs, and of the outputs and losses
};

std::vector<Var> RecomputedSegment::record(Tape& tape, const std::vector<Var>& inputs, const Run& run, Outputs outputs,
                                           Offload offload) {
  if (!tape.recording()) return run(tape, inputs);

  std::shared_ptr<OffloadStore::Kept> kept;
  if (offload.store && !inputs[0].is_rematerialised() && !inputs[0].data_->leaf)
    kept = offload.store->keep(inputs[0].value(), offload.leaves);
  Tape first(tape.stream(), Tape::Mode::off);
  first.training_forward_ = tape.training_forward_;
  first.keeps_losses_ = true;
  std::vector<Tensor> values;
  for (const Var& output : with_losses(run(first, inputs), first)) values.push_back(output.value());
  for (Leaf* leaf : first.leaves()) tape.parameter(*leaf);  // the outer tape records them as used

  std::vector<Leaf*> leaves;
  std::ranges::copy_if(first.leaves(), std::back_inserter(leaves), &Leaf::trained);
  for (const Var& input : inputs)
    if (input.data_->leaf && input.needs_gradient()) leaves.push_back(input.data_->leaf);
  const auto segment = std::make_shared<RecomputedSegment>(tape, inputs, run, std::move(kept));
  const auto backward = [segment](Backward& b, const std::vector<Tensor>& gradients) {
    segment->backward(b, gradients);
  };
  std::vector<Var> vars = tape.record_with_leaves("recomputed", std::move(values), inputs, std::move(leaves), backward);
  const size_t count = vars.size() - first.losses().size();
  for (size_t i = 0; i < first.losses().size(); ++i) tape.add_loss(first.losses()[i], vars[count + i]);
  vars.resize(count);
  for (size_t i = 0; i < vars.size() && outputs == Outputs::remade; ++i)
    vars[i] = tape.with_recipe(vars[i], [segment, i](Backward& b) {
      segment->run_again(b);
      return segment->results_[i].value();
    });
  return vars;
}

void RecomputedSegment::run_again(Backward& b) {
  if (again_) return;
  again_.emplace(b.stream());
  again_->signals_ready_ = false;
  again_->training_forward_ = false;
  for (const Saved& input : saved_) {
    const Tensor value = first_ && values_.empty() ? first_->take() : b.value(input);
    values_.push_back(b.wants(input) ? again_->input(value) : again_->constant(value));
  }
  results_ = with_losses(run_(*again_, values_), *again_);
}

void RecomputedSegment::backward(Backward& b, const std::vector<Tensor>& gradients) {
  run_again(b);
  assert(results_.size() == gradients.size());
  for (size_t i = 0; i < results_.size(); ++i)
    if (gradients[i].defined()) again_->seed(again_->slot(results_[i]), gradients[i]);
  results_.clear();  // their values are needed no more
  again_->backward({});
  for (size_t i = 0; i < saved_.size(); ++i) {
    if (!b.wants(saved_[i])) continue;
    Tensor gradient = again_->gradient(values_[i]);
    if (gradient.defined()) b.add(saved_[i], std::move(gradient));
  }
  values_.clear();
  again_.reset();
}

std::vector<Var> recomputed(Tape& tape, const std::vector<Var>& inputs, const RecomputedSegment::Run& segment,
                            Offload offload) {
  return RecomputedSegment::record(tape, inputs, segment, RecomputedSegment::Outputs::kept, offload);
}

std::vector<Var> recomputed_when_needed(Tape& tape, const std::vector<Var>& inputs,
                                        const RecomputedSegment::Run& segment) {
  return RecomputedSegment::record(tape, inputs, segment, RecomputedSegment::Outputs::remade);
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
