// Inputs of recomputed blocks that wait for their backward in pinned memory of the host, in eager and in recorded
// steps.
#include "witan/train/step/features/activation_offload.h"

#include "cuda/runs/engine_support.h"

namespace witan::testing {
namespace {

class ActivationOffloadOnGpus : public EngineOnGpus {};

RunConfig offloading(const std::string& dtype) {
  RunConfig config = gpu_config(dtype);
  config.model.num_layers = 6;
  config.model.recompute_granularity = "full";
  config.data.seq_length = 512;
  config.parallel.deterministic = true;
  config.parallel.offload_activations = true;
  return config;
}

// A captured step copies to the same places of the host in each replay.
TEST_F(ActivationOffloadOnGpus, ChangesNoBitOfEagerAndRecordedSteps) {
  for (const char* dtype : {"bfloat16", "float64"})
    for (const bool recorded : {true, false}) {
      SCOPED_TRACE(cat(dtype, recorded ? ", recorded" : ", eager"));
      RunConfig config = offloading(dtype), kept = config;
      config.parallel.cuda_graph = kept.parallel.cuda_graph = recorded;
      kept.parallel.offload_activations = false;
      const Trajectory moved = run_engine(config, 5), stayed = run_engine(kept, 5);
      expect_same_bits(stayed, moved);
      EXPECT_LT(moved.arena_high_water, stayed.arena_high_water);
      EXPECT_EQ(moved.arena_high_water, moved.planned_arena);
    }
}

TEST_F(ActivationOffloadOnGpus, LeavesOutTheBackwardOfFrozenLayers) {
  RunConfig config = offloading("bfloat16");
  config.model.freeze = "embedding*,layers.0.*,layers.1.*";
  config.model.untie_embeddings_and_output_weights = true;
  RunConfig kept = config;
  kept.parallel.offload_activations = false;
  expect_same_bits(run_engine(kept, 4), run_engine(config, 4));
}

TEST_F(ActivationOffloadOnGpus, PinsThePlannedMemory) {
  const RunConfig config = offloading("bfloat16");
  const Plan plan = make_plan(resolve(config, {}));
  with_rank_engines(config, [&](Stream&, const Groups& groups, Engine& engine, int rank) {
    for (int64_t step = 0; step < 3; ++step)
      engine.step(own_batches(config, groups.layout(), rank, step), step + 1, step);
    const OffloadStore& store = engine.feature<ActivationOffload>()->store();
    EXPECT_EQ(store.reserved(), plan.ranks[0].offload_bytes);
    EXPECT_EQ(store.high_water(), store.reserved());
  });
}

}  // namespace
}  // namespace witan::testing
