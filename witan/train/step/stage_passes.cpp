#include "witan/train/step/stage_passes.h"

#include "witan/base/stopwatch.h"
#include "witan/comm/context.h"
#include "witan/kernels/common/step_report.h"
#include "witan/kernels/gemm/product_scopes.h"
#include "witan/moe/router.h"
#include "witan/parallel/stages.h"
#include "witan/tensor/trace_context.h"

namespace witan {

StagePasses::StagePasses(Stream& stream, const RunConfig& config, const Groups& groups, Transformer& model,
                         GradientBuckets& gradients, const StepState& step, const LossScaler* scaler)
    : stream_(stream),
      config_(config),
      model_(model),
      gradients_(gradients),
      step_(step),
      scaler_(scaler),
      data_ranks_(groups.layout().data_ranks()),
      data_rank_(groups.layout().data_rank(groups.rank())),
      positions_(
          context_positions(config.data.seq_length, groups.of(Axis::context).size(), groups.of(Axis::context).rank())),
      one_(root_gradient(1)) {
  for (const RouterStatistic& statistic : router_statistics(config.model.moe))
    if (statistic.loss_coefficient.value_or(0) != 0) {
      const auto& [mean, coefficient] = router_means_.emplace_back(make_gradient(), *statistic.loss_coefficient);
      router_weights_[statistic.name] = scaled(mean);
    }
  const ModelConfig& of = config.model;
  if (of.mtp_num_layers > 0)
    mtp_weight_ = root_gradient(of.mtp_loss_scaling_factor / static_cast<double>(of.mtp_num_layers));
  expect(config.micro_batches() / data_ranks_);
}

void StagePasses::expect(int64_t micro_batches) {
  if (std::exchange(count_, micro_batches) == micro_batches) return;
  for (const auto& [mean, coefficient] : router_means_)
    write(mean, coefficient / static_cast<double>(data_ranks_ * micro_batches));
}

Tensor StagePasses::root_gradient(double value) {
  const Tensor gradient = make_gradient();
  write(gradient, value);
  return scaled(gradient);
}

// A loss scale comes in with every step.
Tensor StagePasses::scaled(const Tensor& gradient) {
  if (!scaler_) return gradient;
  const Tensor scaled = stream_.empty({1}, gradient.dtype(), MemoryTag::workspace);
  scaled_.emplace_back(scaled, gradient);
  return scaled;
}

// [1], in the dtype of losses.
Tensor StagePasses::make_gradient() {
  return stream_.empty({1}, accumulator(config_.model.compute_dtype()), MemoryTag::workspace);
}

void StagePasses::write(const Tensor& gradient, double value) const {
  dispatch_floating(gradient.dtype(), [&]<class A>() {
    const A one = static_cast<A>(value);
    stream_.write(gradient, &one);
  });
}

void StagePasses::begin_step(const StepInputs& inputs, const StepReport& report) {
  inputs_ = &inputs;
  report_ = &report;
  forward_s_ = backward_s_ = 0;
  forwards_done_ = 0;
  for (const auto& [scaled, gradient] : scaled_) kernels::scale_losses(stream_, scaled, gradient, scaler_->tensor());
}

void StagePasses::count(int forwards) {
  forwards_done_ += forwards;
  if (!after_pass_) return;
  const Stages stages(config_.parallel.stage_split(config_.model.num_layers));
  after_pass_(static_cast<double>(forwards_done_) /
              static_cast<double>(3 * inputs_->micro_batches() * stages.chunks()));
}

ModelInput StagePasses::input_of(int64_t micro_batch) const {
  ModelInput input = inputs_->input(micro_batch);
  input.where.hints = {.one_sequence_per_row = !config_.data.reset_attention_mask,
                       .repeatable = config_.parallel.deterministic,
                       .batch_invariant = config_.parallel.batch_invariant_mode};
  input.padded = config_.data.packs();
  input.randomness = {static_cast<uint64_t>(config_.train.seed), step_.common(), data_rank_ * count_ + micro_batch};
  input.randomness.sequence_length = config_.data.seq_length;
  input.randomness.positions = positions_;
  if (input.padded) input.randomness.counted_positions = kCountedPositions;
  return input;
}

Tensor StagePasses::forward(int64_t micro_batch, int chunk, Tensor x) {
  const Stopwatch forward;
  const kernels::RowProducts by_row(config_.parallel.batch_invariant_mode);
  const TraceContextScope trace_context(stream_, TraceContext::Phase::forward, micro_batch);
  stream_.set_part("head and rest");
  InFlight& pass = in_flight_.try_emplace({micro_batch, chunk}, stream_).first->second;
  Var in;
  if (x.defined()) {
    in = pass.tape.input(std::move(x));
    pass.x = pass.tape.slot(in);
    pass.has_x = true;
  }
  if (routes_) routes_->begin(micro_batch);
  if (activations_) activations_->begin(*report_, micro_batch);
  ModelOutput out = model_.forward(pass.tape, input_of(micro_batch), chunk, std::move(in));
  if (routes_) routes_->end();
  if (activations_) activations_->end();
  Tensor y;
  if (out.x.defined()) {
    pass.y = pass.tape.slot(out.x);
    y = out.x.value();
    report_->add(stream_, micro_batch, chunk, out, {});
  } else {
    std::vector<Tensor> losses = {add_loss(pass, micro_batch, std::move(out.logits)).value()};
    for (size_t module = 0; module < out.ahead.size(); ++module)
      losses.push_back(
          add_loss(pass, micro_batch, std::move(out.ahead[module]), static_cast<int64_t>(module) + 1).value());
    report_->add(stream_, micro_batch, chunk, out, losses);
  }
  add_router_losses(pass, out);
  forward_s_ += forward.seconds();
  count(1);
  return y;
}

// The logits are gone when it returns: they belong to the backward alone.
Var StagePasses::add_loss(InFlight& pass, int64_t micro_batch, Var logits, int64_t ahead) {
  const Tensor& mask = inputs_->mask(micro_batch, ahead);
  const Tensor weights = stream_.empty(mask.shape(), accumulator(config_.model.compute_dtype()));
  kernels::loss_weights(stream_, weights, mask, inputs_->target_count(ahead));
  const bool one = !scaler_ && ahead == 0;
  const ops::CrossEntropy entropy = model_.loss(pass.tape, std::move(logits), inputs_->targets(micro_batch, ahead),
                                                weights, one ? ops::LossGradient::one : ops::LossGradient::any);
  pass.losses.emplace_back(entropy.loss, ahead == 0 ? one_ : mtp_weight_);
  return entropy.loss;
}

void StagePasses::add_router_losses(InFlight& pass, const ModelOutput& out) const {
  for (const auto& [name, weight] : router_weights_)
    for (const RouterRecord& router : out.routers) pass.losses.emplace_back(router.loss(name), weight);
}

Tensor StagePasses::backward(int64_t micro_batch, int chunk, Tensor dy) {
  const Stopwatch backward;
  const kernels::RowProducts by_row(config_.parallel.batch_invariant_mode);  // what is computed again has the same bits
  const TraceContextScope trace_context(stream_, TraceContext::Phase::backward, micro_batch);
  stream_.set_part("head and rest");
  const auto node = in_flight_.extract({micro_batch, chunk});
  InFlight& pass = node.mapped();
  gradients_.begin_micro_batch(micro_batch, chunk);
  if (dy.defined()) pass.tape.seed(pass.y, std::move(dy));
  if (routes_) routes_->begin(micro_batch);  // for what is computed again
  pass.tape.backward(pass.losses);
  if (routes_) routes_->end();
  const Tensor dx = pass.has_x ? pass.tape.gradient(pass.x) : Tensor();
  backward_s_ += backward.seconds();
  count(2);
  return dx;
}

}  // namespace witan
