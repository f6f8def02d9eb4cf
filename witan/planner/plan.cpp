#include "witan/planner/plan.h"

#include <algorithm>

#include "witan/base/threads.h"
#include "witan/generate/generator.h"
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

RankPlan plan_rank(const RunConfig& config, const Layout& layout, int rank) {
  ThreadPool pool(static_cast<int>(config.parallel.threads));  // kernels size their scratch by it
  Stream stream({Device::Kind::meta}, Arena::meta(), pool);
  const Groups groups = make_meta_groups(layout, rank);
  Engine engine(stream, groups, config);
  const auto batches = batches_of(config, config.micro_batches() / config.parallel.ranks);
  engine.step(batches, 1, 0);

  stream.reset_costs();
  const std::vector<Group*> axes = {groups.replicate.get(), groups.expert.get(), groups.expert_replicate.get()};
  for (Group* group : axes) group->reset_sent();
  engine.step(batches, 2, 1);
  RankPlan plan;
  plan.rank = rank;
  for (const auto& [part, kernels] : stream.costs())
    for (const auto& [kernel, cost] : kernels) plan.parts[part] += cost;
  for (const Group* group : axes)
    if (group->size() > 1) plan.sent[group->name()] = group->sent();

  // What logging asks for now and then.
  if (config.log.log_params_norm) engine.params_norm();
  if (config.log.megatron()) {
    gather_times(stream, *groups.replicate, {{"setup", 0}, {"data", 0}});
    gather_times(stream, *groups.replicate, named({}, config.log.timing_log_level));
  }

  // A run also looks at held-out text and writes a sample.
  engine.evaluate(batches_of(config, 1));
  if (config.train.sample_tokens > 0) {
    // A prompt has at most as many tokens as bytes, and leaves room for one that is new.
    const auto bytes = static_cast<int64_t>(config.train.sample_prompt.size());
    const auto most = engine.model().most_positions();
    const int64_t tokens = std::max<int64_t>(most ? std::min(bytes, *most - 1) : bytes, 1);
    const std::vector<int32_t> prompt(static_cast<size_t>(tokens));
    GenerateOptions options;
    options.max_tokens = tokens_that_fit(engine.model(), tokens, config.train.sample_tokens);
    generate(stream, engine.model(), prompt, options);
  }
  plan.arena_bytes = stream.arena().high_water();
  for (int tag = 0; tag < kMemoryTags; ++tag)
    plan.tags[std::string(name_of(static_cast<MemoryTag>(tag)))] = stream.arena().peak(static_cast<MemoryTag>(tag));
  return plan;
}

}  // namespace

int64_t Plan::arena_bytes() const {
  return std::max_element(ranks.begin(), ranks.end(),
                          [](const RankPlan& a, const RankPlan& b) { return a.arena_bytes < b.arena_bytes; })
      ->arena_bytes;
}

Plan make_plan(const RunConfig& config) {
  Plan plan;
  plan.counts = count_parameters(config.model);
  plan.tokens_per_step = config.train.global_batch_size * config.data.seq_length;
  const Layout layout(config.parallel, static_cast<int>(config.parallel.ranks), config.model.moe.num_experts);
  for (int rank = 0; rank < layout.world_size(); ++rank) {
    plan.ranks.push_back(plan_rank(config, layout, rank));
    for (const auto& [part, cost] : plan.ranks.back().parts) plan.step_flops += cost.flops;
  }
  return plan;
}

}  // namespace witan
