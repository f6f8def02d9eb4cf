// moe_pool_factor: a step whose experts have no room for their rows is made again in waves, and nobody can tell from
// its result.
#include <gtest/gtest.h>

#include <algorithm>

#include "planner/real_run.h"
#include "support/long_form.h"
#include "train/run/run_support.h"
#include "train/step/laid_out.h"

namespace witan {
namespace {

using testing::laid_out;
using testing::LaidOut;
using testing::run_engine;
using testing::small_config;
using testing::Trajectory;

const int64_t kSteps = testing::steps_of(3, 20);

// A router that nothing balances, whose inputs are few different tokens: loads are uneven.
RunConfig skewed(const char* dtype) {
  RunConfig config = small_config();
  config.model.dtype = dtype;
  config.model.vocab_size = 7;
  config.model.moe.moe_router_load_balancing_type = "none";
  config.model.moe.moe_aux_loss_coeff = 0;
  config.parallel.deterministic = true;
  return config;
}

void expect_same_bits(const Trajectory& a, const Trajectory& b) {
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.norms, b.norms);
  EXPECT_EQ(a.balances, b.balances);
  EXPECT_EQ(a.zs, b.zs);
  EXPECT_EQ(a.loads, b.loads);
  ASSERT_EQ(a.weights.size(), b.weights.size());
  for (size_t i = 0; i < a.weights.size(); ++i) EXPECT_TRUE(a.weights[i] == b.weights[i]) << "parameter " << i;
}

// Of a config in whose layout some step overflows.
void expect_the_bits_of_unbounded_pools(RunConfig config, double factor) {
  config.model.moe.moe_pool_factor = factor;
  const Trajectory bounded = run_engine(config, kSteps);
  EXPECT_GT(std::ranges::max(bounded.waves), 1) << "no step overflowed: nothing is shown";
  config.model.moe.moe_pool_factor = 0;
  expect_same_bits(run_engine(config, kSteps), bounded);
}

class BoundedPools : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Dtypes, BoundedPools, ::testing::Values("float32", "bfloat16", "float64"));

TEST_P(BoundedPools, GiveTheBitsOfUnboundedOnes) {
  for (const auto& [layout, factor] :
       std::vector<std::pair<LaidOut, double>>{{{"replicate=2,expert=2"}, 1.0},
                                               {{"replicate=2,expert=2"}, 1.25},
                                               {{"replicate=4,expert=2"}, 1.0},
                                               {{"replicate=4,expert=4"}, 1.0},
                                               {{"replicate=2,expert=2", "optim_grads_params"}, 1.0},
                                               {{"shard=4,expert=2", "optim_grads_params"}, 1.0},
                                               {{"pipeline=2,replicate=2,expert=2"}, 1.0}}) {
    SCOPED_TRACE(cat(described(layout), ", pools of ", factor));
    expect_the_bits_of_unbounded_pools(laid_out(skewed(GetParam()), layout), factor);
  }
}

TEST_P(BoundedPools, GiveTheBitsOfUnboundedOnesWhateverExpertsDo) {
  const auto check = [](const char* what, const std::function<void(RunConfig&)>& change) {
    SCOPED_TRACE(what);
    RunConfig config = laid_out(skewed(GetParam()), {"replicate=2,expert=2"});
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
  check("a bias that balances, and losses", [](RunConfig& c) {
    c.model.moe.moe_router_score_function = "sigmoid";
    c.model.moe.moe_router_enable_expert_bias = true;
    c.model.moe.moe_router_load_balancing_type = "aux_loss";
    c.model.moe.moe_aux_loss_coeff = c.model.moe.moe_z_loss_coeff = 1e-3;
  });
  for (const char* granularity : {"selective", "full"})
    check(granularity, [&](RunConfig& c) { c.model.recompute_granularity = granularity; });
}

TEST(ExpertPools, OfMatricesThatAreDividedGiveTheBitsOfUnboundedOnes) {
  RunConfig config = skewed("float64");
  config.parallel.deterministic = false;
  config = laid_out(config, {"replicate=2,tensor=2,expert=2,expert_tensor=2"});
  expect_the_bits_of_unbounded_pools(config, 1);
}

// Where all tokens of all ranks go to one expert, its rows are in the pool together.
TEST(ExpertPools, HoldWhatOneExpertMayBeSent) {
  ThreadPool pool(1);
  Stream stream({Device::Kind::cpu}, Arena::reserve(1 << 16), pool);
  const ExpertPools pools(stream, 1);
  EXPECT_EQ(pools.rows(24, 2, 2, 24), 2 * 24);
  EXPECT_EQ(pools.rows(24, 2, 8, 24), 8 * 24);
  EXPECT_EQ(pools.rows(24, 2, 8, 3), 2 * 24) << "an expert takes no more than its capacity";
  EXPECT_EQ(ExpertPools(stream, 1.25).rows(5, 2, 2, 5), 13) << "rounded up";
}

// Planned are the bytes of a step that overflows.
TEST(ExpertPools, TakeWhatIsPlanned) {
  for (const char* granularity : {"none", "selective", "full"})
    for (const LaidOut& layout : std::vector<LaidOut>{
             {"replicate=2,expert=2"}, {"replicate=4,expert=2"}, {"replicate=2,expert=2", "optim_grads_params"}}) {
      RunConfig config = laid_out(skewed("float32"), layout);
      config.model.recompute_granularity = granularity;
      config.model.moe.moe_pool_factor = 1;
      config.train.sample_tokens = 0;
      SCOPED_TRACE(cat(described(layout), ", recompute ", granularity));
      testing::expect_kept(config, {.prompt_tokens = 0});
    }
}

}  // namespace
}  // namespace witan
