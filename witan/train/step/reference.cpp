#include "witan/train/step/reference.h"

#include <cassert>
#include <utility>

#include "witan/base/error.h"
#include "witan/kernels/common/step_report.h"
#include "witan/kernels/gemm/product_scopes.h"
#include "witan/kernels/objective/objective.h"
#include "witan/tensor/trace_context.h"
#include "witan/train/step/sequence_objectives.h"
#include "witan/train/step/stage_passes.h"

namespace witan {
namespace {

// A reference is read once in a step, so that its units are given back as soon as they are used.
RunConfig config_on_rank(RunConfig config) {
  config.parallel.reshard_after_forward = true;
  return config;
}

int64_t bytes_of_tensor(const Tensor& tensor) {
  return tensor.elements() * static_cast<int64_t>(size_of(tensor.dtype()));
}

}  // namespace

RunConfig Reference::config_of(const RunConfig& run) {
  RunConfig config = run;
  if (run.reference() != ReferenceKind::source) return config;
  config.train.init_from = run.objective.reference;
  config.model.lora_rank = 0;
  return config;
}

Reference::Own::Own(RankModel& rank, const RunConfig& given)
    : config(config_on_rank(given)),
      model(rank.stream, config.model, static_cast<uint64_t>(config.train.seed),
            rank.groups.model_axes(config.parallel), rank.stages.held_by(rank.groups.of(Axis::pipeline).rank())),
      parameters(model.parameters()),
      buffers(model.buffers()),
      shards(parameters, rank.groups.layout(), rank.groups.rank(), BucketPlan::kElements, rank.policy),
      units(make_unit_store(rank.stream, model, shards, rank.groups, config, rank.stages)) {
  units->gather_on(rank.gradients.side(), config.parallel.overlap_param_gather);
}

Reference::Reference(RankModel& rank, std::optional<RunConfig> own) : rank_(rank) {
  if (own) own_.emplace(rank, *own);
}

std::unique_ptr<Reference> Reference::make(RankModel& rank) {
  const ReferenceKind kind = rank.config->reference();
  if (kind == ReferenceKind::none || kind == ReferenceKind::columns) return nullptr;
  const TraceContextScope trace_context(rank.stream, TraceContext::Phase::set_up);
  std::optional<RunConfig> own;
  if (kind != ReferenceKind::base) own = config_of(*rank.config);
  return std::unique_ptr<Reference>(new Reference(rank, std::move(own)));
}

// Measurements, routes and loads are the trained model's.
void Reference::attach(ModelServices& services) {
  if (!own_) {
    services.adapters_off = &adapters_off_;
    return;
  }
  ModelServices own = services;
  own.units = own_->units.get();
  own.activations = nullptr;
  own.routes = nullptr;
  own.global_load = nullptr;
  own_->model.attach(own);
}

int64_t Reference::bytes() const {
  int64_t bytes = 0;
  if (!own_) return bytes;
  for (const Parameter* parameter : own_->parameters)
    for (const Tensor& kept : parameter->kept()) bytes += bytes_of_tensor(kept);
  for (const Buffer* buffer : own_->buffers) bytes += bytes_of_tensor(buffer->value());
  return bytes;
}

std::vector<StateTensor> Reference::state() {
  return state_of_model(own_->parameters, own_->buffers, rank_.groups);
}

void Reference::copy_trained() {
  rank_.gather_values();
  assert(own_->parameters.size() == rank_.parameters.size() && own_->buffers.size() == rank_.buffers.size());
  for (size_t i = 0; i < rank_.parameters.size(); ++i) {
    const std::vector<Tensor> from = rank_.parameters[i]->kept(), to = own_->parameters[i]->kept();
    for (size_t j = 0; j < from.size(); ++j) rank_.stream.copy(to[j], from[j]);
  }
  for (size_t i = 0; i < rank_.buffers.size(); ++i)
    rank_.stream.copy(own_->buffers[i]->value(), rank_.buffers[i]->value());
}

ReferencePasses::ReferencePasses(Reference& reference, const std::vector<Batch>& batches, Dropping dropping,
                                 Repetition* repetition)
    : reference_(reference),
      dropping_(dropping),
      channel_(reference.rank_.groups.of(Axis::pipeline),
               {reference.rank_.stages.stages(), reference.rank_.stages.chunks(), std::ssize(batches),
                Pipeline::Passes::forward},
               residual_shape(*reference.rank_.config, batches.front()), reference.rank_.config->model.compute_dtype(),
               repetition) {
  const RankModel& rank = reference.rank_;
  const bool last = rank.groups.of(Axis::pipeline).rank() + 1 == rank.stages.stages();
  for (const Batch& batch : batches)
    logprobs_.push_back(last ? rank.stream.empty({batch.sequences * batch.sequence_length},
                                                 accumulator(rank.config->model.compute_dtype()), MemoryTag::workspace)
                             : Tensor());
}

void ReferencePasses::run(const StepInputs& inputs) {
  Stream& stream = reference_.rank_.stream;
  const std::string before = stream.set_part("reference");
  inputs_ = &inputs;
  reference_.adapters_off_ = true;
  reference_.units().begin_passes();
  channel_.run(stream, *this);
  reference_.units().give_back();
  reference_.adapters_off_ = false;
  stream.set_part(before);
}

Tensor ReferencePasses::forward(int64_t micro_batch, int chunk, Tensor x) {
  const RankModel& rank = reference_.rank_;
  const kernels::RowProducts by_row(rank.config->parallel.batch_invariant_mode);
  Tape tape(rank.stream, Tape::Mode::off);
  ModelInput input = inputs_->input(micro_batch);
  input.where.hints = position_hints(*rank.config);
  input.padded = rank.config->data.packs();
  input.dropping = dropping_;
  Var in = x.defined() ? tape.constant(std::move(x)) : Var();
  ModelOutput out = reference_.model().forward(tape, input, chunk, std::move(in));
  if (out.x.defined()) return out.x.value();
  const Tensor& logprobs = logprobs_[static_cast<size_t>(micro_batch)];
  const Tensor weights = rank.stream.empty_like(logprobs);
  kernels::loss_weights(rank.stream, weights, inputs_->mask(micro_batch), inputs_->target_count());
  const ops::TokenLosses found = reference_.model().token_losses(
      tape, tempered(tape, std::move(out.logits), rank.config->temperature()), inputs_->targets(micro_batch), weights);
  kernels::scaled_products(rank.stream, logprobs, -1, {}, found.losses.value(), {});
  return {};
}

Tensor ReferencePasses::backward(int64_t, int, Tensor) {
  throw Error(ExitCode::internal, "a reference has no backward pass");
}

}  // namespace witan
