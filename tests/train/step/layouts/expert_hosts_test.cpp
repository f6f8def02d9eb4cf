// hierarchical_expert_parallel_size: steps equal those of one rank, each token is sent to each host once, and memory is
// as planned.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "planner/real_run.h"
#include "support/long_form.h"
#include "train/step/features/uneven_loads.h"
#include "train/step/layouts/laid_out.h"
#include "train/step/process_steps.h"

namespace witan {
namespace {

using testing::expect_same_bits_of_steps;
using testing::kFsdp;
using testing::laid_out;
using testing::LaidOut;
using testing::run_engine;
using testing::Trajectory;
using testing::with_uneven_loads;

const int64_t kHostSteps = testing::steps_of(3, 20);

// More than any rank can send to a host, so nothing overflows.
constexpr double kRoomForAll = 100;

RunConfig by_hosts(RunConfig config, const LaidOut& layout, int64_t of_host = 2) {
  config = laid_out(std::move(config), layout);
  config.parallel.deterministic = false;
  config.parallel.hierarchical_expert_parallel_size = of_host;
  return config;
}

RunConfig recipe() {
  RunConfig config = testing::divisible_config();
  config.model.num_layers = 2;
  config.model.moe.num_experts = 8;
  return config;
}

// With exact counts and with a fixed capacity that some steps overflow.
void expect_steps_without_hosts(const RunConfig& config, const LaidOut& layout, int64_t of_host = 2) {
  const Trajectory one = run_engine(laid_out(config, {}), kHostSteps);
  RunConfig several = by_hosts(config, layout, of_host);
  for (const double factor : {0.0, 1.0, kRoomForAll}) {
    several.model.moe.moe_exchange_factor = factor;
    testing::expect_equal(one, run_engine(several, kHostSteps), 1e-9,
                          cat(described(layout), ", hosts of ", of_host, ", parts of ", factor));
  }
}

TEST(ExpertHosts, EqualOneRankInFloat64) {
  for (const LaidOut& layout : std::vector<LaidOut>{{"replicate=4,expert=4"},
                                                    {"replicate=8,expert=8"},
                                                    {"replicate=8,expert=4"},
                                                    {"shard=4,expert=4"},
                                                    {"shard=8,expert=4"},
                                                    {"shard=4,expert=4", kFsdp},
                                                    {"replicate=4,pipeline=2,expert=4"},
                                                    {"replicate=2,context=2,expert=4"},
                                                    {"replicate=4,tensor=2,expert=4,expert_tensor=2"},
                                                    {"replicate=4,tensor=2,expert=8,expert_tensor=1"}})
    expect_steps_without_hosts(recipe(), layout);
}

// Hosts of one rank, where rows arrive at their expert's rank, and two hosts of four ranks.
TEST(ExpertHosts, OfAnyNumberOfRanksEqualOneRankInFloat64) {
  expect_steps_without_hosts(recipe(), {"replicate=4,expert=4"}, 1);
  expect_steps_without_hosts(recipe(), {"replicate=8,expert=8"}, 4);
  expect_steps_without_hosts(recipe(), {"replicate=8,expert=8"}, 1);
}

TEST(ExpertHosts, WithAnyRouterEqualOneRankInFloat64) {
  for (const int64_t topk : {1, 2, 4, 8}) {
    SCOPED_TRACE(cat("top-", topk));
    RunConfig config = recipe();
    config.model.moe.moe_router_topk = topk;
    config.model.moe.moe_router_pre_softmax = topk == 1;
    expect_steps_without_hosts(config, {"replicate=4,expert=4"});
  }
}

TEST(ExpertHosts, EqualOneRankForModelVariants) {
  const auto check = [](const char* what, const std::function<void(RunConfig&)>& change) {
    SCOPED_TRACE(what);
    RunConfig config = recipe();
    change(config);
    expect_steps_without_hosts(config, {"replicate=4,expert=4"});
  };
  check("shared experts", [](RunConfig& c) { c.model.moe.moe_shared_expert_intermediate_size = 12; });
  check("shared experts meanwhile", [](RunConfig& c) {
    c.model.moe.moe_shared_expert_intermediate_size = 12;
    c.model.moe.moe_shared_expert_overlap = true;
  });
  check("latent experts", [](RunConfig& c) { c.model.moe.moe_latent_size = 6; });
  check("biases", [](RunConfig& c) { c.model.moe.moe_expert_add_bias = true; });
  check("one after the other", [](RunConfig& c) { c.model.moe.moe_grouped_gemm = false; });
  check("dropout", [](RunConfig& c) { testing::drop(c); });
  check("groups of experts", [](RunConfig& c) {
    c.model.moe.moe_router_num_groups = 4;
    c.model.moe.moe_router_group_topk = 2;
  });
  check("a bias that balances, and losses", testing::balance_by_bias);
  check("copies of experts", [](RunConfig& c) { c.model.moe.moe_replicated_experts = 1; });
  check("bounded pools", [](RunConfig& c) { c.model.moe.moe_pool_factor = 1; });
  for (const char* granularity : {"selective", "full"})
    check(granularity, [&](RunConfig& c) { c.model.recompute_granularity = granularity; });
}

// Replicas may be copies of any rank's experts, and their rows may stay within a host.
TEST(ExpertHosts, HostsOfOneRankComputeReplicasOfExperts) {
  RunConfig config = recipe();
  config.model.moe.moe_replicated_experts = 2;
  expect_steps_without_hosts(config, {"replicate=4,expert=4"}, 1);
}

// The tokens that a capacity drops depend on the number of ranks, so the plain all-to-all is the reference.
TEST(ExpertHosts, WithCapacitiesEqualPlainAllToAll) {
  RunConfig config = recipe();
  config.model.moe.moe_expert_capacity_factor = 1.25;
  RunConfig several = by_hosts(config, {"replicate=4,expert=4"}, 0);
  const Trajectory straight = run_engine(several, kHostSteps);
  several.parallel.hierarchical_expert_parallel_size = 2;
  for (const double factor : {0.0, 1.0, kRoomForAll}) {
    several.model.moe.moe_exchange_factor = factor;
    testing::expect_equal(straight, run_engine(several, kHostSteps), 1e-9, cat("parts of ", factor));
  }
}

// All tokens of all ranks go to one expert of one host; the other host receives nothing.
TEST(ExpertHosts, EqualOneRankIfAllTokensGoToOneHost) {
  RunConfig config = recipe();
  config.model.vocab_size = 1;
  config.model.moe.moe_router_load_balancing_type = "none";
  config.model.moe.moe_aux_loss_coeff = "0";
  config.model.moe.moe_router_topk = 1;
  config.model.moe.moe_router_pre_softmax = true;
  config.train.micro_batch_size = 2;
  config.train.global_batch_size = 16;
  config.optimizer.clip_grad = 0;
  expect_steps_without_hosts(config, {"replicate=4,expert=4"});
}

// With a fixed capacity and with exact counts, rows are the same and in the same order.
TEST(ExpertHosts, FixedCapacitiesMatchExactCountsBitwise) {
  for (const char* dtype : {"float32", "bfloat16"})
    for (const auto& [of_host, overflows] : {std::pair{1, true}, {2, true}, {2, false}}) {
      SCOPED_TRACE(cat(dtype, ", hosts of ", of_host));
      RunConfig config = by_hosts(with_uneven_loads(dtype), {"replicate=4,expert=4"}, of_host);
      const Trajectory as_they_come = run_engine(config, kHostSteps);
      EXPECT_EQ(std::ranges::max(as_they_come.exchange_fills), 0);
      config.model.moe.moe_exchange_factor = overflows ? 1 : kRoomForAll;
      const Trajectory in_parts = run_engine(config, kHostSteps);
      EXPECT_EQ(std::ranges::max(in_parts.exchange_fills) > 1, overflows);
      expect_same_bits_of_steps(as_they_come, in_parts);
    }
}

TEST(ExpertHosts, ProcessesMatchExactCountsBitwise) {
  testing::expect_bits_in_parts(by_hosts(with_uneven_loads("float32"), {"replicate=4,expert=4"}), kHostSteps,
                                kRoomForAll);
}

TEST(ExpertHosts, AreDeterministicOnAnyNumberOfThreads) {
  RunConfig config = by_hosts(with_uneven_loads("float32"), {"replicate=4,expert=4"});
  config.model.moe.moe_exchange_factor = 1.1;
  testing::expect_repeats(config, kHostSteps);
}

// The plan includes the memory of overflowing steps.
TEST(ExpertHosts, MatchThePlan) {
  for (const double factor : {0.0, 1.0})
    for (const double pool : {0.0, 1.0})
      for (const char* granularity : {"none", "full"})
        for (const auto& [layout, of_host] : std::vector<std::pair<LaidOut, int64_t>>{
                 {{"replicate=4,expert=4"}, 2}, {{"replicate=4,expert=4"}, 1}, {{"shard=4,expert=4", kFsdp}, 2}}) {
          RunConfig config = by_hosts(with_uneven_loads("float32"), layout, of_host);
          config.model.recompute_granularity = granularity;
          config.model.moe.moe_exchange_factor = factor;
          config.model.moe.moe_pool_factor = pool;
          SCOPED_TRACE(cat(described(layout), ", hosts of ", of_host, ", recompute ", granularity, ", pools of ", pool,
                           ", parts of ", factor));
          testing::expect_planned_memory(config);
        }
}

}  // namespace
}  // namespace witan
