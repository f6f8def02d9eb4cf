// Runs on GPUs whose global batch grows: every size of a batch is a recorded step of its own.
#include <gtest/gtest.h>

#include "cuda/runs/engine_support.h"
#include "train/step/ramped_batches.h"

namespace witan::testing {
namespace {

class BatchRampOnGpus : public EngineOnGpus {};

constexpr int64_t kRampedSteps = 11;

// Each size lasts for three steps at least: an eager one, one that is recorded, and a replay.
RunConfig ramped_on_gpu(const std::string& dtype) {
  RunConfig config = gpu_config(dtype);
  config.model.moe.moe_expert_capacity_factor = 1.0;
  config.train.rampup_batch_size = "4,4,40";
  config.train.global_batch_size = 12;
  config.train.train_iters = 20;
  return config;
}

std::vector<int64_t> sizes_of_steps(const RunConfig& config) {
  const BatchRamp ramp = config.batch_ramp();
  std::vector<int64_t> sizes;
  for (int64_t step = 0; step < kRampedSteps; ++step) sizes.push_back(ramp.size(ramp.consumed_by(step)));
  return sizes;
}

TEST_F(BatchRampOnGpus, TrainAsOnTheCpuInTheMemoryThatIsPlanned) {
  const RunConfig config = ramped_on_gpu("float64");
  ASSERT_EQ(sizes_of_steps(config), (std::vector<int64_t>{4, 4, 4, 4, 4, 8, 8, 8, 12, 12, 12}));
  RunConfig host = config;
  host.parallel.device = "cpu";
  const Trajectory gpu = run_engine(config, kRampedSteps, ramped_batches);
  const Trajectory cpu = run_engine(host, kRampedSteps, ramped_batches);
  expect_near(gpu.losses, cpu.losses, 1e-9);
  expect_near(gpu.norms, cpu.norms, 1e-8);
  expect_near(gpu.dropped, cpu.dropped, 1e-12);
  expect_near(gpu.balances, cpu.balances, 1e-9);
  EXPECT_EQ(gpu.arena_high_water, make_plan(resolve(config, {})).arena_bytes());
}

TEST_F(BatchRampOnGpus, RecordedStepsOfEverySizeHaveTheBitsOfEagerOnes) {
  for (const int ranks : {1, 2}) {
    if (ranks > cuda::devices()) continue;
    RunConfig recorded = ramped_on_gpu("bfloat16");
    recorded.parallel.ranks = recorded.parallel.expert_model_parallel_size = ranks;
    recorded.parallel.deterministic = true;
    recorded.train.rampup_batch_size = "4,4,12";  // every rank has a power of two of micro-batches
    recorded.train.global_batch_size = 8;
    RunConfig eager = recorded;
    eager.parallel.cuda_graph = false;
    expect_same_bits(run_engine(recorded, kRampedSteps, ramped_batches),
                     run_engine(eager, kRampedSteps, ramped_batches));
  }
}

}  // namespace
}  // namespace witan::testing
