#include "witan/autograd/tape.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "witan/kernels/pointwise/elementwise.h"
#include "witan/tensor/observer.h"
#include "witan/tensor/trace_context.h"

namespace witan {
namespace {

void add_into(Stream& stream, const Tensor& to, const Tensor& from, Write write) {
  require<ShapeError>(to.shape() == from.shape() && to.contiguous() && from.contiguous(), "gradient of shape ",
                      from.shape(), " for a value of shape ", to.shape());
  kernels::accumulate(stream, to, write, from);
}

}  // namespace

struct Var::Recipe {
  std::function<Tensor(Backward&)> compute;
  std::weak_ptr<Remade> remade;
};
struct Var::Remade {
  std::shared_ptr<Recipe> recipe;
  Tensor value;
};

Var Tape::constant(Tensor value) {
  Var::Data data;
  data.value = std::move(value);
  return Var(std::move(data));
}

Var Tape::input(Tensor value) {
  Var::Data data;
  data.value = std::move(value);
  if (recording()) {
    data.slot = static_cast<int64_t>(gradients_.size());
    gradients_.emplace_back();
  }
  return Var(std::move(data));
}

Var Tape::parameter(Leaf& leaf) {
  if (std::find(leaves_.begin(), leaves_.end(), &leaf) == leaves_.end()) leaves_.push_back(&leaf);
  Var::Data data;
  data.leaf = &leaf;
  return Var(std::move(data));
}

Slot Tape::slot(const Var& var) const {
  Slot slot;
  slot.slot_ = var.data_->slot;
  slot.leaf_ = var.data_->leaf;
  slot.shape_ = var.shape();
  slot.dtype_ = var.data_->gradient_dtype.value_or(var.dtype());
  return slot;
}

Saved Tape::save(const Var& var) {
  Saved saved;
  static_cast<Slot&>(saved) = slot(var);
  if (!recording() || saved.leaf_) return saved;
  if (const auto& recipe = var.data_->recipe) {
    saved.remade_ = recipe->remade.lock();
    if (!saved.remade_) recipe->remade = saved.remade_ = std::make_shared<Var::Remade>(Var::Remade{recipe, {}});
  } else {
    saved.tensor_ = var.data_->value;
  }
  return saved;
}

Saved Tape::save(const Tensor& tensor) {
  Saved saved;
  if (recording()) saved.tensor_ = tensor;
  return saved;
}

Var Tape::detached(const Var& var) {
  Var::Data data = *var.data_;
  data.value = var.value();
  data.leaf = nullptr;
  data.slot = -1;
  return Var(std::move(data));
}

Var Tape::with_recipe(const Var& var, std::function<Tensor(Backward&)> compute) {
  if (!recording()) return var;
  Var::Data data = *var.data_;
  data.recipe = std::make_shared<Var::Recipe>();
  data.recipe->compute = std::move(compute);
  return Var(std::move(data));
}

Var Tape::with_wide_gradient(const Var& var) {
  if (!var.needs_gradient()) return var;
  Var::Data data = *var.data_;
  data.gradient_dtype = accumulator(var.dtype());
  return Var(std::move(data));
}

Var Tape::record(const char* name, Tensor output, const std::vector<Var>& inputs, BackwardFn1 backward) {
  std::vector<Tensor> outputs;
  outputs.push_back(std::move(output));
  return record(name, std::move(outputs), inputs,
                [backward = std::move(backward)](Backward& b, const std::vector<Tensor>& gradients) {
                  backward(b, gradients[0]);
                })[0];
}

std::vector<Var> Tape::record(const char* name, std::vector<Tensor> outputs, const std::vector<Var>& inputs,
                              BackwardFn backward) {
  std::vector<Leaf*> leaves;
  for (const Var& input : inputs)
    if (input.data_->leaf && input.needs_gradient()) leaves.push_back(input.data_->leaf);
  return record_with_leaves(name, std::move(outputs), inputs, std::move(leaves), std::move(backward));
}

std::vector<Var> Tape::record_with_leaves(const char* name, std::vector<Tensor> outputs, const std::vector<Var>& inputs,
                                          std::vector<Leaf*> leaves, BackwardFn backward) {
  const bool wanted =
      recording() && (!leaves.empty() || std::any_of(inputs.begin(), inputs.end(),
                                                     [](const Var& input) { return input.needs_gradient(); }));
  if (TensorObserver* observer = TensorObserver::of(*stream_)) observer->computed(*stream_, name, outputs);
  std::vector<Var> vars;
  Node node{name, stream_->trace_context().module, {}, std::move(leaves), std::move(backward), {}, stream_};
  for (Tensor& output : outputs) {
    const bool differentiable = wanted && is_floating(output.dtype());
    Var var = differentiable ? input(std::move(output)) : constant(std::move(output));
    node.outputs.push_back(var.data_->slot);
    vars.push_back(std::move(var));
  }
  if (!wanted) return vars;
  for (Leaf* leaf : node.leaves) ++uses_[leaf];
  nodes_.push_back(std::move(node));
  return vars;
}

size_t Tape::mark(std::function<void()> on_backward) {
  if (recording()) nodes_.push_back({"mark", {}, {}, {}, {}, std::move(on_backward), nullptr});
  return nodes_.size() - (recording() ? 1 : 0);
}

void Tape::close_mark(size_t place, std::function<void()> on_backward) {
  if (!recording()) return;
  if (nodes_.size() == place + 1)
    nodes_.pop_back();
  else
    mark(std::move(on_backward));
}

void Tape::add_loss(LossSpec loss, Var value) {
  require<ShapeError>(value.shape() == Shape{1}, "the loss ", loss.name, " must be [1], got ", value.shape());
  if (keeps_losses_) losses_.push_back({std::move(loss), std::move(value)});
}

void Tape::backward(const std::vector<std::pair<Var, Tensor>>& roots) {
  assert(recording());
  for (const auto& [root, gradient] : roots) {
    if (!root.needs_gradient()) continue;
    Tensor seed = gradient;
    if (!seed.defined()) {
      seed = stream_->empty_like(root.value());
      kernels::fill(*stream_, seed, 1);
    }
    add(slot(root), std::move(seed));
  }
  Backward context(*this);
  const TraceContextScope trace_context(*stream_);  // also of its side streams
  Stream* const main = stream_;
  while (!nodes_.empty()) {
    const Node node = std::move(nodes_.back());
    nodes_.pop_back();
    if (node.mark) {
      node.mark();
      continue;
    }
    stream_ = node.stream;
    trace_context->module = node.module;
    trace_context->op = node.name;
    std::vector<Tensor> gradients;
    bool used = false;
    for (const int64_t slot : node.outputs) {
      gradients.push_back(slot < 0 ? Tensor() : std::exchange(gradients_[static_cast<size_t>(slot)], Tensor()));
      used = used || gradients.back().defined();
    }
    if (TensorObserver* observer = used ? TensorObserver::of(*stream_) : nullptr)
      observer->gradients_of(*stream_, gradients);
    if (used) node.backward(context, gradients);
    finish_uses(node);
  }
  stream_ = main;
}

void Tape::finish_uses(const Node& node) {
  for (Leaf* leaf : node.leaves) {
    if (--uses_[leaf] > 0 || !signals_ready_) continue;
    if (concurrent_)
      ready_after_.push_back(leaf);
    else
      signal_ready(*leaf);
  }
}

void Tape::signal_ready(Leaf& leaf) {
  TensorObserver* const observer = TensorObserver::of(*stream_);
  if (observer != nullptr && leaf.gradient_written)
    for (int64_t part = 0; part < leaf.gradient_parts(); ++part)
      observer->parameter_gradient(*stream_, leaf.gradient_part(part));
  leaf.on_gradient_ready();
}

Tensor Tape::gradient(const Slot& input) const {
  assert(input.slot_ >= 0);
  return gradients_[static_cast<size_t>(input.slot_)];
}

void Tape::add(const Slot& to, Tensor gradient) {
  if (!to.wanted()) return;
  assert(gradient.shape() == to.shape_);
  if (to.leaf_) {
    to.leaf_->prepare_gradient();
    assert(to.leaf_->gradient_parts() == 1 && !to.leaf_->gradient_block_sums().defined());
    const Tensor& sum = to.leaf_->gradient();
    const Write write = std::exchange(to.leaf_->gradient_written, true) ? Write::accumulate : Write::overwrite;
    add_into(*stream_, sum, gradient, write);
    return;
  }
  Tensor& sum = gradients_[static_cast<size_t>(to.slot_)];
  if (!sum.defined()) {
    sum = std::move(gradient);
    return;
  }
  if (sum.unique()) return add_into(*stream_, sum, gradient, Write::accumulate);
  // The tensor is shared, since the backward of an addition passes it to both inputs.
  assert(sum.dtype() == gradient.dtype());
  Tensor total = stream_->empty_like(sum);
  kernels::add(*stream_, total, sum, gradient);
  sum = std::move(total);
}

Tensor Backward::value(const Saved& saved) {
  if (saved.leaf_) return saved.leaf_->value();
  if (!saved.remade_) return saved.tensor_;
  Var::Remade& remade = *saved.remade_;
  if (!remade.value.defined()) remade.value = remade.recipe->compute(*this);
  return remade.value;
}

void Backward::add(const Slot& slot, Tensor gradient) {
  tape_.add(slot, std::move(gradient));
}

void Backward::write(const Slot& slot, const std::function<void(const Tensor&, Write)>& write) {
  write_parts(slot, [&](const Tensor& to, Write how, int64_t, [[maybe_unused]] int64_t parts) {
    assert(parts == 1);
    write(to, how);
  });
}

void Backward::write_parts(const Slot& slot, const std::function<void(const Tensor&, Write, int64_t, int64_t)>& write) {
  write_with_sums(slot, [&](const Part& part) {
    assert(!part.block_sums.defined());
    write(part.to, part.how, part.part, part.parts);
  });
}

void Backward::write_with_sums(const Slot& slot, const std::function<void(const Part&)>& write) {
  if (!slot.wanted()) return;
  if (Leaf* leaf = slot.leaf_) {
    leaf->prepare_gradient();  // before gradient_written is read: a gradient that is allocated now is not written yet
    const int64_t parts = leaf->gradient_parts();
    assert(parts == 1 || !leaf->gradient_block_sums().defined());
    const Write how = std::exchange(leaf->gradient_written, true) ? Write::accumulate : Write::overwrite;
    for (int64_t part = 0; part < parts; ++part)
      write({leaf->gradient_part(part), how, part, parts, leaf->gradient_block_sums()});
    return;
  }
  // On a GPU adding a separate gradient in a pass of its own can cost as much as writing it, so the writer accumulates.
  // The CPU adds finished gradients, which fixes its bits.
  const Tensor& sum = tape_.gradients_[static_cast<size_t>(slot.slot_)];
  if (stream().plans_for_cuda() && sum.defined() && sum.unique() && sum.dtype() == slot.dtype_)
    return write({sum, Write::accumulate});
  Tensor gradient = stream().empty(slot.shape_, slot.dtype_);
  write({gradient, Write::overwrite});
  tape_.add(slot, std::move(gradient));
}

}  // namespace witan
