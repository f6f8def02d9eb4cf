#include <algorithm>
#include <optional>
#include <utility>

#include "witan/planner/memory/reserve.h"
#include "witan/planner/plan.h"

namespace witan {
namespace {

// Bytes of the step's inputs and report, which hold all micro-batches at once.
int64_t step_buffers_bytes(const RunConfig& config, int64_t micro_batches, ReportSizes report_sizes) {
  ThreadPool pool(1);
  Stream stream({Device::Kind::meta}, Arena::meta(), pool);
  const StepInputs inputs(stream, batches_of(config, micro_batches), config.model.mtp_num_layers);
  const StepReport report(stream, layout_of(config), 0, std::move(report_sizes));
  return stream.arena().high_water();
}

// The number of micro-batches that shows what all of them need. The tree of deterministic sums grows with their number,
// so that all are needed then; the walk still skips most of them.
int64_t enough_micro_batches(const RunConfig& config) {
  const int64_t all = micro_batches_of_a_rank(config), stages = config.parallel.pipeline_model_parallel_size;
  return config.parallel.sums_in_tree(config.model.moe.num_experts) ? all : std::min(all, stages > 1 ? 2 * stages : 3);
}

ResolvedConfig with_micro_batches(const ResolvedConfig& config, int64_t of_a_rank) {
  return config.with([&](RunConfig& values) {
    values.train.global_batch_size = of_a_rank * values.train.micro_batch_size * values.parallel.data_ranks();
    values.train.rampup_batch_size.clear();
  });
}

// Whether the kernels of a part, or the exchanges of an axis, run once per micro-batch rather than once per step.
bool is_of_micro_batches(const RunConfig& config, const std::string& part) {
  const bool divided = config.parallel.sharding() >= Sharding::gradients;
  return part == "gradients" ? divided : part != "optimizer" && part != "other";
}
bool travels_with_micro_batches(const RunConfig& config, const std::string& axis, const std::string& operation) {
  const bool divided = config.parallel.sharding() >= Sharding::gradients;
  const bool of_gradients = axis.find("replicate") != std::string::npos || axis.find("shard") != std::string::npos;
  const bool kept = !config.parallel.reshard_after_forward && operation == "all_gather_uneven";
  return of_gradients ? divided && !kept : axis != "embedding";
}

// Returns nullopt if skipping micro-batches did not work, because memory never repeated.
std::optional<RankPlan> try_quick_plan_rank(const ResolvedConfig& config, int rank, MetaRank::Run run) {
  const int64_t all = micro_batches_of_a_rank(config), some = enough_micro_batches(config);
  const ResolvedConfig fewer = with_micro_batches(config, some);
  const Layout layout = layout_of(fewer);
  MetaRank meta(fewer, layout, rank, run);
  meta.step(some, 1);
  meta.reset_costs();
  meta.step(some, 2);  // like every step but the first, it gathers the values that the update before it changed
  if (!meta.repeats()) return std::nullopt;
  RankPlan plan;
  plan.rank = rank;
  plan.exact = false;
  RankCosts step = meta.costs();
  plan.step = std::move(step.kernels);
  plan.sent = std::move(step.sent);
  plan.calls = std::move(step.calls);
  const double times = static_cast<double>(all) / static_cast<double>(some);
  for (auto& [part, kernels] : plan.step)
    if (is_of_micro_batches(config, part))
      for (auto& [kernel, cost] : kernels) cost = scaled(cost, times);
  for (auto& [axis, operations] : plan.sent)
    for (auto& [operation, bytes] : operations)
      if (travels_with_micro_batches(config, axis, operation)) bytes *= times;
  for (auto& [kind, cost] : plan.calls) {
    const bool in_pass = kind.phase == TraceContext::Phase::forward || kind.phase == TraceContext::Phase::backward;
    if (in_pass && (kind.group.empty() ? is_of_micro_batches(config, kind.part)
                                       : travels_with_micro_batches(config, kind.group, kind.name)))
      cost = scaled(cost, times);
  }
  const auto buffers = [&](int64_t count) { return step_buffers_bytes(config, count, meta.report_sizes(count)); };
  add_offload(plan, config);
  plan.arena_bytes = meta.arena().high_water() + buffers(all) - buffers(some);
  for (int tag = 0; tag < kMemoryTags; ++tag)
    plan.tags[std::string(name_of(static_cast<MemoryTag>(tag)))] = meta.arena().peak(static_cast<MemoryTag>(tag));
  return plan;
}

RankPlan quick_plan_rank(const ResolvedConfig& config, int rank) {
  auto plan = try_quick_plan_rank(config, rank, MetaRank::Run::some);
  return plan ? *std::move(plan) : *try_quick_plan_rank(config, rank, MetaRank::Run::all);
}

// Returns nullopt if skipping micro-batches did not work, because memory never repeated.
std::optional<int64_t> arena_bytes_of(const ResolvedConfig& config, int rank, MetaRank::Run run) {
  MetaRank meta(config, layout_of(config), rank, run);
  meta.rollouts();
  meta.begin_ramp();
  for (int64_t iteration = 1; iteration <= 2; ++iteration) meta.step(micro_batches_of_a_rank(config), iteration);
  meta.log();
  meta.evaluate();
  meta.sample(most_prompt_tokens(config));
  meta.rollouts();
  if (!meta.repeats()) return std::nullopt;
  return meta.arena().high_water();
}

}  // namespace

int64_t estimate_arena_bytes(const ResolvedConfig& config) {
  const int64_t stages = config->parallel.pipeline_model_parallel_size, of_a_stage = config->parallel.ranks / stages;
  int64_t bytes = 0;
  for (int64_t stage = 0; stage < stages; ++stage) {
    const auto rank = static_cast<int>(stage * of_a_stage);
    const auto some = arena_bytes_of(config, rank, MetaRank::Run::some);
    bytes += (some ? *some : *arena_bytes_of(config, rank, MetaRank::Run::all)) * of_a_stage;
  }
  return bytes;
}

Plan quick_plan(const ResolvedConfig& config) {
  Plan plan = plan_outline(config);
  const int stages = static_cast<int>(config->parallel.pipeline_model_parallel_size),
            of_a_stage = static_cast<int>(config->parallel.ranks) / stages;
  for (const int stage : {0, stages - 1}) {
    if (stage == 0 && !plan.ranks.empty()) break;
    plan.ranks.push_back(quick_plan_rank(config, stage * of_a_stage));
    RankPlan& its = plan.ranks.back();
    for (int i = 0; i < of_a_stage; ++i) its.ranks.push_back(its.rank + i);
  }
  return plan;
}

}  // namespace witan
