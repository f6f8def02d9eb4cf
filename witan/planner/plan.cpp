#include "witan/planner/plan.h"

#include <algorithm>

#include "witan/base/threads.h"
#include "witan/comm/meta.h"
#include "witan/generate/generator.h"
#include "witan/planner/reserve.h"
#include "witan/tensor/cuda.h"
#include "witan/train/device.h"
#include "witan/train/engine.h"

namespace witan {
namespace {

std::vector<Batch> batches_of(const RunConfig& config, int64_t count) {
  Batch batch;
  batch.sequences = config.train.micro_batch_size;
  batch.sequence_length = config.data.seq_length;
  batch.loss_tokens = batch.sequences * batch.sequence_length;
  return std::vector<Batch>(static_cast<size_t>(count), batch);
}

// What the rank's group of experts will find: GPUs of one process may reach each other's memory. Those that are not
// here are taken to.
PeerAccess peers_of(const RunConfig& config, const Layout& layout, int rank) {
  if (!config.parallel.on_gpu()) return PeerAccess::none;
  const std::vector<int> ranks = layout.mesh().ranks(rank, Axis::expert);
  const int64_t here = config.parallel.ranks_per_process;
  if (here > 0 && std::ranges::any_of(ranks, [&](int other) { return other / here != rank / here; }))
    return PeerAccess::none;
  if (here > 0 || layout.world_size() > cuda::devices()) return PeerAccess::wanted;
  const bool all = std::ranges::all_of(ranks, [&](int from) {
    return std::ranges::all_of(ranks, [&](int to) { return cuda::can_access_peer(from, to); });
  });
  return all ? PeerAccess::wanted : PeerAccess::none;
}

// One rank's engine on the meta device.
class MetaRank {
 public:
  MetaRank(const RunConfig& config, const Layout& layout, int rank)
      : config_(config),
        pool_(static_cast<int>(config.parallel.threads)),  // kernels size their scratch by it
        stream_({Device::Kind::meta, rank, device_of(config, rank).kind}, Arena::meta(), pool_),
        groups_(make_meta_groups(layout, rank, peers_of(config, layout, rank))),
        engine_(stream_, groups_, config) {}

  void step(int64_t micro_batches, int64_t iteration) {
    engine_.step(batches_of(config_, micro_batches), iteration, iteration - 1);
  }
  void evaluate(int64_t micro_batches) { engine_.evaluate(batches_of(config_, micro_batches)); }

  // The collectives of logging, which are not part of every step.
  void log() {
    if (config_.log.log_params_norm) engine_.params_norm();
    if (!config_.log.megatron()) return;
    gather_times(stream_, groups_.world(), {{"setup", 0}, {"data", 0}});
    gather_times(stream_, groups_.world(), named({}, config_.log.timing_log_level));
  }

  void sample(int64_t prompt_tokens) {
    const auto most = engine_.model().most_positions();  // with room for one that is new
    const int64_t tokens = most ? std::min(prompt_tokens, *most - 1) : prompt_tokens;
    if (!config_.writes_sample() || tokens == 0) return;
    GenerateOptions options;
    options.max_tokens = tokens_that_fit(engine_.model(), tokens, config_.train.sample_tokens);
    generate(stream_, engine_.model(), std::vector<int32_t>(static_cast<size_t>(tokens)), options);
  }

  void reset_costs() {
    stream_.reset_costs();
    for (Group* group : groups_.all()) group->reset_sent();
  }
  const KernelCosts& costs() const { return stream_.costs(); }
  SentBytes sent() const {
    SentBytes sent;
    for (const Group* group : groups_.all())
      if (group->size() > 1 && !group->sent().empty()) sent[group->name()] = group->sent();
    return sent;
  }
  Arena& arena() { return stream_.arena(); }
  std::string why_eager() const { return engine_.why_eager(); }

