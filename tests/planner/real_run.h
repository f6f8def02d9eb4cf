// A real run of a config on thread ranks, step by step, for comparison with its plan.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "train/run_support.h"
#include "witan/generate/generator.h"
#include "witan/planner/plan.h"

namespace witan::testing {

// What a rank's arena and groups counted.
struct RankCounts {
  int64_t arena_bytes = 0;
  std::map<std::string, int64_t> tags;
  SentBytes sent;  // in the last step

  bool operator==(const RankCounts&) const = default;
};

inline RankCounts counts_of(const RankPlan& plan) {
  return {plan.arena_bytes, plan.tags, plan.sent};
}

// Two steps, a look at held-out text, without a pipeline of `looks` micro-batches, and a sample of `prompt_tokens` and
// more, as a run takes them, in arenas of the planned size.
inline std::vector<RankCounts> count_real_run(const RunConfig& config, const Plan& plan, int64_t prompt_tokens,
                                              size_t looks = 1) {
  const int ranks = static_cast<int>(config.parallel.ranks);
  const Layout layout(config.parallel, ranks, config.model.moe.num_experts);
  ThreadWorld world(ranks);
  std::vector<RankCounts> counts(static_cast<size_t>(ranks));
  world.run([&](int rank) {
    const auto r = static_cast<size_t>(rank);
    const Groups groups = make_groups(world, layout, rank);
    ThreadPool pool(static_cast<int>(config.parallel.threads));
    Stream stream({Device::Kind::cpu}, Arena::reserve(plan.ranks[r].arena_bytes), pool);
    Engine engine(stream, groups, config);
    for (int64_t step = 1; step <= 2; ++step) {
      for (Group* group : groups.all()) group->reset_sent();
      engine.step(own_batches(config, layout, rank, step), step, step - 1);
    }
    for (const Group* group : groups.all())
      if (group->size() > 1 && !group->sent().empty()) counts[r].sent[group->name()] = group->sent();
    const bool staged = config.parallel.pipeline_model_parallel_size > 1;
    engine.evaluate(staged ? own_batches(config, layout, rank, 3) : std::vector(looks, random_batch(config, 99)));
    GenerateOptions options;
    options.max_tokens = config.train.sample_tokens;
    if (config.writes_sample())
      generate(stream, engine.model(), std::vector<int32_t>(static_cast<size_t>(prompt_tokens), 1), options);
    counts[r].arena_bytes = stream.arena().high_water();
    for (int tag = 0; tag < kMemoryTags; ++tag)
      counts[r].tags[std::string(name_of(static_cast<MemoryTag>(tag)))] =
          stream.arena().peak(static_cast<MemoryTag>(tag));
  });
  return counts;
}

}  // namespace witan::testing
