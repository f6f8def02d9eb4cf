// Inputs of recomputed blocks wait for their backward in host memory: no bit changes, the device needs less memory, and
// both memories are as large as planned.
#include "witan/train/step/features/activation_offload.h"

#include <gtest/gtest.h>

#include "train/step/layouts/laid_out.h"
#include "train/step/run_support.h"

namespace witan {
namespace {

using testing::kFsdp;
using testing::laid_out;
using testing::LaidOut;
using testing::run_engine;
using testing::Trajectory;

constexpr int64_t kSteps = 3;

// Long sequences of a small vocabulary, so that the inputs of blocks are a large part of the memory.
RunConfig offloading(int64_t experts, bool offload = true) {
  RunConfig config = testing::divisible_config("bfloat16");
  config.model.num_layers = 8;
  config.model.moe.num_experts = experts;
  config.model.recompute_granularity = "full";
  config.data.seq_length = 64;
  config.train.eval_iters = 0;
  config.parallel.offload_activations = config.parallel.offloads_on_cpu = offload;
  return config;
}

RunConfig on(RunConfig config, const LaidOut& layout) {
  const ParallelConfig given = config.parallel;
  config = laid_out(std::move(config), layout);
  config.parallel.offload_activations = given.offload_activations;
  config.parallel.offloads_on_cpu = given.offloads_on_cpu;
  return config;
}

// The steps with the inputs on the device, which those with the inputs on the host are compared with.
void expect_same_steps_in_less_memory(int64_t experts, const LaidOut& layout) {
  SCOPED_TRACE(cat(experts, " experts, ", testing::described(layout)));
  const Trajectory kept = run_engine(on(offloading(experts, false), layout), kSteps);
  const Trajectory moved = run_engine(on(offloading(experts), layout), kSteps);
  testing::expect_same_bits(kept, moved);
  EXPECT_LT(moved.arena_high_water, kept.arena_high_water);
  EXPECT_EQ(moved.arena_high_water, moved.planned_arena);
}

TEST(ActivationOffload, ChangesNoBitAndNeedsLessOfTheDevice) {
  for (const int64_t experts : {0, 4}) expect_same_steps_in_less_memory(experts, {});
}

TEST(ActivationOffload, ChangesNoBitInAnyLayout) {
  for (const LaidOut& layout : std::vector<LaidOut>{{"shard=2", kFsdp},
                                                    {"replicate=2,expert=2"},
                                                    {"tensor=2,expert_tensor=1"},
                                                    {"context=2"},
                                                    {"pipeline=2"},
                                                    {"pipeline=2", "auto", 2},
                                                    {"shard=2,pipeline=2", kFsdp}})
    expect_same_steps_in_less_memory(4, layout);
}

// The host's memory that each rank's store reserved, and what it used of it.
struct HostMemory {
  int64_t reserved = 0, used = 0;
};
std::vector<HostMemory> host_memory(const RunConfig& config) {
  std::vector<HostMemory> of(static_cast<size_t>(config.parallel.ranks));
  testing::with_rank_engines(config, [&](Stream&, const Groups& groups, Engine& engine, int rank) {
    engine.step(testing::own_batches(config, groups.layout(), rank, 0), 1, 0);
    const OffloadStore& store = engine.feature<ActivationOffload>()->store();
    of[static_cast<size_t>(rank)] = {store.reserved(), store.high_water()};
  });
  return of;
}

TEST(ActivationOffload, TakesThePlannedMemoryOfTheHost) {
  for (const LaidOut& layout :
       std::vector<LaidOut>{{}, {"pipeline=2"}, {"pipeline=4"}, {"pipeline=2", "auto", 2}, {"context=2,pipeline=2"}}) {
    const RunConfig config = on(offloading(4), layout);
    const Plan plan = make_plan(resolve(config, {}));
    const std::vector<HostMemory> hosts = host_memory(config);
    for (size_t rank = 0; rank < hosts.size(); ++rank) {
      SCOPED_TRACE(cat(testing::described(layout), ", rank ", rank));
      EXPECT_EQ(hosts[rank].reserved, plan.ranks[rank].offload_bytes);
      EXPECT_EQ(hosts[rank].used, plan.ranks[rank].offload_bytes);
    }
  }
}

// 8 layers: on one rank all but the last one's inputs wait. A stage of a pipeline of 2 has 4; the first has 2
// micro-batches in flight.
TEST(ActivationOffload, CountsTheInputsThatWait) {
  const RunConfig one = on(offloading(0), {}), two = on(offloading(0), {"pipeline=2"});
  constexpr int64_t kTokens = 64, kBytes = kTokens * 32 * 2;
  EXPECT_EQ(OffloadedInputs(one, 0, 8, kTokens).bytes, kBytes);
  EXPECT_EQ(OffloadedInputs(one, 0, 8, kTokens).most, 7);
  EXPECT_EQ(OffloadedInputs(two, 0, 8, kTokens).most, 2 * 4);
  EXPECT_EQ(OffloadedInputs(two, 0, 1, kTokens).most, 4);
  EXPECT_EQ(OffloadedInputs(two, 1, 8, kTokens).most, 3);
}

// Layers that are not trained need no backward, so that their inputs do not return.
TEST(ActivationOffload, LeavesOutTheBackwardOfFrozenLayers) {
  RunConfig config = offloading(0);
  config.model.freeze = "embedding*,layers.0.*,layers.1.*,layers.2.*";
  config.model.untie_embeddings_and_output_weights = true;
  RunConfig kept = config;
  kept.parallel.offload_activations = false;
  const Trajectory moved = run_engine(config, kSteps);
  testing::expect_same_bits(run_engine(kept, kSteps), moved);
  EXPECT_EQ(moved.arena_high_water, moved.planned_arena);
}

// The batch grows from 2 micro-batches to 8, for which the host's memory is reserved anew.
TEST(ActivationOffload, IsReservedAnewWhenTheBatchGrows) {
  RunConfig config = on(offloading(0), {"pipeline=4"});
  testing::with_rank_engines(config, [&](Stream&, const Groups& groups, Engine& engine, int rank) {
    std::vector<Batch> batches = testing::own_batches(config, groups.layout(), rank, 0);
    const std::vector<Batch> all = batches;
    batches.resize(2);
    engine.step(batches, 1, 0);
    const int64_t before = engine.feature<ActivationOffload>()->store().reserved();
    engine.step(all, 2, 1);
    if (rank > 0) return;
    EXPECT_EQ(engine.feature<ActivationOffload>()->store().reserved(), 2 * before);
  });
}

TEST(ActivationOffload, IsOffWithoutFullRecomputationAndOnACpu) {
  RunConfig config = offloading(0);
  EXPECT_TRUE(ActivationOffload::applies(config));
  config.model.recompute_granularity = "selective";
  EXPECT_FALSE(ActivationOffload::applies(config));
  config = offloading(0);
  config.parallel.offloads_on_cpu = false;
  EXPECT_FALSE(ActivationOffload::applies(config));
  config.parallel.device = "cuda";
  EXPECT_TRUE(ActivationOffload::applies(config));
}

}  // namespace
}  // namespace witan
