#include "witan/planner/memory/meta_rank.h"

#include <algorithm>

#include "witan/comm/meta.h"
#include "witan/generate/generation_batch.h"
#include "witan/parallel/peers.h"
#include "witan/train/loop/interval_samples.h"
#include "witan/train/rollouts/sampling.h"
#include "witan/train/step/device.h"
#include "witan/train/step/objective.h"

namespace witan {

std::vector<Batch> batches_of(const RunConfig& config, int64_t count) {
  return std::vector<Batch>(static_cast<size_t>(count), sized_batch(config));
}

Layout layout_of(const RunConfig& config) {
  return {config.parallel, static_cast<int>(config.parallel.ranks), config.model.moe.num_experts};
}

int64_t most_prompt_tokens(const RunConfig& config) {
  const SamplePrompts prompts = sample_prompts(config);
  auto bytes = static_cast<int64_t>(prompts.last.size());
  for (const std::string& prompt : prompts.interval)  // an empty prompt becomes one end-of-text token
    bytes = std::max({bytes, int64_t{1}, static_cast<int64_t>(prompt.size())});
  const auto most = config.model.attention.most_positions();
  return most ? std::min(bytes, *most - 1) : bytes;
}

int64_t micro_batches_of_a_rank(const RunConfig& config) {
  return config.micro_batches() / config.parallel.data_ranks();
}

MetaRank::MetaRank(const ResolvedConfig& config, const Layout& layout, int rank, Run run)
    : config_(config),
      pool_(static_cast<int>(config->parallel.threads)),  // kernels size their scratch memory by the number of threads
      stream_({Device::Kind::meta, rank, device_of(config, rank).kind}, Arena::meta(), pool_),
      groups_(make_meta_groups(layout, rank, peers_of(config->parallel, layout, rank),
                               tensor_peers_of(config->parallel, layout, rank),
                               context_peers_of(config->parallel, layout, rank))),
      repetition_(stream_, groups_, calls_),
      engine_(stream_, groups_, config) {
  stream_.record_calls(&calls_);
  if (run == Run::some) engine_.leave_out(repetition_);
}

void MetaRank::begin_ramp() {
  const BatchRamp ramp = config_->batch_ramp();
  if (ramp.ramps()) step(ramp.size(0) / (config_->train.micro_batch_size * config_->parallel.data_ranks()), 1);
}

void MetaRank::step(int64_t micro_batches, int64_t iteration) {
  engine_.step(batches_of(config_, micro_batches), iteration, iteration - 1);
}

void MetaRank::overflow(int64_t micro_batches, int64_t iteration) {
  engine_.step_again(batches_of(config_, micro_batches), iteration, iteration - 1);
}

int64_t MetaRank::evaluate() {
  const int64_t together = engine_.evaluated_together();
  engine_.evaluate(batches_of(config_, together));
  return together;
}

void MetaRank::log() {
  if (config_->log.log_params_norm) engine_.params_norm();
  if (!config_->log.megatron()) return;
  gather_times(stream_, groups_.world(), {{"setup", 0}, {"data", 0}});
  if (config_->train.train_iters < config_->train.log_interval) return;
  gather_times(stream_, groups_.world(), named({}, config_->log.timing_log_level));
}

void MetaRank::sample(int64_t prompt_tokens) {
  if (!config_->writes_sample() || prompt_tokens == 0) return;
  GenerateOptions options;
  options.max_tokens = tokens_that_fit(engine_.model(), prompt_tokens, config_->train.sample_tokens);
  if (options.max_tokens == 0) return;
  generate(stream_, engine_.model(), std::vector<int32_t>(static_cast<size_t>(prompt_tokens)), options);
  engine_.end_reading();
}

void MetaRank::rollouts() {
  if (!config_->rollout.rollouts) return;
  rehearse_rollouts(stream_, engine_.model(), groups_, *config_);
  engine_.end_reading();
}

namespace {

std::map<std::string, MetaRank::SavedTensor> written(const std::vector<StateTensor>& tensors) {
  std::map<std::string, MetaRank::SavedTensor> saved;
  for (const StateTensor& tensor : tensors)
    if (tensor.writes)
      saved.try_emplace(tensor.name, MetaRank::SavedTensor{tensor.kind}).first->second.bytes +=
          tensor.local.elements() * static_cast<int64_t>(size_of(tensor.dtype()));
  return saved;
}

}  // namespace

std::map<std::string, MetaRank::SavedTensor> MetaRank::saved_tensors() {
  return written(engine_.state());
}

std::map<std::string, MetaRank::SavedTensor> MetaRank::reference_tensors() {
  Reference* const reference = engine_.reference();
  return reference && reference->has_weights() ? written(reference->state()) : std::map<std::string, SavedTensor>();
}

int64_t MetaRank::reference_bytes() {
  return engine_.reference() ? engine_.reference()->bytes() : 0;
}

void MetaRank::reset_costs() {
  stream_.reset_costs();
  calls_.clear();
  repetition_.reset_left_out();
  for (Group* group : groups_.all()) group->reset_sent();
}

}  // namespace witan
