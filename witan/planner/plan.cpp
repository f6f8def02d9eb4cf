#include "witan/planner/plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <set>

#include "witan/base/threads/mutex.h"
#include "witan/base/threads/threads.h"
#include "witan/kernels/attention/attention_path.h"
#include "witan/model/config.h"
#include "witan/model/frozen.h"
#include "witan/parallel/peers.h"
#include "witan/planner/memory/disk.h"
#include "witan/planner/memory/rank_classes.h"
#include "witan/planner/memory/reserve.h"
#include "witan/tensor/cuda.h"
#include "witan/train/config/trained_parameters.h"
#include "witan/train/rollouts/rollout_files.h"
#include "witan/train/step/features/activation_offload.h"

namespace witan {
namespace {

std::string describe_ramp(const RunConfig& config) {
  const BatchRamp ramp = config.batch_ramp();
  if (!ramp.ramps()) return "";
  const auto sizes = ramp.sizes();
  return fmt::format("global batches grow from {} to {} sequences in {} sizes, over {} samples, the first {} steps",
                     sizes.front(), sizes.back(), sizes.size(), ramp.samples(), ramp.steps_below_full());
}

// The costs of one of `count` equal passes.
KernelCosts each(KernelCosts costs, double count) {
  for (auto& [part, kernels] : costs)
    for (auto& [kernel, cost] : kernels) cost = scaled(cost, 1 / count);
  return costs;
}
CallCosts each(CallCosts calls, double count) {
  for (auto& [kind, cost] : calls) cost = scaled(cost, 1 / count);
  return calls;
}
SentBytes each(SentBytes sent, double count) {
  for (auto& [group, operations] : sent)
    for (auto& [operation, bytes] : operations) bytes /= count;
  return sent;
}

// Returns nullopt if skipping micro-batches did not work, because memory never repeated.
std::optional<RankPlan> try_plan_rank(const ResolvedConfig& config, const Layout& layout, int rank,
                                      int64_t prompt_tokens, MetaRank::Run run) {
  MetaRank meta(config, layout, rank, run);
  meta.rollouts();  // a run samples before its first step
  meta.begin_ramp();
  meta.step(micro_batches_of_a_rank(config), 1);
  if (!meta.repeats()) return std::nullopt;
  meta.reset_costs();
  meta.step(micro_batches_of_a_rank(config), 2);
  RankPlan plan;
  plan.rank = rank;
  RankCosts step = meta.costs();
  plan.step = std::move(step.kernels);
  plan.sent = std::move(step.sent);
  plan.calls = std::move(step.calls);

  meta.overflow(micro_batches_of_a_rank(config), 2);
  meta.gather_values();
  meta.log();
  // A run also evaluates and writes samples. Each begins with what a step leaves in the arena and leaves the same
  // behind, so that planning one of each covers all of them in any order.
  meta.reset_costs();
  const auto together = static_cast<double>(meta.evaluate());
  RankCosts evaluation = meta.costs();
  plan.evaluation = each(std::move(evaluation.kernels), together);
  plan.eval_sent = each(std::move(evaluation.sent), together);
  plan.eval_calls = each(std::move(evaluation.calls), together);
  meta.sample(prompt_tokens);
  meta.rollouts();
  if (!meta.repeats()) return std::nullopt;

  plan.why_eager = meta.why_eager();
  plan.arena_bytes = meta.arena().high_water();
  plan.reference_bytes = meta.reference_bytes();
  add_offload(plan, config);
  for (int tag = 0; tag < kMemoryTags; ++tag)
    plan.tags[std::string(name_of(static_cast<MemoryTag>(tag)))] = meta.arena().peak(static_cast<MemoryTag>(tag));
  return plan;
}

RankPlan plan_rank(const ResolvedConfig& config, const Layout& layout, int rank, int64_t prompt_tokens,
                   bool every_micro_batch) {
  if (!every_micro_batch)
    if (auto plan = try_plan_rank(config, layout, rank, prompt_tokens, MetaRank::Run::some)) return *std::move(plan);
  return *try_plan_rank(config, layout, rank, prompt_tokens, MetaRank::Run::all);
}

constexpr size_t kEveryClass = std::numeric_limits<size_t>::max();

std::vector<RankClass> classes_of(const RunConfig& config, const Layout& layout, const PlanOptions& options) {
  using Ranks = PlanOptions::Ranks;
  if (options.ranks != Ranks::one_by_one)
    return rank_classes(config, layout, options.ranks == Ranks::by_class ? options.most_classes : kEveryClass);
  std::vector<RankClass> classes;
  for (int rank = 0; rank < layout.world_size(); ++rank) classes.push_back({{rank}, rank});
  return classes;
}

int64_t prompt_tokens_of(const RunConfig& config, const PlanOptions& options) {
  return options.prompt_tokens.value_or(most_prompt_tokens(config));
}

// Plans one rank of each class, in parallel on all cores.
std::vector<RankPlan> plan_ranks(const ResolvedConfig& config, const Layout& layout, const PlanOptions& options) {
  std::vector<RankClass> classes = classes_of(config, layout, options);
  const int64_t prompt_tokens = prompt_tokens_of(config, options);
  std::vector<RankPlan> plans(classes.size());
  Mutex mutex;
  int64_t done = 0;
  const auto report = [&](int64_t more) {
    const MutexLock lock(mutex);
    done += more;
    if (options.watch) options.watch(done, std::ssize(classes));
  };
  report(0);
  ThreadPool pool(static_cast<int>(std::min<size_t>(static_cast<size_t>(usable_cores()), classes.size())));
  pool.run(static_cast<int64_t>(classes.size()), [&](int64_t i) {
    RankClass& its = classes[static_cast<size_t>(i)];
    RankPlan& plan = plans[static_cast<size_t>(i)];
    plan = plan_rank(config, layout, its.planned, prompt_tokens, options.every_micro_batch);
    plan.ranks = std::move(its.ranks);
    plan.exact = its.exact;
    report(1);
  });
  return plans;
}

// Repeats each class's plan for each of its ranks.
std::vector<RankPlan> each_rank(const std::vector<RankPlan>& classes, int world) {
  std::vector<RankPlan> plans(static_cast<size_t>(world));
  for (const RankPlan& one : classes)
    for (const int rank : one.ranks) {
      RankPlan& plan = plans[static_cast<size_t>(rank)] = one;
      plan.rank = rank;
      plan.ranks = {rank};
    }
  return plans;
}

double flops_of(const KernelCosts& costs) {
  double flops = 0;
  for (const auto& [part, kernels] : costs)
    for (const auto& [kernel, cost] : kernels) flops += cost.flops;
  return flops;
}

// Rank 0's activations with perfectly balanced experts: with a capacity factor of 1, in which all else is the plan's
// own. nullopt if receive buffers do not bound the rows that other ranks may send.
std::optional<int64_t> balanced_activations(const ResolvedConfig& config, const Layout& layout, int64_t prompt_tokens) {
  const MoeConfig& moe = config->model.moe;
  const bool bounded = moe.moe_expert_capacity_factor > 0 || moe.moe_pool_factor > 0;
  if (layout.mesh().size(Axis::expert) == 1 || bounded) return std::nullopt;
  const ResolvedConfig balanced =
      config.with([](RunConfig& values) { values.model.moe.moe_expert_capacity_factor = 1; });
  return plan_rank(balanced, layout, 0, prompt_tokens, false).tags.at(std::string(name_of(MemoryTag::activations)));
}

}  // namespace

int64_t Plan::arena_bytes() const {
  int64_t most = 0;
  for (const RankPlan& rank : ranks) most = std::max(most, rank.arena_bytes);
  return most;
}

int64_t Plan::offload_bytes() const {
  int64_t sum = 0;
  for (const RankPlan& rank : ranks) sum += rank.offload_bytes * static_cast<int64_t>(rank.ranks.size());
  return sum;
}

int64_t Plan::resident_bytes() const {
  int64_t sum = reserve_bytes + offload_bytes();
  if (on_gpu) return sum;
  for (const RankPlan& rank : ranks) sum += rank.arena_bytes * static_cast<int64_t>(rank.ranks.size());
  return sum;
}

int64_t Plan::needed_bytes() const {
  if (on_gpu) return arena_bytes() + gpu_reserve_bytes;
  return spread ? arena_bytes() + reserve_bytes : resident_bytes();
}

Plan plan_outline(const ResolvedConfig& config) {
  Plan plan;
  plan.counts = count_parameters(config->model);
  if (Freeze(config->model).any()) plan.trained = count_trained(config->model);
  plan.layers = config->model.layers();
  plan.tokens_per_step = config->train.global_batch_size * config->data.seq_length;
  plan.ramp = describe_ramp(config);
  plan.reserve_bytes = reserve_bytes(config);
  plan.on_gpu = config->parallel.on_gpu();
  plan.gpu_reserve_bytes = gpu_reserve_bytes(config);
  plan.processes = config->parallel.ranks_per_process > 0;
  plan.peers_allowed = config->parallel.peer_memory;
  plan.micro_batches = micro_batches_of_a_rank(config);
  const Stages stages(config->parallel.stage_split(config->model.num_layers));
  for (int stage = 0; stage < stages.stages(); ++stage) plan.stages.push_back(stages.held_by(stage));
  plan.bubble = bubble_over_work({stages.stages(), stages.chunks(), plan.micro_batches});
  const Layout layout = layout_of(config);
  plan.exchanges_rows = layout.mesh().size(Axis::expert) > 1;
  plan.rows_by_hosts = layout.has_expert_hosts();
  return plan;
}

Plan make_plan(const ResolvedConfig& config, const PlanOptions& options) {
  Plan plan = plan_outline(config);
  plan.spread = options.spread;
  plan.param_groups = use_of_param_groups(config);
  const Layout layout = layout_of(config);
  plan.ranks = plan_ranks(config, layout, options);
  if (options.ranks != PlanOptions::Ranks::by_class) plan.ranks = each_rank(plan.ranks, layout.world_size());
  for (const RankPlan& one : plan.ranks) {
    plan.step_flops += flops_of(one.step) * static_cast<double>(one.ranks.size());
    const PeerAccess peers = peers_of(config->parallel, layout, one.rank);
    if (peers == PeerAccess::none || peers == PeerAccess::host) plan.peers = false;
    if (peers == PeerAccess::host) plan.through_host = true;
  }
  const FolderBytes disk = folder_bytes(config);
  plan.checkpoint_bytes = disk.checkpoint;
  plan.anomaly_bytes = disk.anomaly;
  plan.reference_disk_bytes = disk.reference;
  plan.anomalies = more_anomalies(config->train);
  plan.rollout_bytes = rollout_file_bytes(config);
  plan.rollout_files = kept_rollout_files(config);
  plan.disk_bytes = static_cast<double>(more_checkpoints(config->train)) * static_cast<double>(disk.checkpoint) +
                    static_cast<double>(plan.anomalies) * static_cast<double>(disk.anomaly) +
                    plan.rollouts_disk_bytes();
  if (options.balanced)
    plan.balanced_activations = balanced_activations(config, layout, prompt_tokens_of(*config, options));
  return plan;
}

std::string Plan::why_eager() const {
  for (const RankPlan& rank : ranks)
    if (!rank.why_eager.empty()) return rank.why_eager;
  return "";
}

std::vector<std::string> Plan::slow_paths() const {
  std::set<std::string> found;
  for (const RankPlan& rank : ranks)
    for (const auto& [kind, cost] : rank.calls) found.insert(kernels::slow_path(kind.name));
  found.erase("");
  return {found.begin(), found.end()};
}

void add_offload(RankPlan& rank, const ResolvedConfig& config) {
  if (!ActivationOffload::applies(*config)) return;
  const Layout layout = layout_of(config);
  const int64_t tokens = config->train.micro_batch_size * config->data.seq_length / layout.mesh().size(Axis::context);
  const OffloadedInputs moved(*config, layout.mesh().coordinate(rank.rank, Axis::pipeline),
                              micro_batches_of_a_rank(config), tokens);
  rank.offload_bytes = moved.host_bytes();
  for (const int64_t inputs : moved.inputs) rank.offloaded.push_back(static_cast<double>(inputs * moved.bytes));
}

RunPlan run_plan(const Plan& plan) {
  RunPlan planned;
  for (const RankPlan& rank : plan.ranks) planned.memory.push_back({rank.rank, rank.tags, rank.arena_bytes});
  planned.resident_bytes = plan.resident_bytes();
  planned.offload_bytes = plan.offload_bytes();
  planned.on_gpu = plan.on_gpu;
  planned.step_flops = plan.step_flops;
  planned.slow_paths = plan.slow_paths();
  return planned;
}

}  // namespace witan
