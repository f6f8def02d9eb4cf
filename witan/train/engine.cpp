#include "witan/train/engine.h"

#include <algorithm>

#include "witan/model/parts.h"
#include "witan/ops/cross_entropy.h"
#include "witan/ops/elementwise.h"
#include "witan/optim/lr_schedule.h"
#include "witan/parallel/ownership.h"
#include "witan/train/upload.h"

namespace witan {
// What one rank's micro-batches add up to.
struct Engine::Sums {
  double loss = 0, balance = 0, z = 0;
  std::vector<std::vector<int64_t>> expert_counts;  // [MoE blocks][E]
};

Engine::Engine(Stream& stream, const Groups& groups, const RunConfig& config)
    : stream_(stream),
      groups_(groups),
      config_(config),
      model_(stream, config.model, static_cast<uint64_t>(config.train.seed), *groups.expert),
      parameters_(model_.parameters()),
      gradients_(stream, parameters_, groups, config.gradient_dtype()),
      norm_(stream, parameters_, groups),
      step_state_(stream),
      optimizer_(make_optimizer(config.optimizer, stream, own_all(parameters_))),
      state_check_(parameters_, groups) {
  charge_parts(model_, stream);
  if (config_.train.check_states) state_check_.after_init(stream_);
}

StepResult Engine::step(const std::vector<Batch>& micro_batches, int64_t iteration, int64_t updates,
                        const std::function<bool()>& stop) {
  const double learning = learning_rate(config_.optimizer, config_.train.train_iters, iteration);
  step_state_.set(learning, updates + 1);
  gradients_.begin_step();

  double targets = 0;
  for (const Batch& batch : micro_batches) targets += static_cast<double>(batch.loss_tokens);
  targets = std::max(sum_over_ranks(targets), 1.0);  // a batch without targets has loss 0, not 0/0

  Sums sums;
  for (size_t i = 0; i < micro_batches.size(); ++i)
    run_micro_batch(micro_batches[i], targets, i + 1 == micro_batches.size(), sums);
  stream_.set_part("gradients");
  gradients_.finish_step();
  if (config_.train.check_states) state_check_.after_reduction(stream_);

  stream_.set_part("optimizer");
  const Tensor& total = norm_.compute(stream_, GlobalNorm::Of::gradients);
  clip(stream_, step_state_, total, config_.optimizer.clip_grad);
  optimizer_->update(stream_, step_state_);
  if (config_.train.check_states) state_check_.after_update(stream_, *optimizer_);
  stream_.set_part("other");

  StepResult result = share(sums, stop && stop());
  result.learning_rate = learning;
  result.gradient_norm = read_norm(total).norm;
  result.skipped = step_state_.skipped();
  return result;
}

void Engine::run_micro_batch(const Batch& batch, double targets, bool last, Sums& sums) {
  Tape tape(stream_);
  stream_.set_part("head and rest");
  const DType A = accumulator(config_.model.compute_dtype());
  Var loss;
  {
    // Only the loss outlives this scope: the logits belong to the backward alone.
    const ModelInput input = upload(stream_, batch);
    const auto [ids, weights] = upload_targets(stream_, batch, A, targets);
    ModelOutput out = model_.forward(tape, input);
    const ops::CrossEntropy entropy = ops::cross_entropy(tape, out.logits, ids, weights);

    const double share = 1.0 / static_cast<double>(config_.micro_batches());
    const auto& moe = config_.model.moe;
    std::vector<std::pair<Var, double>> terms = {{entropy.loss, 1.0}};
    for (const Var& balance : out.balance_losses) terms.emplace_back(balance, moe.moe_aux_loss_coeff * share);
    for (const Var& z : out.z_losses) terms.emplace_back(z, moe.moe_z_loss_coeff * share);
    loss = ops::weighted_sum(tape, terms);

    sums.loss += read_scalar(entropy.loss.value());
    for (const Var& balance : out.balance_losses) sums.balance += read_scalar(balance.value());
    for (const Var& z : out.z_losses) sums.z += read_scalar(z.value());
    sums.expert_counts.resize(out.expert_counts.size(), std::vector<int64_t>(static_cast<size_t>(moe.num_experts)));
    if (!stream_.is_meta())
      for (size_t layer = 0; layer < out.expert_counts.size(); ++layer)
        for (size_t e = 0; e < sums.expert_counts[layer].size(); ++e)
          sums.expert_counts[layer][e] += out.expert_counts[layer].data<int64_t>()[e];
  }
  if (last) gradients_.begin_last_micro_batch();
  tape.backward({{loss, {}}});
}

double Engine::sum_over_ranks(double value) {
  const Tensor sum = stream_.empty({1}, DType::f64, MemoryTag::communication);
  if (!stream_.is_meta()) sum.data<double>()[0] = value;
  groups_.replicate->all_reduce(stream_, sum);
  return stream_.is_meta() ? value : sum.data<double>()[0];
}

// One all-reduce makes every rank know the sums of all, and whether anyone wants to stop.
StepResult Engine::share(const Sums& sums, bool stop) {
  std::vector<double> values = {sums.loss, sums.balance, sums.z, stop ? 1.0 : 0.0};
  for (const auto& layer : sums.expert_counts) values.insert(values.end(), layer.begin(), layer.end());
  const Tensor shared = stream_.empty({static_cast<int64_t>(values.size())}, DType::f64, MemoryTag::communication);
  if (!stream_.is_meta()) std::copy(values.begin(), values.end(), shared.data<double>());
  groups_.replicate->all_reduce(stream_, shared);
  if (!stream_.is_meta()) values = shared.to_vector<double>();

  StepResult result;
  const double terms = static_cast<double>(config_.micro_batches()) *
                       std::max<double>(static_cast<double>(sums.expert_counts.size()), 1);
  result.loss = values[0];
  result.balance_loss = values[1] / terms;
  result.z_loss = values[2] / terms;
  result.stop = values[3] > 0;
  auto next = values.begin() + 4;
  for (const auto& layer : sums.expert_counts) {
    result.expert_counts.emplace_back(next, next + static_cast<ptrdiff_t>(layer.size()));
    next += static_cast<ptrdiff_t>(layer.size());
  }
  return result;
}

Evaluation Engine::evaluate(const std::vector<Batch>& batches) {
  const std::string before = stream_.set_part("evaluation");
  Evaluation own;
  for (const Batch& batch : batches) {
    const Evaluation part = witan::evaluate(stream_, model_, batch);
    own.nats += part.nats;
    own.targets += part.targets;
  }
  stream_.set_part(before);
  return {sum_over_ranks(own.nats), sum_over_ranks(own.targets)};
}

std::vector<StateTensor> Engine::state() const {
  // Of the ranks that hold the same rows, the first writes them.
  const bool writes_dense = groups_.replicate->rank() == 0, writes_experts = groups_.expert_replicate->rank() == 0;
  std::vector<StateTensor> tensors;
  for (const Parameter* parameter : parameters_)
    tensors.push_back({parameter->name(), parameter->value(), parameter->global_shape(), parameter->begin(),
                       parameter->spec().expert ? writes_experts : writes_dense});
  optimizer_->visit([&](const OptimizerTensor& piece) {
    tensors.push_back({piece.name, piece.tensor, piece.parameter.shape, piece.first_row,
                       piece.parameter.expert ? writes_experts : writes_dense});
  });
  return tensors;
}

}  // namespace witan
