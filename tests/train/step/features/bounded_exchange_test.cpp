// moe_exchange_factor: dispatched rows have a fixed capacity per pair of ranks. A step that overflows is rerun with
// exact counts, which does not change its result.
#include <gtest/gtest.h>

#include <algorithm>

#include "planner/real_run.h"
#include "support/long_form.h"
#include "train/step/features/uneven_loads.h"
#include "train/step/layouts/laid_out.h"
#include "train/step/process_steps.h"
#include "witan/train/step/features/bounded_experts.h"

namespace witan {
namespace {

using testing::expect_same_bits_of_steps;
using testing::laid_out;
using testing::LaidOut;
using testing::run_engine;
using testing::Trajectory;
using testing::with_uneven_loads;

const int64_t kExchangeSteps = testing::steps_of(4, 20);

// More than any rank can send another, so nothing overflows.
constexpr double kRoomForAll = 100;

enum class Overflows : uint8_t { never, in_some_step };

void expect_the_bits_of_rows_as_they_come(RunConfig config, double factor, Overflows overflows) {
  SCOPED_TRACE(cat("parts of ", factor));
  config.model.moe.moe_exchange_factor = factor;
  const Trajectory in_parts = run_engine(config, kExchangeSteps);
  EXPECT_EQ(std::ranges::max(in_parts.exchange_fills) > 1, overflows == Overflows::in_some_step);
  config.model.moe.moe_exchange_factor = 0;
  const Trajectory as_they_come = run_engine(config, kExchangeSteps);
  EXPECT_EQ(std::ranges::max(as_they_come.exchange_fills), 0);
  expect_same_bits_of_steps(as_they_come, in_parts);
}

void expect_the_bits_of_rows_as_they_come(const RunConfig& config) {
  expect_the_bits_of_rows_as_they_come(config, kRoomForAll, Overflows::never);
  expect_the_bits_of_rows_as_they_come(config, 1, Overflows::in_some_step);
}

class BoundedExchange : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Dtypes, BoundedExchange, ::testing::Values("float32", "bfloat16", "float16", "float64"));

TEST_P(BoundedExchange, MatchesExactCountsBitwise) {
  for (const LaidOut& layout : std::vector<LaidOut>{{"replicate=2,expert=2"},
                                                    {"replicate=4,expert=2"},
                                                    {"replicate=4,expert=4"},
                                                    {"shard=2,expert=2", "optim_grads_params"},
                                                    {"shard=4,expert=2", "optim_grads_params"},
                                                    {"replicate=2,pipeline=2,expert=2"}}) {
    SCOPED_TRACE(described(layout));
    expect_the_bits_of_rows_as_they_come(laid_out(with_uneven_loads(GetParam()), layout));
  }
}

TEST(BoundedExchanges, MatchExactCountsBitwiseForModelVariants) {
  const auto check = [](const char* what, const std::function<void(RunConfig&)>& change) {
    SCOPED_TRACE(what);
    RunConfig config = laid_out(with_uneven_loads("float32"), {"replicate=2,expert=2"});
    change(config);
    expect_the_bits_of_rows_as_they_come(config);
  };
  check("not deterministic", [](RunConfig& c) { c.parallel.deterministic = false; });
  check("capacity", [](RunConfig& c) { c.model.moe.moe_expert_capacity_factor = 2.5; });
  check("one micro-batch", [](RunConfig& c) { c.train.micro_batch_size = 8; });
  check("one after the other", [](RunConfig& c) { c.model.moe.moe_grouped_gemm = false; });
  check("dropout", [](RunConfig& c) { testing::drop(c); });
  check("latent experts", [](RunConfig& c) { c.model.moe.moe_latent_size = 6; });
  check("copies of experts", [](RunConfig& c) { c.model.moe.moe_replicated_experts = 1; });
  check("a bias that balances, and losses", testing::balance_by_bias);
  check("shared experts meanwhile", [](RunConfig& c) {
    c.model.moe.moe_shared_expert_intermediate_size = 12;
    c.model.moe.moe_shared_expert_overlap = true;
  });
  for (const char* granularity : {"selective", "full"})
    check(granularity, [&](RunConfig& c) { c.model.recompute_granularity = granularity; });
  for (const int64_t topk : {3, 4})
    check("more experts of a token", [&](RunConfig& c) { c.model.moe.moe_router_topk = topk; });
}

// All experts have equally many tokens, so send buffers for a balanced load are full.
TEST(BoundedExchanges, HoldABalancedLoad) {
  RunConfig config = laid_out(with_uneven_loads("float32"), {"replicate=2,expert=2"});
  config.model.moe.moe_router_topk = 8;
  expect_the_bits_of_rows_as_they_come(config, 1, Overflows::never);
}

// All tokens of all ranks go to one expert; other ranks receive nothing.
TEST(BoundedExchanges, OverflowIfAllTokensGoToOneExpert) {
  RunConfig config = laid_out(with_uneven_loads("float32"), {"replicate=4,expert=4"});
  config.model.vocab_size = 1;
  config.model.moe.moe_router_topk = 1;
  config.model.moe.moe_router_pre_softmax = true;
  expect_the_bits_of_rows_as_they_come(config);
  config.model.moe.moe_exchange_factor = 1;
  EXPECT_EQ(run_engine(config, 1).exchange_fills.front(), 4) << "four times the capacity for one rank";
}

// Only rank 2 overflows: rank 0 reruns the step too, although nothing overflows within its expert-parallel group.
TEST(BoundedExchanges, OverflowOnOneRankRerunsOnAll) {
  RunConfig config = laid_out(testing::small_config(), {"replicate=4,expert=2"});
  config.parallel.deterministic = true;
  config.model.moe.moe_router_topk = 1;
  config.model.moe.moe_router_pre_softmax = true;
  const auto batches = [](int uneven_rank) {
    return [uneven_rank](const RunConfig& of, const Layout& layout, int rank, int64_t step) {
      std::vector<Batch> own = testing::own_batches(of, layout, rank, step);
      if (rank == uneven_rank)  // the same token repeated, always for the same expert
        for (Batch& batch : own) std::ranges::fill(batch.tokens, 5);
      return own;
    };
  };
  const Trajectory as_they_come = run_engine(config, 3, batches(2));
  config.model.moe.moe_exchange_factor = 1.9;
  const Trajectory in_parts = run_engine(config, 3, batches(2));
  EXPECT_EQ(in_parts.exchange_fills.front(), 24 / 23.0) << "all 24 tokens, and 1.9 times 12 rows, rounded up";
  expect_same_bits_of_steps(as_they_come, in_parts);
  EXPECT_EQ(std::ranges::max(run_engine(config, 3, batches(-1)).exchange_fills), 0) << "otherwise none overflows";
}

TEST(BoundedExchanges, MatchExactCountsBitwiseWithTensorParallelism) {
  RunConfig config = with_uneven_loads("float64");
  config.parallel.deterministic = false;
  expect_the_bits_of_rows_as_they_come(laid_out(config, {"replicate=2,tensor=2,expert=2,expert_tensor=2"}));
}

// Both receive buffers and send buffers are bounded: a step may overflow either.
TEST(BoundedExchanges, MatchExactCountsBitwiseWithBoundedReceiveBuffers) {
  for (const double pool : {1.0, 1.5, 2.0})
    for (const double exchange : {1.0, kRoomForAll}) {
      SCOPED_TRACE(cat("pools of ", pool, ", parts of ", exchange));
      RunConfig config = laid_out(with_uneven_loads("float32"), {"replicate=4,expert=4"});
      config.model.moe.moe_router_topk = 4;
      const Trajectory unbounded = run_engine(config, kExchangeSteps);
      config.model.moe.moe_pool_factor = pool;
      config.model.moe.moe_exchange_factor = exchange;
      const Trajectory bounded = run_engine(config, kExchangeSteps);
      EXPECT_TRUE(exchange > 1 || std::ranges::max(bounded.passes) > 1 || std::ranges::max(bounded.exchange_fills) > 1);
      expect_same_bits_of_steps(unbounded, bounded);
    }
}

TEST(BoundedExchanges, MatchExactCountsBitwiseBetweenProcesses) {
  testing::expect_bits_in_parts(laid_out(with_uneven_loads("float32"), {"replicate=2,expert=2"}), kExchangeSteps,
                                kRoomForAll);
}

TEST(BoundedExchanges, AreDeterministicOnAnyNumberOfThreads) {
  RunConfig config = laid_out(with_uneven_loads("float32"), {"replicate=2,expert=2"});
  config.model.moe.moe_exchange_factor = 1.1;
  testing::expect_repeats(config, kExchangeSteps);
}

// The plan includes the memory of overflowing steps and the bytes of fixed capacities.
TEST(BoundedExchanges, MatchThePlan) {
  for (const double pool : {0.0, 1.0})
    for (const char* granularity : {"none", "selective", "full"})
      for (const LaidOut& layout : std::vector<LaidOut>{
               {"replicate=2,expert=2"}, {"replicate=4,expert=2"}, {"shard=2,expert=2", "optim_grads_params"}}) {
        RunConfig config = laid_out(with_uneven_loads("float32"), layout);
        config.model.recompute_granularity = granularity;
        config.model.moe.moe_exchange_factor = 1;
        config.model.moe.moe_pool_factor = pool;
        SCOPED_TRACE(cat(described(layout), ", recompute ", granularity, ", pools of ", pool));
        testing::expect_planned_memory(config);
      }
}

TEST(BoundedExchanges, SendMultiplesOfTheBalancedLoad) {
  RunConfig config = laid_out(with_uneven_loads("float32"), {"replicate=2,expert=2"});
  config.model.moe.moe_exchange_factor = 1.5;
  const Plan plan = make_plan(resolve(config, {}));
  const auto& sent = plan.ranks.front().sent.at("expert");
  EXPECT_EQ(sent.count("all_to_all"), 0u) << "no exchange reads counts on the host";
  const double layers = 2, micro_batches = 4, T = 24, K = 2, D = 32;
  // The other rank gets half the rows, and half of that again. There are four exchanges of rows and two of weights.
  const double parts = layers * micro_batches * 1.5 * T * K / 2 * (4 * D + 2) * 4;
  const double counts = layers * micro_batches * 4 * 8;  // for the other rank's four experts
  EXPECT_EQ(sent.at("all_to_all_equal"), parts + counts);
}

// The steps among `steps` that tried the fixed capacity, if the steps named by overflows(step) overflow.
std::vector<int64_t> tried_steps(int64_t steps, bool (*overflows)(int64_t step)) {
  ExchangeBackoff backoff;
  std::vector<int64_t> tried;
  for (int64_t step = 0; step < steps; ++step) {
    if (backoff.waits()) {
      backoff.waited();
      continue;
    }
    tried.push_back(step);
    backoff.tried(overflows(step));
  }
  return tried;
}

TEST(ExchangeBackoff, TriesEveryStepWithoutOverflows) {
  EXPECT_EQ(tried_steps(4, [](int64_t) { return false; }), (std::vector<int64_t>{0, 1, 2, 3}));
}

TEST(ExchangeBackoff, DoublesTheWaitAfterEachOverflow) {
  EXPECT_EQ(tried_steps(20, [](int64_t) { return true; }), (std::vector<int64_t>{0, 1, 3, 6, 11}));
  // The tenth try follows nine tries and waits of 0, 1, 2 … 128 steps; afterwards every 257th step is a try.
  const std::vector<int64_t> tried = tried_steps(1000, [](int64_t) { return true; });
  ASSERT_EQ(tried.size(), 12u);
  EXPECT_EQ(tried[9], 264);
  EXPECT_EQ(tried[10], 264 + 257);
  EXPECT_EQ(tried[11], 264 + 2 * 257);
}

TEST(ExchangeBackoff, TriesAgainSoonIfOverflowsAreRare) {
  EXPECT_EQ(tried_steps(8, [](int64_t step) { return step == 2; }).size(), 8u);
  EXPECT_EQ(tried_steps(10, [](int64_t step) { return step == 0 || step == 1 || step == 6; }),
            (std::vector<int64_t>{0, 1, 3, 4, 5, 6, 7, 8, 9}))
      << "a few successful tries reset the wait";
}

}  // namespace
}  // namespace witan
