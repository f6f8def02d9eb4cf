#include "witan/train/engine.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <utility>

#include "witan/base/stopwatch.h"
#include "witan/kernels/step_report.h"
#include "witan/model/parts.h"
#include "witan/optim/lr_schedule.h"
#include "witan/parallel/ownership.h"
#include "witan/tensor/recording.h"

namespace witan {
Engine::Engine(Stream& stream, const Groups& groups, const RunConfig& config)
    : stream_(stream),
      groups_(groups),
      config_(config),
      model_(stream, config.model, static_cast<uint64_t>(config.train.seed), groups.model_axes(config.parallel)),
      parameters_(model_.parameters()),
      ownership_(parameters_, groups.layout(), groups.rank()),
      gradients_(stream, parameters_, groups,
                 {.dtype = config.gradient_dtype(),
                  .summation = config.parallel.deterministic ? Summation::tree : Summation::in_place,
                  .micro_batches = config.micro_batches() / groups.layout().data_ranks()}),
      norm_(stream, ownership_, groups),
      step_state_(stream),
      optimizer_(make_optimizer(config.optimizer, stream, ownership_.owned())),
      state_check_(parameters_, groups),
      one_(root_gradient(1)),
      balance_weight_(root_gradient(config.model.moe.balance_weight() / static_cast<double>(config.micro_batches()))),
      z_weight_(root_gradient(config.model.moe.moe_z_loss_coeff / static_cast<double>(config.micro_batches()))) {
  charge_parts(model_, stream);
  if (config_.train.check_states) state_check_.after_init(stream_);
}

// A rank that fails tells the others before it gives back what a device may hold on to until theirs are done.
Engine::~Engine() {
  if (std::uncaught_exceptions() > 0) groups_.host().abandon();
}

// [1], in the dtype of losses.
Tensor Engine::root_gradient(double value) {
  const Tensor gradient = stream_.empty({1}, accumulator(config_.model.compute_dtype()), MemoryTag::workspace);
  dispatch_floating(gradient.dtype(), [&]<class A>() {
    const A one = static_cast<A>(value);
    stream_.write(gradient, &one);
  });
  return gradient;
}

StepResult Engine::step(const std::vector<Batch>& micro_batches, int64_t iteration, int64_t updates,
                        const std::function<bool()>& stop) {
  const double learning = learning_rate(config_.optimizer, config_.train.train_iters, iteration);
  prepare(micro_batches);
  step_state_.set(learning, iteration, updates + 1);
  inputs_->upload(stream_, micro_batches);
  times_ = {};
  if (recordable()) {
    // Asked before the step, since nothing is asked within it: who wants to stop during it is heard after the next.
    report_->write_stop(stream_, stop && stop());
    if (before_update_) before_update_();  // its wait is no part of the step's time
    const Stopwatch whole;
    replay();
    const StepReport::Result read = report_->read(stream_);
    times_.forward_backward = whole.seconds();
    return result_of(read, micro_batches);
  }
  compute(Mode::eager, stop);
  return result_of(report_->read(stream_), micro_batches);
}

void Engine::prepare(const std::vector<Batch>& batches) {
  if (inputs_ && inputs_->fits(batches)) return;
  graph_.reset();
  warm_ = false;
  inputs_.reset();
  report_.reset();
  inputs_ = std::make_unique<StepInputs>(stream_, batches);
  report_ = std::make_unique<StepReport>(stream_, groups_.world(), groups_.layout().telling_ranks(),
                                         report_sizes(config_.model, static_cast<int64_t>(batches.size())));
}

std::string Engine::why_eager() const {
  const auto& moe = config_.model.moe;
  if (!config_.parallel.cuda_graph) return "cuda_graph = false";
  if (config_.train.check_states) return "check_states = true looks at replicas in the midst of it";
  if (moe.num_experts > 0 && !moe.moe_grouped_gemm)
    return "moe_grouped_gemm = false asks the host how many rows each expert has";
  if (groups_.of(Axis::expert).size() > 1 && groups_.of(Axis::expert).peers() == nullptr)
    return "rows of experts are exchanged over NCCL, whose counts the host reads";
  return "";
}

bool Engine::recordable() const {
  return stream_.is_cuda() && !stream_.times_kernels() && why_eager().empty();
}

// The first step runs as it comes: libraries are loaded and choose their kernels. The second is recorded.
void Engine::replay() {
  if (!std::exchange(warm_, true)) return compute(Mode::recorded, {});
  if (!graph_) graph_ = record(*stream_.queue(), [&] { compute(Mode::recorded, {}); });
  graph_->launch();
}

// All that a step does, from its inputs to its report.
void Engine::compute(Mode mode, const std::function<bool()>& stop) {
  tokens().all_reduce(stream_, inputs_->target_count());
  const Stopwatch forward_backward;
  for (int64_t i = 0; i < inputs_->micro_batches(); ++i) run_micro_batch(i);
  stream_.set_part("gradients");
  gradients_.finish_step();
  times_.forward_backward = forward_backward.seconds();
  times_.reduction = gradients_.reduction_seconds();
  if (config_.train.check_states) state_check_.after_reduction(stream_, ownership_.owned());

  stream_.set_part("optimizer");
  if (mode == Mode::eager && before_update_) before_update_();
  const Stopwatch optimizer;
  const Tensor& total = norm_.compute(stream_, GlobalNorm::Of::gradients);
  clip(stream_, step_state_, total, config_.optimizer.clip_grad);
  times_.clip = optimizer.seconds();
  optimizer_->update(stream_, step_state_);
  times_.update = optimizer.seconds() - times_.clip;
  ownership_.gather_values(stream_, groups_);
  times_.optimizer = optimizer.seconds();
  if (config_.train.check_states) state_check_.after_update(stream_, *optimizer_);
  stream_.set_part("other");
  if (mode == Mode::eager) report_->write_stop(stream_, stop && stop());
  report_->finish(stream_, groups_.world(), total, step_state_.tensor());
}

void Engine::run_micro_batch(int64_t index) {
  Tape tape(stream_);
  const Stopwatch forward;
  stream_.set_part("head and rest");
  std::vector<std::pair<Var, Tensor>> roots;
  {
    // Only the losses outlive this scope: the logits belong to the backward alone.
    ModelInput input = inputs_->input(index);
    input.where.hints = {.one_sequence_per_row = !config_.data.reset_attention_mask,
                         .repeatable = config_.parallel.deterministic};
    const Layout& layout = groups_.layout();
    const int64_t first = layout.data_rank(groups_.rank()) * (config_.micro_batches() / layout.data_ranks());
    input.randomness = {static_cast<uint64_t>(config_.train.seed), step_state_.tensor(), first + index};
    const Tensor& mask = inputs_->mask(index);
    const Tensor weights = stream_.empty(mask.shape(), accumulator(config_.model.compute_dtype()));
    kernels::loss_weights(stream_, weights, mask, inputs_->target_count());
    ModelOutput out = model_.forward(tape, input);
    const ops::CrossEntropy entropy =
        model_.loss(tape, std::move(out.logits), inputs_->targets(index), weights, ops::LossGradient::one);
    report_->add(stream_, index, entropy.loss.value(), out);

    roots.emplace_back(entropy.loss, one_);
    const auto& moe = config_.model.moe;
    if (moe.balance_weight() != 0)
      for (const Var& balance : out.balance_losses) roots.emplace_back(balance, balance_weight_);
    if (moe.moe_z_loss_coeff != 0)
      for (const Var& z : out.z_losses) roots.emplace_back(z, z_weight_);
  }
  times_.forward += forward.seconds();
  const Stopwatch backward;
  gradients_.begin_micro_batch(index);
  tape.backward(roots);
  times_.backward += backward.seconds();
}

// Losses are summed in the order of micro-batches, whoever ran them: the same bits in every layout.
StepResult Engine::result_of(const StepReport::Result& report, const std::vector<Batch>& batches) const {
  StepResult result;
  const auto& sizes = report_->sizes();
  const auto& moe = config_.model.moe;
  result.expert_counts.resize(static_cast<size_t>(sizes.blocks),
                              std::vector<int64_t>(static_cast<size_t>(sizes.experts)));
  double dropped = 0, routed = 0;
  for (size_t i = 0; i < report.micro_batches.size(); ++i) {
    const StepReport::MicroBatch& one = report.micro_batches[i];
    result.loss += one.loss;
    result.balance_loss += one.balance;
    result.z_loss += one.z;
    const Batch& shape = batches[i % batches.size()];  // all ranks' are alike
    const int64_t capacity = moe.expert_capacity(shape.sequences * shape.sequence_length);
    for (size_t block = 0; block < one.expert_counts.size(); ++block)
      for (size_t e = 0; e < one.expert_counts[block].size(); ++e) {
        const int64_t count = one.expert_counts[block][e];
        result.expert_counts[block][e] += count;
        routed += static_cast<double>(count);
        dropped += static_cast<double>(std::max<int64_t>(count - capacity, 0));
      }
  }
  const double terms =
      static_cast<double>(config_.micro_batches()) * std::max<double>(static_cast<double>(sizes.blocks), 1);
  result.balance_loss /= terms;
  result.z_loss /= terms;
  if (routed > 0) result.dropped_share = dropped / routed;
  result.learning_rate = report.step[kernels::step_value::learning_rate];
  result.gradient_norm = std::sqrt(report.square_sum);
  result.zero_gradients = report.zeros;
  result.skipped = report.step[kernels::step_value::skip] != 0;
  result.stop = report.stop;
  result.times = times_;
  return result;
}

// The values of all ranks with tokens of their own, in the order of ranks.
std::vector<double> Engine::gather(const std::vector<double>& values) {
  const auto count = static_cast<int64_t>(values.size());
  Group& ranks = tokens();
  const Tensor all = stream_.empty({ranks.size() * count}, DType::f64, MemoryTag::communication);
  const Tensor own = all.narrow(0, ranks.rank() * count, count);
  stream_.write(own, values.data());
  ranks.all_gather(stream_, all, own);
  if (stream_.is_meta()) return values;
  std::vector<double> gathered(static_cast<size_t>(all.elements()));
  stream_.read(gathered.data(), all);
  return gathered;
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
  const double norm = read_norm(stream_, norm_.compute(stream_, GlobalNorm::Of::values)).norm;
  stream_.set_part(before);
  return norm;
}

std::vector<StateTensor> Engine::state() const {
  // Of the ranks that hold the same, the first writes it.
  const Layout& layout = groups_.layout();
  std::vector<StateTensor> tensors;
  for (const Parameter* parameter : parameters_)
    tensors.push_back({parameter->name(), parameter->value(), parameter->global_shape(), parameter->region(),
                       layout.holds_first(parameter->spec(), groups_.rank())});
  optimizer_->visit([&](const OptimizerTensor& piece) {
    const Axes owners = {Layout::shard_axis(piece.parameter.expert)};
    tensors.push_back({piece.name, piece.tensor, piece.parameter.shape, piece.region,
                       layout.holds_first(piece.parameter, groups_.rank(), owners), piece.remainder});
  });
  return tensors;
}

}  // namespace witan
