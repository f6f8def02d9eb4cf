#include "witan/train/trace/times.h"

#include <gtest/gtest.h>

#include <numeric>

#include "support/rank.h"
#include "train/step/run_support.h"

namespace witan {
namespace {

using testing::random_batch;
using testing::small_config;

TEST(Times, MinimumAndMaximumOverRanks) {
  ThreadWorld world(3);
  const int64_t iterations = 4;
  world.run([&](int rank) {
    testing::Rank own;
    std::vector<int> all(3);
    std::iota(all.begin(), all.end(), 0);
    const auto group = world.group(rank, all, "world");
    const double seconds[] = {0.2, 0.1, 0.4};
    const auto times = gather_times(own.stream, *group, {{"a", seconds[rank]}, {"b", 1.0 * rank}}, iterations);
    ASSERT_EQ(times.size(), 2u);
    EXPECT_EQ(times[0].name, "a");
    EXPECT_DOUBLE_EQ(times[0].min_ms, 25);
    EXPECT_DOUBLE_EQ(times[0].max_ms, 100);
    EXPECT_EQ(times[1].name, "b");
    EXPECT_DOUBLE_EQ(times[1].min_ms, 0);
    EXPECT_DOUBLE_EQ(times[1].max_ms, 500);
    EXPECT_TRUE(gather_times(own.stream, *group, {}).empty());
  });
}

TEST(Times, LevelsMatchMegatronLm) {
  const auto names = [](int64_t level) {
    std::vector<std::string> found;
    for (const auto& [name, seconds] : named({}, level)) found.push_back(name);
    return found;
  };
  EXPECT_TRUE(names(0).empty());
  EXPECT_EQ(names(1), (std::vector<std::string>{"forward-backward", "all-grads-sync", "optimizer-clip-main-grad",
                                                "optimizer-inner-step", "optimizer"}));
  EXPECT_EQ(names(2).size(), 8u);
}

// The plan includes the memory for reports of a run, by tag and exactly, in every layout.
TEST(Times, PlansIncludeMemoryForLogging) {
  for (const ParallelConfig& parallel : {ParallelConfig{1, 1, 1}, ParallelConfig{4, 2, 1}, ParallelConfig{8, 1, 1}}) {
    RunConfig config = small_config();
    config.parallel = parallel;
    config.log.log_format = "megatron";
    config.log.log_params_norm = true;
    config.log.timing_log_level = 2;
    config.train.sample_tokens = 0;
    config.validate();
    const Plan plan = make_plan(resolve(config, {}));
    const int ranks = static_cast<int>(parallel.ranks);
    const Layout layout(config.parallel, ranks, config.model.moe.num_experts);
    ThreadWorld world(ranks);
    world.run([&](int rank) {
      const Groups groups = make_groups(world, layout, rank);
      ThreadPool pool(1);
      const RankPlan& promised = plan.ranks[static_cast<size_t>(rank)];
      Stream stream({Device::Kind::cpu}, Arena::reserve(promised.arena_bytes), pool);
      Engine engine(stream, groups, resolve(config, {}));
      gather_times(stream, groups.world(), {{"setup", 0}, {"data", 0}});
      for (int64_t step = 0; step < 3; ++step) {
        std::vector<Batch> batches;
        for (int64_t j = rank; j < config.micro_batches(); j += ranks) batches.push_back(random_batch(config, j));
        const StepResult result = engine.step(batches, step + 1, step);
        engine.params_norm();
        EXPECT_GT(result.times.forward_backward, result.times.reduction);
        EXPECT_GE(result.times.forward_backward, result.times.forward + result.times.backward);
        EXPECT_GE(result.times.optimizer, result.times.update);
        gather_times(stream, groups.world(), named(result.times, 2));
      }
      engine.evaluate({random_batch(config, rank)});
      EXPECT_EQ(stream.arena().high_water(), promised.arena_bytes) << "rank " << rank << " of " << ranks;
      for (int tag = 0; tag < kMemoryTags; ++tag)
        EXPECT_EQ(stream.arena().peak(static_cast<MemoryTag>(tag)),
                  promised.tags.at(std::string(name_of(static_cast<MemoryTag>(tag)))))
            << name_of(static_cast<MemoryTag>(tag)) << " of rank " << rank << " of " << ranks;
    });
  }
}

// Each parameter is counted once in every layout.
TEST(ParamsNorm, IsTheSameInEveryLayout) {
  std::vector<double> norms;
  for (const ParallelConfig& parallel : {ParallelConfig{1, 1, 1}, ParallelConfig{2, 2, 1}, ParallelConfig{4, 2, 1}}) {
    RunConfig config = small_config();
    config.parallel = parallel;
    const int ranks = static_cast<int>(parallel.ranks);
    const Layout layout(config.parallel, ranks, config.model.moe.num_experts);
    ThreadWorld world(ranks);
    std::vector<double> found(static_cast<size_t>(ranks));
    world.run([&](int rank) {
      const Groups groups = make_groups(world, layout, rank);
      testing::Rank own;
      Engine engine(own.stream, groups, resolve(config, {}));
      found[static_cast<size_t>(rank)] = engine.params_norm();
    });
    norms.insert(norms.end(), found.begin(), found.end());
  }
  ASSERT_EQ(norms.size(), 7u);
  EXPECT_GT(norms[0], 1);
  for (const double norm : norms) EXPECT_EQ(norm, norms[0]);
}

TEST(Times, EveryTimerIsSummed) {
  StepTimes one;
  one.batch = 1, one.forward = 2, one.backward = 3, one.reduction = 4;
  one.forward_backward = 5, one.clip = 6, one.update = 7, one.optimizer = 8;
  StepTimes two = one;
  two += one;
  EXPECT_EQ(two.batch, 2);
  const NamedSeconds a = named(one, 2), b = named(two, 2);
  for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(b[i].second, 2 * a[i].second) << a[i].first;
}

}  // namespace
}  // namespace witan
