#include "witan/train/loop/start_check.h"

#include <gmock/gmock.h>

#include "support/message_of.h"
#include "train/step/run_support.h"

namespace witan {
namespace {

using ::testing::HasSubstr;
using testing::own_batches;
using testing::small_config;

RunConfig of(int64_t ranks, const std::function<void(ParallelConfig&)>& divide) {
  RunConfig config = small_config();
  config.model.vocab_size = 64;
  config.parallel.ranks = ranks;
  config.train.sample_tokens = 0;
  config.train.global_batch_size = 16;
  divide(config.parallel);
  config.validate();
  return config;
}

std::vector<RunConfig> layouts() {
  return {of(2, [](ParallelConfig& p) { p.expert_model_parallel_size = 2; }),
          of(4,
             [](ParallelConfig& p) {
               p.expert_model_parallel_size = 4;
               p.hierarchical_expert_parallel_size = 2;
             }),
          of(4,
             [](ParallelConfig& p) {
               p.pipeline_model_parallel_size = 2;
               p.use_distributed_optimizer = true;
             }),
          of(4,
             [](ParallelConfig& p) {
               p.tensor_model_parallel_size = 2;
               p.context_parallel_size = 2;
               p.sequence_parallel = true;
             }),
          of(2, [](ParallelConfig& p) {
            p.use_distributed_optimizer = true;
            p.data_parallel_sharding_strategy = "optim_grads_params";
          })};
}

// The calls of a real step.
CallSchedule real_schedule(const RunConfig& config, const Layout& layout, World& world, int rank) {
  ThreadPool pool(1);
  Stream stream({Device::Kind::cpu}, Arena::reserve(int64_t{1} << 28), pool);
  const Groups groups = make_groups(world, layout, rank);
  Engine engine(stream, groups, resolve(config, {}));
  CallSchedule schedule;
  for (const Axes& axes : layout.group_axes()) schedule.follow(groups.over(axes), layout.mesh().ranks(rank, axes));
  schedule.follow(groups.embedding(), layout.embedding_ranks(rank));
  if (layout.has_expert_hosts()) {
    schedule.follow(groups.experts_of_host(), layout.expert_ranks_of_host(rank));
    schedule.follow(groups.experts_between_hosts(), layout.expert_ranks_between_hosts(rank));
  }
  engine.step(own_batches(config, layout, rank, 0), 1, 0);
  for (Group* group : groups.all()) group->observe(nullptr);
  return schedule;
}

TEST(StartCheck, PredictsTheCallsOfAStep) {
  for (RunConfig config : layouts()) {
    const Layout layout = layout_of(config);
    // These are exactly the micro-batches that the check uses.
    config.train.global_batch_size =
        2 * config.parallel.pipeline_model_parallel_size * config.train.micro_batch_size * layout.data_ranks();
    ThreadWorld world(layout.world_size(), {.deadline_seconds = 20});
    world.run([&](int rank) {
      const CallSchedule foreseen = schedule_of_step(resolve(config, {}), layout, rank);
      const CallSchedule real = real_schedule(config, layout, world, rank);
      ASSERT_EQ(foreseen.lanes().size(), real.lanes().size());
      size_t calls = 0;
      for (size_t i = 0; i < real.lanes().size(); ++i) {
        EXPECT_EQ(foreseen.lanes()[i].name, real.lanes()[i].name);
        EXPECT_EQ(foreseen.lanes()[i].calls, real.lanes()[i].calls) << real.lanes()[i].name;
        EXPECT_EQ(foreseen.lanes()[i].places, real.lanes()[i].places) << real.lanes()[i].name;
        calls += real.lanes()[i].calls.size();
      }
      EXPECT_GT(calls, 3u);
      require_same_schedule(world, rank, foreseen);
    });
  }
}

TEST(StartCheck, RefusesARankWithDifferentCalls) {
  const RunConfig usual = layouts()[0];
  RunConfig other = usual;
  other.parallel.overlap_grad_reduce = false;  // the same calls, but all after the backward
  RunConfig checks = usual;
  checks.train.check_states = true;
  const auto compare = [&](const RunConfig& of_one) {
    ThreadWorld world(2, {.deadline_seconds = 20});
    world.run([&](int rank) {
      const RunConfig& own = rank == 1 ? of_one : usual;
      require_same_schedule(world, rank, schedule_of_step(resolve(own, {}), layout_of(own), rank));
    });
  };
  compare(usual);
  compare(other);
  EXPECT_THAT(test::message_of<CommError>([&] { compare(checks); }),
              HasSubstr("ranks disagree on the collectives of a step: axis "));
}

TEST(StartCheck, ComparesSettingsExceptThoseOfTheHost) {
  const auto compare = [](const std::function<void(RunConfig&)>& change) {
    ThreadWorld world(3, {.deadline_seconds = 20});
    world.run([&](int rank) {
      RunConfig config = small_config();
      if (rank == 2) change(config);
      require_same_settings(world, rank, settings_of(config));
    });
  };
  compare([](RunConfig& config) { config.parallel.threads = 7; });
  EXPECT_THAT(test::message_of<ConfigError>([&] { compare([](RunConfig& config) { config.train.seed = 5; }); }),
              HasSubstr("seed = 1234 on ranks 0, 1, but 5 on rank 2"));
}

}  // namespace
}  // namespace witan
