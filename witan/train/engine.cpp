#include "witan/train/engine.h"

#include <algorithm>
#include <numeric>
#include <span>

#include "witan/base/stopwatch.h"
#include "witan/model/parts.h"
#include "witan/ops/cross_entropy.h"
#include "witan/ops/elementwise.h"
#include "witan/optim/lr_schedule.h"
#include "witan/parallel/ownership.h"
#include "witan/train/upload.h"

namespace witan {
// What one rank's micro-batches came to.
struct Engine::Sums {
  std::vector<double> losses;  // of each micro-batch: cross entropy, balance, z
  StepTimes times;
  std::vector<std::vector<int64_t>> expert_counts;  // [MoE blocks][E], summed
  double dropped = 0;                               // of them: beyond their experts' capacity

  // A micro-batch's assignments to the experts of a block, each of which takes `capacity`.
  void add_load(size_t block, std::span<const int64_t> counts, int64_t capacity) {
    for (size_t e = 0; e < counts.size(); ++e) {
      expert_counts[block][e] += counts[e];
      dropped += static_cast<double>(std::max<int64_t>(counts[e] - capacity, 0));
    }
  }
};

Engine::Engine(Stream& stream, const Groups& groups, const RunConfig& config)
    : stream_(stream),
      groups_(groups),
      config_(config),
      model_(stream, config.model, static_cast<uint64_t>(config.train.seed), *groups.expert),
      parameters_(model_.parameters()),
      gradients_(stream, parameters_, groups,
                 {.dtype = config.gradient_dtype(),
                  .summation = config.parallel.deterministic ? Summation::tree : Summation::in_place,
                  .micro_batches = config.micro_batches() / config.parallel.ranks}),
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
  step_state_.set(learning, iteration, updates + 1);

  double targets = 0;
  for (const Batch& batch : micro_batches) targets += static_cast<double>(batch.loss_tokens);
  targets = std::max(sum_over_ranks(targets), 1.0);  // a batch without targets has loss 0, not 0/0

  Sums sums;
  const Stopwatch forward_backward;
  for (size_t i = 0; i < micro_batches.size(); ++i)
    run_micro_batch(micro_batches[i], static_cast<int64_t>(i), targets, sums);
  stream_.set_part("gradients");
  gradients_.finish_step();
  sums.times.forward_backward = forward_backward.seconds();
  sums.times.reduction = gradients_.reduction_seconds();
  if (config_.train.check_states) state_check_.after_reduction(stream_);

  stream_.set_part("optimizer");
  if (before_update_) before_update_();
  const Stopwatch optimizer;
  const Tensor& total = norm_.compute(stream_, GlobalNorm::Of::gradients);
  clip(stream_, step_state_, total, config_.optimizer.clip_grad);
  sums.times.clip = optimizer.seconds();
  optimizer_->update(stream_, step_state_);
  sums.times.optimizer = optimizer.seconds();
  sums.times.update = sums.times.optimizer - sums.times.clip;
  if (config_.train.check_states) state_check_.after_update(stream_, *optimizer_);
  stream_.set_part("other");

  StepResult result = share(sums, stop && stop());
  result.learning_rate = learning;
  const Norm2 norm = read_norm(total);
  result.gradient_norm = norm.norm;
  result.zero_gradients = norm.zeros;
  result.times = sums.times;
  result.skipped = step_state_.skipped();
  return result;
}

