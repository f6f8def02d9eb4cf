// A run whose global batch grows (rampup_batch_size): each step equals one of a run with this batch size, is the same
// in every layout, and fits into the planned memory.
#include "witan/data/batches/batch_ramp.h"

#include <gtest/gtest.h>

#include "train/step/layouts/one_rank.h"
#include "train/step/ramped_batches.h"

namespace witan {
namespace {

using testing::kFsdp;
using testing::laid_out;
using testing::LaidOut;
using testing::ramped_batches;
using testing::run_engine;

// The model has router losses, dropped tokens, a loss of the global batch's load, and spike detection.
RunConfig ramped(const std::string& ramp) {
  RunConfig config = testing::divisible_config();
  config.model.vocab_size = 64;
  config.model.moe.moe_z_loss_coeff = 1e-3;
  config.optimizer.skip_step_sigma = 6;
  config.train.rampup_batch_size = ramp;
  return config;
}

constexpr int64_t kRampSteps = 5;
const std::string kRamp = "2,2,12";  // up to 8: steps of 2, 2, 4, 6, 8 samples

TEST(BatchRampSteps, EveryLayoutTakesTheStepsOfOneRank) {
  const RunConfig config = laid_out(ramped(kRamp), {});
  std::vector<int64_t> sizes;
  for (int64_t step = 0; step < kRampSteps; ++step) {
    const BatchRamp ramp = config.batch_ramp();
    sizes.push_back(ramp.size(ramp.consumed_by(step)));
  }
  ASSERT_EQ(sizes, (std::vector<int64_t>{2, 2, 4, 6, 8}));
  testing::expect_steps_of_one_rank(config,
                                    {{"replicate=2,expert=2"},
                                     {"shard=2"},
                                     {"shard=2", "optim_grads"},
                                     {"shard=2", kFsdp},
                                     {"context=2"},
                                     {"tensor=2,expert_tensor=1"},
                                     {"pipeline=2"},
                                     {"pipeline=4"},
                                     {"pipeline=2", "auto", 2},
                                     {"shard=2,pipeline=2", kFsdp}},
                                    kRampSteps, ramped_batches);
}

// Equal bits in deterministic mode; every rank has a power of two of micro-batches.
TEST(BatchRampSteps, DeterministicLayoutsHaveTheSameBits) {
  RunConfig config = testing::divisible_config("float32");
  config.train.rampup_batch_size = "4,4,8";
  config.parallel.deterministic = true;
  testing::expect_bits_of_one_rank(config, {{"replicate=2,expert=2"}, {"shard=2", kFsdp}, {"pipeline=2"}, {"shard=4"}},
                                   4, ramped_batches);
}

TEST(BatchRampSteps, FitIntoThePlannedMemory) {
  for (const LaidOut& layout :
       std::vector<LaidOut>{{}, {"pipeline=4"}, {"shard=2", kFsdp}, {"pipeline=2", "auto", 2}}) {
    const RunConfig config = laid_out(ramped(kRamp), layout);
    RunConfig constant = config;
    constant.train.rampup_batch_size.clear();
    const Plan plan = make_plan(resolve(config, {}));
    EXPECT_EQ(run_engine(config, kRampSteps + 2, ramped_batches).arena_high_water, plan.arena_bytes())
        << testing::described(layout);
    EXPECT_LE(make_plan(resolve(constant, {})).arena_bytes(), plan.arena_bytes()) << "for steps of the full size";
  }
}

// Each step is made by its own engine, which always had this global batch size, from the state that the previous engine
// left.
TEST(BatchRampSteps, EqualStepsOfRunsWithTheirBatchSizes) {
  RunConfig config = ramped(kRamp);
  config.parallel = {1, 1, 1};
  config.optimizer.skip_step_sigma = 0;  // its history would not be passed between engines
  testing::drop(config);
  std::vector<StepResult> expected;
  testing::with_rank_engines(config, [&](Stream&, const Groups& groups, Engine& engine, int rank) {
    for (int64_t step = 0; step < kRampSteps; ++step)
      expected.push_back(engine.step(ramped_batches(config, groups.layout(), rank, step), step + 1, step));
  });
  std::vector<std::vector<std::byte>> state;  // tensor by tensor
  for (int64_t step = 0; step < kRampSteps; ++step) {
    RunConfig constant = config;
    constant.train.rampup_batch_size.clear();
    constant.train.global_batch_size = config.batch_ramp().size(config.batch_ramp().consumed_by(step));
    testing::with_rank_engines(constant, [&](Stream& stream, const Groups& groups, Engine& engine, int rank) {
      const auto bytes_of = [](const Tensor& tensor) {
        return static_cast<size_t>(tensor.elements() * static_cast<int64_t>(size_of(tensor.dtype())));
      };
      const std::vector<StateTensor> tensors = engine.state();
      for (size_t i = 0; i < state.size(); ++i) stream.write(tensors[i].local, state[i].data());
      const StepResult result = engine.step(ramped_batches(config, groups.layout(), rank, step), step + 1, step);
      const StepResult& ramped = expected[static_cast<size_t>(step)];
      EXPECT_EQ(result.loss, ramped.loss) << "step " << step + 1;
      EXPECT_EQ(result.gradient_norm, ramped.gradient_norm) << "step " << step + 1;
      EXPECT_EQ(result.router.model("load_balancing_loss"), ramped.router.model("load_balancing_loss"));
      EXPECT_EQ(ramped.samples, constant.train.global_batch_size);
      state.clear();
      for (const StateTensor& tensor : engine.state()) {
        std::vector<std::byte>& bytes = state.emplace_back(bytes_of(tensor.local));
        stream.read(bytes.data(), tensor.local);
      }
    });
  }
}

}  // namespace
}  // namespace witan
