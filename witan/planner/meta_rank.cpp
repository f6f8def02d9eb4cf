#include "witan/planner/meta_rank.h"

#include <algorithm>
#include <utility>

#include "witan/comm/meta.h"
#include "witan/generate/generator.h"
#include "witan/parallel/peers.h"
#include "witan/train/run/interval_samples.h"
#include "witan/train/step/device.h"

namespace witan {

std::vector<Batch> batches_of(const RunConfig& config, int64_t count) {
  Batch batch;
  batch.sequences = config.train.micro_batch_size;
  batch.sequence_length = config.data.seq_length;
  batch.loss_tokens = batch.sequences * batch.sequence_length;
  return std::vector<Batch>(static_cast<size_t>(count), batch);
}

Layout layout_of(const RunConfig& config) {
  return {config.parallel, static_cast<int>(config.parallel.ranks), config.model.moe.num_experts};
}

int64_t most_prompt_tokens(const RunConfig& config) {
  auto bytes = static_cast<int64_t>(config.train.sample_prompt.size());
  for (const std::string& prompt : interval_prompts(config.train))  // an empty one is an end of text
    bytes = std::max({bytes, int64_t{1}, static_cast<int64_t>(prompt.size())});
  const auto most = config.model.attention.most_positions();
  return most ? std::min(bytes, *most - 1) : bytes;
}

int64_t micro_batches_of_a_rank(const RunConfig& config) {
  return config.micro_batches() / config.parallel.data_ranks();
}

namespace {

// Micro-batches whose memory is compared with that of the last before those that are left out, and what ends a
// pipeline.
constexpr int64_t kCompared = 2;
int64_t at_the_end(const RunConfig& config) {
  return 2 * config.parallel.pipeline_model_parallel_size;
}

// to += times cost
void add(Cost& to, const Cost& cost, double times) {
  to += scaled(cost, times);
}
void add(double& to, double sent, double times) {
  to += times * sent;
}
template <class Sums>
void add(Sums& to, const Sums& sums, double times) {
  for (const auto& [key, sum] : sums) add(to[key], sum, times);
}

}  // namespace

int64_t micro_batches_to_leave_out(const RunConfig& config, int stage) {
  const ParallelConfig& parallel = config.parallel;
  const int64_t stages = parallel.pipeline_model_parallel_size;
  if (parallel.sums_in_tree(config.model.moe.num_experts)) return 0;
  if (stage + 1 < stages || parallel.num_virtual_stages_per_pipeline_rank > 1) return 0;
  const int64_t kept = stages + kCompared + at_the_end(config);
  return std::max<int64_t>(micro_batches_of_a_rank(config) - kept, 0) / kCompared * kCompared;
}

MetaRank::MetaRank(const ResolvedConfig& config, const Layout& layout, int rank, int64_t left_out)
    : config_(config),
      pool_(static_cast<int>(config->parallel.threads)),  // kernels size their scratch by it
      stream_({Device::Kind::meta, rank, device_of(config, rank).kind}, Arena::meta(), pool_),
      groups_(make_meta_groups(layout, rank, peers_of(config->parallel, layout, rank),
                               tensor_peers_of(config->parallel, layout, rank),
                               context_peers_of(config->parallel, layout, rank))),
      engine_(stream_, groups_, config) {
  stream_.record_calls(&calls_);
  if (left_out == 0) return;
  left_out_ = {micro_batches_of_a_rank(config) - left_out - at_the_end(config), left_out,
               [this](int64_t micro_batch) { passed(micro_batch); }};
  engine_.leave_out(left_out_);
}

MetaRank::Taken MetaRank::taken_until(int64_t micro_batch) {
  Taken taken{{}, stream_.costs(), {}, calls_};
  for (const Group* group : groups_.all())
    if (group->size() > 1 && !group->sent().empty()) taken.sent[group->name()] = group->sent();
  for (const MemoryBlock& block :
       arena().snapshot(MemorySnapshot::Why::not_planned, 0, MemoryTag::activations).blocks) {
    const TraceContext place = block.place.context();
    const int64_t at = place.micro_batch < left_out_.first ? place.micro_batch : place.micro_batch - left_out_.count;
    taken.memory.emplace_back(block.offset, block.bytes, block.tag, place.phase,
                              std::max<int64_t>(at - micro_batch, -1), place.module, place.op);
  }
  std::ranges::sort(taken.memory);
  return taken;
}

void MetaRank::passed(int64_t micro_batch) {
  const int64_t before = left_out_.first - 1 - micro_batch;
  if (before < 0 || before > kCompared) return;
  marks_.push_back(taken_until(micro_batch));
  if (before > 0) return;
  const std::vector<Taken> marks = std::exchange(marks_, {});
  const auto like = std::find_if(marks.rbegin() + 1, marks.rend(),
                                 [&](const Taken& earlier) { return earlier.memory == marks.back().memory; });
  if (like == marks.rend()) {
    repeats_ = false;
    return;
  }
  const auto apart = static_cast<double>(like - marks.rbegin());
  const auto add_left_out = [&](auto Taken::*sums) {
    auto taken = marks.back().*sums;
    add(taken, (*like).*sums, -1);  // first, so that whole numbers stay exact
    add(not_run_.*sums, taken, static_cast<double>(left_out_.count) / apart);
  };
  add_left_out(&Taken::costs);
  add_left_out(&Taken::sent);
  add_left_out(&Taken::calls);
}

void MetaRank::step(int64_t micro_batches, int64_t iteration) {
  engine_.step(batches_of(config_, micro_batches), iteration, iteration - 1);
}

void MetaRank::overflow(int64_t micro_batches, int64_t iteration) {
  for (const int64_t waves : engine_.wave_counts())
    engine_.step_again(batches_of(config_, micro_batches), iteration, iteration - 1, waves);
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
}

std::map<std::string, int64_t> MetaRank::saved_tensors() {
  std::map<std::string, int64_t> bytes;
  for (const StateTensor& tensor : engine_.state())
    if (tensor.writes) bytes[tensor.name] += tensor.local.elements() * static_cast<int64_t>(size_of(tensor.dtype()));
  return bytes;
}

void MetaRank::reset_costs() {
  stream_.reset_costs();
  calls_.clear();
  not_run_ = {};
  for (Group* group : groups_.all()) group->reset_sent();
}

KernelCosts MetaRank::costs() const {
  KernelCosts costs = stream_.costs();
  add(costs, not_run_.costs, 1);
  return costs;
}

CallCosts MetaRank::calls() const {
  CallCosts calls = calls_;
  add(calls, not_run_.calls, 1);
  return calls;
}

SentBytes MetaRank::sent() const {
  SentBytes sent = not_run_.sent;
  for (const Group* group : groups_.all())
    if (group->size() > 1 && !group->sent().empty()) add(sent[group->name()], group->sent(), 1);
  return sent;
}

}  // namespace witan
