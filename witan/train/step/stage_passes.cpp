#include "witan/train/step/stage_passes.h"

#include "witan/base/process.h"
#include "witan/comm/context.h"
#include "witan/kernels/gemm/product_scopes.h"
#include "witan/parallel/stages.h"
#include "witan/tensor/trace_context.h"
#include "witan/train/step/reference.h"

namespace witan {

kernels::AttentionHints position_hints(const RunConfig& config) {
  return {.one_sequence_per_row = !config.data.reset_attention_mask,
          .repeatable = config.parallel.deterministic,
          .batch_invariant = config.parallel.batch_invariant_mode};
}

StagePasses::StagePasses(const StepParts& parts, const StepFeatures& features)
    : stream_(parts.stream),
      config_(parts.config),
      model_(parts.model),
      gradients_(parts.gradients),
      step_(parts.state),
      features_(features),
      objective_(make_objective(config_)),
      context_(parts.groups.of(Axis::context)),
      root_gradients_(stream_, accumulator(config_.model.compute_dtype()), features.loss_scaler()),
      data_ranks_(parts.groups.layout().data_ranks()),
      data_rank_(parts.groups.layout().data_rank(parts.groups.rank())) {
  positions_ = context_positions(config_.data.seq_length, context_.size(), context_.rank());
  expect(config_.micro_batches() / data_ranks_);
}

void StagePasses::expect(int64_t micro_batches) {
  count_ = micro_batches;
  root_gradients_.expect(data_ranks_ * micro_batches);
}

void StagePasses::begin_step(const StepInputs& inputs, const StepReport& report, const ReferencePasses* reference) {
  inputs_ = &inputs;
  report_ = &report;
  reference_ = reference;
  forward_s_ = backward_s_ = 0;
  forwards_done_ = 0;
  root_gradients_.begin_step();
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
  input.where.hints = position_hints(config_);
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
  features_.call(&StepFeature::begin_pass, StepFeature::Pass::forward, micro_batch);
  ModelOutput out = model_.forward(pass.tape, input_of(micro_batch), chunk, std::move(in));
  features_.call(&StepFeature::end_pass);
  Tensor y;
  if (out.x.defined()) {
    pass.y = pass.tape.slot(out.x);
    y = out.x.value();
  } else {
    objective_->record({pass.tape, model_, *inputs_, micro_batch, root_gradients_.scaled(), &context_,
                        reference_ ? reference_->logprobs(micro_batch) : Tensor()},
                       out);
  }
  report_->add(stream_, micro_batch, chunk, out, pass.tape.losses());
  forward_s_ += forward.seconds();
  count(1);
  return y;
}

Tensor StagePasses::backward(int64_t micro_batch, int chunk, Tensor dy) {
  const Stopwatch backward;
  const kernels::RowProducts by_row(config_.parallel.batch_invariant_mode);  // recomputed layers have the same bits
  const TraceContextScope trace_context(stream_, TraceContext::Phase::backward, micro_batch);
  stream_.set_part("head and rest");
  const auto node = in_flight_.extract({micro_batch, chunk});
  InFlight& pass = node.mapped();
  gradients_.begin_micro_batch(micro_batch, chunk);
  if (dy.defined()) pass.tape.seed(pass.y, std::move(dy));
  features_.call(&StepFeature::begin_pass, StepFeature::Pass::backward, micro_batch);
  std::vector<std::pair<Var, Tensor>> roots;
  for (const LossRecord& loss : pass.tape.losses()) roots.emplace_back(loss.value, root_gradients_.of(loss));
  pass.tape.backward(roots);
  features_.call(&StepFeature::end_pass);
  const Tensor dx = pass.has_x ? pass.tape.gradient(pass.x) : Tensor();
  backward_s_ += backward.seconds();
  count(2);
  return dx;
}

}  // namespace witan