void Engine::run_micro_batch(const Batch& batch, int64_t index, double targets, Sums& sums) {
  Tape tape(stream_);
  const Stopwatch forward;
  stream_.set_part("head and rest");
  const DType A = accumulator(config_.model.compute_dtype());
  Var loss;
  {
    // Only the loss outlives this scope: the logits belong to the backward alone.
    ModelInput input = upload(stream_, batch);
    const int64_t first = groups_.replicate->rank() * (config_.micro_batches() / config_.parallel.ranks);
    input.randomness = {static_cast<uint64_t>(config_.train.seed), step_state_.tensor(), first + index};
    const auto [ids, weights] = upload_targets(stream_, batch, A, targets);
    ModelOutput out = model_.forward(tape, input);
    const ops::CrossEntropy entropy = ops::cross_entropy(tape, out.logits, ids, weights);

    const double share = 1.0 / static_cast<double>(config_.micro_batches());
    const auto& moe = config_.model.moe;
    std::vector<std::pair<Var, double>> terms = {{entropy.loss, 1.0}};
    for (const Var& balance : out.balance_losses) terms.emplace_back(balance, moe.balance_weight() * share);
    for (const Var& z : out.z_losses) terms.emplace_back(z, moe.moe_z_loss_coeff * share);
    loss = ops::weighted_sum(tape, terms);

    double balance_loss = 0, z_loss = 0;
    for (const Var& balance : out.balance_losses) balance_loss += read_scalar(balance.value());
    for (const Var& z : out.z_losses) z_loss += read_scalar(z.value());
    sums.losses.insert(sums.losses.end(), {read_scalar(entropy.loss.value()), balance_loss, z_loss});
    sums.expert_counts.resize(out.expert_counts.size(), std::vector<int64_t>(static_cast<size_t>(moe.num_experts)));
    if (!stream_.is_meta())
      for (size_t layer = 0; layer < out.expert_counts.size(); ++layer)
        sums.add_load(layer, out.expert_counts[layer].span<int64_t>(),
                      moe.expert_capacity(batch.sequences * batch.sequence_length));
  }
  sums.times.forward += forward.seconds();
  const Stopwatch backward;
  gradients_.begin_micro_batch(index);
  tape.backward({{loss, {}}});
  sums.times.backward += backward.seconds();
}

// All ranks' values, in the order of ranks.
std::vector<double> Engine::gather(const std::vector<double>& values) {
  const auto count = static_cast<int64_t>(values.size());
  const Group& ranks = *groups_.replicate;
  const Tensor all = stream_.empty({ranks.size() * count}, DType::f64, MemoryTag::communication);
  const Tensor own = all.narrow(0, ranks.rank() * count, count);
  if (!stream_.is_meta()) std::ranges::copy(values, own.data<double>());
  groups_.replicate->all_gather(stream_, all, own);
  return stream_.is_meta() ? values : all.to_vector<double>();
}

double Engine::sum_over_ranks(double value) {
  double sum = 0;
  for (const double part : gather({value})) sum += part;
  return sum;
}

// Makes every rank know the sums of all, and whether anyone wants to stop. Losses are summed in the order of
// micro-batches, whoever ran them: the same bits in every layout.
StepResult Engine::share(const Sums& sums, bool stop) {
  StepResult result;
  const std::vector<double> losses = gather(sums.losses);
  for (size_t i = 0; i < losses.size(); i += 3) {
    result.loss += losses[i];
    result.balance_loss += losses[i + 1];
    result.z_loss += losses[i + 2];
  }
  const double terms = static_cast<double>(config_.micro_batches()) *
                       std::max<double>(static_cast<double>(sums.expert_counts.size()), 1);
  result.balance_loss /= terms;
  result.z_loss /= terms;

  std::vector<double> values = {stop ? 1.0 : 0.0, sums.dropped};
  for (const auto& layer : sums.expert_counts) values.insert(values.end(), layer.begin(), layer.end());
  const Tensor shared = stream_.empty({static_cast<int64_t>(values.size())}, DType::f64, MemoryTag::communication);
  if (!stream_.is_meta()) std::copy(values.begin(), values.end(), shared.data<double>());
  groups_.replicate->all_reduce(stream_, shared);
  if (!stream_.is_meta()) values = shared.to_vector<double>();
  result.stop = values[0] > 0;
  auto next = values.begin() + 2;
  for (const auto& layer : sums.expert_counts) {
    result.expert_counts.emplace_back(next, next + static_cast<ptrdiff_t>(layer.size()));
    next += static_cast<ptrdiff_t>(layer.size());
  }
  const double routed = std::accumulate(values.begin() + 2, values.end(), 0.0);
  if (routed > 0) result.dropped_share = values[1] / routed;
  return result;
}

Evaluation Engine::evaluate(const std::vector<Batch>& batches) {
  const std::string before = stream_.set_part("evaluation");
  std::vector<double> own;  // of each batch: nats, targets
  for (const Batch& batch : batches) {
    const Evaluation part = witan::evaluate(stream_, model_, batch);
    own.insert(own.end(), {part.nats, part.targets});
  }
  stream_.set_part(before);
  const std::vector<double> all = gather(own);
  Evaluation sum;
  for (size_t i = 0; i < all.size(); i += 2) {
    sum.nats += all[i];
    sum.targets += all[i + 1];
  }
  return sum;
}

double Engine::params_norm() {
  const std::string before = stream_.set_part("logging");
  const double norm = read_norm(norm_.compute(stream_, GlobalNorm::Of::values)).norm;
  stream_.set_part(before);
  return norm;
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
