// A real run of a config on thread ranks, phase by phase, for comparison with its plan.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "train/step/run_support.h"
#include "witan/generate/generation_batch.h"
#include "witan/planner/plan.h"

namespace witan::testing {

// The counts of a rank's arena and groups.
struct RankCounts {
  int64_t arena_bytes = 0;
  std::map<std::string, int64_t> tags;
  SentBytes sent;  // bytes of the last step

  bool operator==(const RankCounts&) const = default;
};

inline RankCounts counts_of(const RankPlan& plan) {
  return {plan.arena_bytes, plan.tags, plan.sent};
}

// Parts of a run that its configuration does not determine.
struct RealRun {
  int64_t prompt_tokens = 1;  // of the sample's prompt
  size_t evaluated = 1;       // micro-batches per rank in each evaluation
};

// Runs the phases of a run in the trainer's order, in arenas of the planned size: steps and evaluations, a save, and a
// final sample. Sent bytes are counted in the second step.
inline std::vector<RankCounts> count_real_run(const RunConfig& config, const Plan& plan, const RealRun& run = {}) {
  const int ranks = static_cast<int>(config.parallel.ranks);
  const Layout layout(config.parallel, ranks, config.model.moe.num_experts);
  ThreadWorld world(ranks);
  std::vector<RankCounts> counts(static_cast<size_t>(ranks));
  world.run([&](int rank) {
    const auto r = static_cast<size_t>(rank);
    const Groups groups = make_groups(world, layout, rank);
    ThreadPool pool(static_cast<int>(config.parallel.threads));
    Stream stream({Device::Kind::cpu}, Arena::reserve(plan.ranks[r].arena_bytes), pool);
    Engine engine(stream, groups, resolve(config, {}));
    const bool tells = config.log.megatron();
    if (tells) gather_times(stream, groups.world(), {{"setup", 0}, {"data", 0}});
    const auto step = [&](int64_t number) {
      for (Group* group : groups.all()) group->reset_sent();
      const StepResult done = engine.step(own_batches(config, layout, rank, number), number, number - 1);
      for (const Group* group : groups.all())
        if (number == 2 && group->size() > 1 && !group->sent().empty()) counts[r].sent[group->name()] = group->sent();
      if (config.log.log_params_norm) engine.params_norm();
      if (tells) gather_times(stream, groups.world(), named(done.times, config.log.timing_log_level));
    };
    const auto evaluate = [&] {
      engine.evaluate(std::vector(run.evaluated, random_batch(config, 99)));
      if (tells) gather_times(stream, groups.world(), {{"evaluate", 0}});
    };
    step(1);
    step(2);
    evaluate();
    step(3);
    engine.state();
    evaluate();
    GenerateOptions options;
    options.max_tokens = tokens_that_fit(engine.model(), run.prompt_tokens, config.train.sample_tokens);
    if (config.writes_sample() && options.max_tokens > 0 && run.prompt_tokens > 0)
      generate(stream, engine.model(), std::vector<int32_t>(static_cast<size_t>(run.prompt_tokens), 1), options);
    counts[r].arena_bytes = stream.arena().high_water();
    for (int tag = 0; tag < kMemoryTags; ++tag)
      counts[r].tags[std::string(name_of(static_cast<MemoryTag>(tag)))] =
          stream.arena().peak(static_cast<MemoryTag>(tag));
  });
  return counts;
}

// Expects that the memory of a run without a sample is exactly the planned one on every rank, in total and for each
// tag.
inline void expect_planned_memory(RunConfig config) {
  config.train.sample_tokens = 0;
  const Plan plan = make_plan(resolve(config, {}), {.prompt_tokens = 0});
  const auto real = count_real_run(config, plan, {.prompt_tokens = 0});
  for (const RankPlan& rank : plan.ranks) {
    const RankCounts& found = real[static_cast<size_t>(rank.rank)];
    EXPECT_EQ(found.arena_bytes, rank.arena_bytes) << "rank " << rank.rank;
    EXPECT_EQ(found.tags, rank.tags) << "rank " << rank.rank;
  }
}

// Expects that every rank's arena and tags end at exactly the planned bytes, and that every group has sent the planned
// bytes.
// the planned bytes.
inline void expect_kept(const RunConfig& config, const RealRun& run) {
  const Plan plan = make_plan(resolve(config, {}), {run.prompt_tokens});
  const auto real = count_real_run(config, plan, run);
  for (const RankPlan& rank : plan.ranks) {
    const RankCounts promised = counts_of(rank), found = real[static_cast<size_t>(rank.rank)];
    EXPECT_EQ(promised.arena_bytes, found.arena_bytes) << "rank " << rank.rank;
    EXPECT_EQ(promised.tags, found.tags) << "rank " << rank.rank;
    EXPECT_EQ(promised.sent, found.sent) << "rank " << rank.rank;
  }
}

}  // namespace witan::testing
