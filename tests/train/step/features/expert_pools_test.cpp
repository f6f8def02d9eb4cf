// moe_pool_factor: a step whose receive buffers are too small is rerun in several passes, which does not change its
// result.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>

#include "planner/real_run.h"
#include "support/long_form.h"
#include "support/processes.h"
#include "train/step/features/uneven_loads.h"
#include "train/step/layouts/laid_out.h"
#include "train/step/run_support.h"

namespace witan {
namespace {

using testing::expect_same_bits_of_steps;
using testing::laid_out;
using testing::LaidOut;
using testing::own_batches;
using testing::run_engine;
using testing::Trajectory;
using testing::with_uneven_loads;

const int64_t kSteps = testing::steps_of(3, 20);

// The config must overflow in some step.
void expect_the_bits_of_unbounded_pools(RunConfig config, double factor) {
  config.model.moe.moe_pool_factor = factor;
  const Trajectory bounded = run_engine(config, kSteps);
  EXPECT_GT(std::ranges::max(bounded.passes), 1) << "no step overflowed, so the test proves nothing";
  config.model.moe.moe_pool_factor = 0;
  expect_same_bits_of_steps(run_engine(config, kSteps), bounded);
}

class BoundedPools : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Dtypes, BoundedPools, ::testing::Values("float32", "bfloat16", "float64"));

TEST_P(BoundedPools, MatchUnboundedOnesBitwise) {
  for (const auto& [layout, factor] :
       std::vector<std::pair<LaidOut, double>>{{{"replicate=2,expert=2"}, 1.0},
                                               {{"replicate=2,expert=2"}, 1.25},
                                               {{"replicate=4,expert=2"}, 1.0},
                                               {{"replicate=4,expert=4"}, 1.0},
                                               {{"shard=2,expert=2", "optim_grads_params"}, 1.0},
                                               {{"shard=4,expert=2", "optim_grads_params"}, 1.0},
                                               {{"replicate=2,pipeline=2,expert=2"}, 1.0}}) {
    SCOPED_TRACE(cat(described(layout), ", pools of ", factor));
    RunConfig config = laid_out(with_uneven_loads(GetParam()), layout);
    if (layout.mesh.ends_with("expert=4")) config.model.moe.moe_router_topk = 4;  // one expert fits the balanced load
    expect_the_bits_of_unbounded_pools(config, factor);
  }
}

TEST(ExpertPools, MatchUnboundedOnesBitwiseForModelVariants) {
  const auto check = [](const char* what, const std::function<void(RunConfig&)>& change) {
    SCOPED_TRACE(what);
    RunConfig config = laid_out(with_uneven_loads("float32"), {"replicate=2,expert=2"});
    change(config);
    expect_the_bits_of_unbounded_pools(config, 1);
  };
  check("not deterministic", [](RunConfig& c) { c.parallel.deterministic = false; });
  check("capacity", [](RunConfig& c) { c.model.moe.moe_expert_capacity_factor = 2.5; });
  check("shared experts", [](RunConfig& c) { c.model.moe.moe_shared_expert_intermediate_size = 12; });
  check("one micro-batch", [](RunConfig& c) { c.train.micro_batch_size = 8; });
  check("three experts of a token", [](RunConfig& c) { c.model.moe.moe_router_topk = 3; });
  check("one after the other", [](RunConfig& c) { c.model.moe.moe_grouped_gemm = false; });
  check("dropout", [](RunConfig& c) { testing::drop(c); });
  check("a bias that balances, and losses", testing::balance_by_bias);
  for (const char* granularity : {"selective", "full"})
    check(granularity, [&](RunConfig& c) { c.model.recompute_granularity = granularity; });
}

TEST(ExpertPools, MatchUnboundedOnesBitwiseWithTensorParallelism) {
  RunConfig config = with_uneven_loads("float64");
  config.parallel.deterministic = false;
  config = laid_out(config, {"replicate=2,tensor=2,expert=2,expert_tensor=2"});
  expect_the_bits_of_unbounded_pools(config, 1);
}

// The bits of a process's steps: losses and norms, which depend on every weight.
std::string steps_of_process(const RunConfig& config, testing::ProcessRank& process) {
  const Layout layout(config.parallel, static_cast<int>(config.parallel.ranks), config.model.moe.num_experts);
  ThreadPool pool(1);
  Stream stream({Device::Kind::cpu}, Arena::reserve(int64_t{1} << 28), pool);
  const Groups groups = make_groups(process.world, layout, process.rank);
  Engine engine(stream, groups, resolve(config, {}));
  std::string said;
  int64_t passes = 0;
  for (int64_t step = 0; step < kSteps; ++step) {
    const StepResult result = engine.step(own_batches(config, layout, process.rank, step), step + 1, step);
    said += cat(std::bit_cast<uint64_t>(result.loss), " ", std::bit_cast<uint64_t>(result.gradient_norm), "\n");
    passes = std::max(passes, result.passes);
  }
  EXPECT_EQ(passes > 1, config.model.moe.moe_pool_factor > 0);
  return said;
}

TEST(ExpertPools, MatchUnboundedOnesBitwiseBetweenProcesses) {
  RunConfig config = laid_out(with_uneven_loads("float32"), {"replicate=2,expert=2"});
  config.parallel.ranks_per_process = 1;
  const auto run = [&](double factor) {
    config.model.moe.moe_pool_factor = factor;
    return testing::on_processes(2, [&](testing::ProcessRank& rank) { return steps_of_process(config, rank); });
  };
  const auto unbounded = run(0), bounded = run(1);
  testing::expect_whole(unbounded);
  testing::expect_whole(bounded);
  for (const size_t rank : {0, 1}) EXPECT_EQ(bounded[rank].said, unbounded[rank].said);
}

// If all tokens of all ranks go to one expert, one pass holds all of its rows.
TEST(ExpertPools, HoldTheMostThatOneExpertCanReceive) {
  ThreadPool pool(1);
  Stream stream({Device::Kind::cpu}, Arena::reserve(1 << 16), pool);
  const ReceiveBuffers pools(stream, 1);
  EXPECT_EQ(pools.rows(24, 2, 2, 24), 2 * 24);
  EXPECT_EQ(pools.rows(24, 2, 8, 24), 8 * 24);
  EXPECT_EQ(pools.rows(24, 2, 8, 3), 2 * 24) << "limited by the expert's capacity";
  EXPECT_EQ(ReceiveBuffers(stream, 1.25).rows(5, 2, 2, 5), 13) << "rounded up";
  EXPECT_EQ(ReceiveBuffers(stream, 1e300).rows(24, 2, 4, 24), 4 * 24 * 2) << "the largest possible load";
}

// The plan includes the bytes of overflowing steps with any number of passes.
TEST(ExpertPools, MatchThePlan) {
  for (const char* granularity : {"none", "selective", "full"})
    for (const LaidOut& layout : std::vector<LaidOut>{
             {"replicate=2,expert=2"}, {"replicate=4,expert=2"}, {"shard=2,expert=2", "optim_grads_params"}}) {
      RunConfig config = laid_out(with_uneven_loads("float32"), layout);
      config.model.recompute_granularity = granularity;
      config.model.moe.moe_pool_factor = 1;
      SCOPED_TRACE(cat(described(layout), ", recompute ", granularity));
      testing::expect_planned_memory(config);
    }
}

}  // namespace
}  // namespace witan