 private:
  const RunConfig& config_;
  ThreadPool pool_;
  Stream stream_;
  const Groups groups_;
  Engine engine_;
};

Layout layout_of(const RunConfig& config) {
  return {config.parallel, static_cast<int>(config.parallel.ranks), config.model.moe.num_experts};
}

int64_t micro_batches_of_a_rank(const RunConfig& config) {
  return config.micro_batches() / config.parallel.data_ranks();
}

RankPlan plan_rank(const RunConfig& config, const Layout& layout, int rank, int64_t prompt_tokens) {
  MetaRank meta(config, layout, rank);
  meta.step(micro_batches_of_a_rank(config), 1);
  meta.reset_costs();
  meta.step(micro_batches_of_a_rank(config), 2);
  RankPlan plan;
  plan.rank = rank;
  plan.step = meta.costs();
  plan.sent = meta.sent();

  meta.log();
  // A run also looks at held-out text and writes a sample.
  meta.reset_costs();
  meta.evaluate(1);
  plan.look = meta.costs();
  plan.look_sent = meta.sent();
  if (config.parallel.pipeline_model_parallel_size > 1) meta.evaluate(micro_batches_of_a_rank(config));
  meta.sample(prompt_tokens);

  plan.why_eager = meta.why_eager();
  plan.arena_bytes = meta.arena().high_water();
  for (int tag = 0; tag < kMemoryTags; ++tag)
    plan.tags[std::string(name_of(static_cast<MemoryTag>(tag)))] = meta.arena().peak(static_cast<MemoryTag>(tag));
  return plan;
}

// What all micro-batches of a step have on the device at once: their tokens, and what they came to.
int64_t step_buffers_bytes(const RunConfig& config, int64_t micro_batches) {
  ThreadPool pool(1);
  Stream stream({Device::Kind::meta}, Arena::meta(), pool);
  const StepInputs inputs(stream, batches_of(config, micro_batches));
  const StepReport report(
      stream, layout_of(config), 0,
      ReportSizes(config.model, Stages(config.parallel.stage_split(config.model.num_layers)), micro_batches));
  return stream.arena().high_water();
}

// What pools of experts' rows cost beyond an even spread: the activations of rank 0 with a capacity factor of 1.
// Nothing where pools are no bound on what other ranks may send.
std::optional<int64_t> balanced_activations(const RunConfig& config, const Layout& layout) {
  if (layout.mesh().size(Axis::expert) == 1 || config.model.moe.moe_expert_capacity_factor > 0) return std::nullopt;
  RunConfig balanced = config;
  balanced.model.moe.moe_expert_capacity_factor = 1;
  MetaRank meta(balanced, layout, 0);
  meta.step(micro_batches_of_a_rank(config), 1);
  return meta.arena().peak(MemoryTag::activations);
}

int64_t most_prompt_tokens(const RunConfig& config) {
  return static_cast<int64_t>(config.train.sample_prompt.size());
}

}  // namespace

int64_t Plan::arena_bytes() const {
  int64_t most = 0;
  for (const RankPlan& rank : ranks) most = std::max(most, rank.arena_bytes);
  return most;
}

int64_t Plan::resident_bytes() const {
  int64_t sum = reserve_bytes;
  if (on_gpu) return sum;
  for (const RankPlan& rank : ranks) sum += rank.arena_bytes;
  return sum;
}

Plan make_plan(const RunConfig& config, const PlanOptions& options) {
  Plan plan;
  plan.counts = count_parameters(config.model);
  plan.tokens_per_step = config.train.global_batch_size * config.data.seq_length;
  plan.reserve_bytes = reserve_bytes(config);
  plan.on_gpu = config.parallel.on_gpu();
  plan.gpu_reserve_bytes = gpu_reserve_bytes(config);
  plan.processes = config.parallel.ranks_per_process > 0;
  plan.micro_batches = micro_batches_of_a_rank(config);
  const Stages stages(config.parallel.stage_split(config.model.num_layers));
  for (int stage = 0; stage < stages.stages(); ++stage) plan.stages.push_back(stages.held_by(stage));
  plan.bubble = bubble_over_work({stages.stages(), stages.chunks(), plan.micro_batches});
  const Layout layout = layout_of(config);
  const int64_t prompt = options.prompt_tokens.value_or(most_prompt_tokens(config));
  for (int rank = 0; rank < layout.world_size(); ++rank) {
    plan.ranks.push_back(plan_rank(config, layout, rank, prompt));
    for (const auto& [part, kernels] : plan.ranks.back().step)
      for (const auto& [kernel, cost] : kernels) plan.step_flops += cost.flops;
    plan.exchanges_rows = layout.mesh().size(Axis::expert) > 1;
    if (peers_of(config, layout, rank) == PeerAccess::none) plan.peers = false;
  }
  if (options.balanced) plan.balanced_activations = balanced_activations(config, layout);
  return plan;
}

std::string Plan::why_eager() const {
  for (const RankPlan& rank : ranks)
    if (!rank.why_eager.empty()) return rank.why_eager;
  return "";
}

RunPlan run_plan(const Plan& plan) {
  RunPlan promised;
  for (const RankPlan& rank : plan.ranks) promised.memory.push_back({rank.rank, rank.tags, rank.arena_bytes});
  promised.resident_bytes = plan.resident_bytes();
  promised.on_gpu = plan.on_gpu;
  promised.step_flops = plan.step_flops;
  return promised;
}

int64_t estimate_arena_bytes(const RunConfig& config) {
  RunConfig fewer = config;
  // The tree of deterministic sums grows with the micro-batches, and so does what a pipeline has in flight: there all
  // are needed.
  const int64_t stages = config.parallel.pipeline_model_parallel_size;
  const bool all = config.parallel.deterministic || stages > 1;
  const int64_t micro_batches =
      all ? micro_batches_of_a_rank(config) : std::min<int64_t>(micro_batches_of_a_rank(config), 3);
  fewer.train.global_batch_size = micro_batches * config.train.micro_batch_size * config.parallel.data_ranks();
  const int64_t left_out =
      step_buffers_bytes(config, micro_batches_of_a_rank(config)) - step_buffers_bytes(config, micro_batches);
  int64_t bytes = 0;
  for (int64_t stage = 0; stage < stages; ++stage) {
    MetaRank meta(fewer, layout_of(fewer), static_cast<int>(stage * (config.parallel.ranks / stages)));
    for (int64_t iteration = 1; iteration <= 2; ++iteration) meta.step(micro_batches, iteration);
    meta.log();
    meta.evaluate(stages > 1 ? micro_batches : 1);
    meta.sample(most_prompt_tokens(config));
    bytes += (meta.arena().high_water() + left_out) * (config.parallel.ranks / stages);
  }
  return bytes;
}

}  // namespace witan
