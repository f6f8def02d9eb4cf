// moe_replicated_experts: hot experts are computed on several ranks, which does not change the result.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "planner/real_run.h"
#include "support/long_form.h"
#include "train/step/layouts/laid_out.h"
#include "train/step/process_steps.h"
#include "train/step/run_support.h"

namespace witan {
namespace {

using testing::kFsdp;
using testing::laid_out;
using testing::LaidOut;
using testing::run_engine;
using testing::small_config;
using testing::Trajectory;

const int64_t kReplicaSteps = testing::steps_of(3, 20);

// A router without balancing losses and with few distinct inputs makes some experts hot.
RunConfig hot(const char* dtype) {
  RunConfig config = small_config();
  config.model.dtype = dtype;
  config.model.vocab_size = 7;
  config.model.moe.num_experts = 8;
  config.model.moe.moe_router_load_balancing_type = "none";
  config.model.moe.moe_aux_loss_coeff = "0";
  config.parallel.deterministic = true;
  return config;
}

Trajectory replicated(RunConfig config, int64_t slots) {
  config.model.moe.moe_replicated_experts = slots;
  return run_engine(config, kReplicaSteps);
}

// The config must be deterministic.
void expect_the_bits_without_replicas(const RunConfig& config, int64_t slots = 2) {
  const Trajectory with = replicated(config, slots), without = replicated(config, 0);
  EXPECT_EQ(with.losses, without.losses);
  EXPECT_EQ(with.norms, without.norms);
  EXPECT_EQ(with.balances, without.balances);
  EXPECT_EQ(with.zs, without.zs);
  EXPECT_EQ(with.loads, without.loads);
  EXPECT_EQ(with.dropped, without.dropped);
  ASSERT_EQ(with.weights.size(), without.weights.size());
  for (size_t i = 0; i < with.weights.size(); ++i)
    EXPECT_TRUE(with.weights[i] == without.weights[i]) << "parameter " << i;
}

// Receive buffers too small for the hottest rank suffice once other ranks compute some of its experts: steps are rerun
// in passes only without replicas. This shows that the other tests use replicas.
TEST(ExpertReplicas, SpreadTheRows) {
  for (const char* mesh : {"replicate=2,expert=2", "replicate=4,expert=4"}) {
    RunConfig config = laid_out(hot("float32"), {mesh});
    config.model.moe.moe_router_topk = 4;  // one expert fits the balanced load
    config.model.moe.moe_pool_factor = 1.1;
    EXPECT_GT(std::ranges::max(replicated(config, 0).passes), 1) << mesh;
    EXPECT_EQ(std::ranges::max(replicated(config, 4).passes), 1) << mesh;
  }
}

class Replicas : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Dtypes, Replicas, ::testing::Values("float32", "bfloat16", "float64"));

TEST_P(Replicas, ChangeNoBitOfDeterministicSteps) {
  for (const LaidOut& layout : std::vector<LaidOut>{{"replicate=2,expert=2"},
                                                    {"replicate=4,expert=2"},
                                                    {"replicate=4,expert=4"},
                                                    {"shard=4,expert=2"},
                                                    {"shard=2,expert=2", kFsdp},
                                                    {"shard=4,expert=2", kFsdp},
                                                    {"replicate=2,pipeline=2,expert=2"},
                                                    {"shard=2,pipeline=2,expert=2", kFsdp, 2}}) {
    SCOPED_TRACE(described(layout));
    RunConfig config = hot(GetParam());
    if (layout.chunks > 0) config.model.num_layers = 4;
    expect_the_bits_without_replicas(laid_out(config, layout));
  }
}

// In float64, compared with one rank; also for ranks that share an expert's matrices or a sequence.
TEST(ExpertReplicas, EqualOneRankInFloat64) {
  RunConfig config = testing::divisible_config();
  config.model.num_layers = 2;
  config.model.vocab_size = 10;
  config.model.moe.moe_router_load_balancing_type = "none";
  config.model.moe.moe_aux_loss_coeff = "0";
  const Trajectory one = run_engine(config, kReplicaSteps);
  for (const LaidOut& layout : std::vector<LaidOut>{{"replicate=2,expert=2"},
                                                    {"replicate=4,expert=4"},
                                                    {"shard=4,expert=4", kFsdp},
                                                    {"replicate=2,tensor=2,expert=2,expert_tensor=2"},
                                                    {"tensor=2,expert=2,expert_tensor=1"},
                                                    {"context=2,pipeline=2,expert=2"}})
    for (const int64_t slots : {1, 3}) {
      RunConfig several = laid_out(config, layout);
      several.model.moe.moe_replicated_experts = slots;
      several.train.check_states = true;
      const Trajectory found = run_engine(several, kReplicaSteps);
      testing::expect_equal(one, found, 1e-9, cat(described(layout), ", ", slots, " slots"));
      EXPECT_EQ(found.arena_high_water, make_plan(resolve(several, {})).arena_bytes()) << described(layout);
    }
}

TEST(ExpertReplicas, ChangeNoBitForModelVariants) {
  const auto check = [](const char* what, const std::function<void(RunConfig&)>& change, int64_t slots = 2) {
    SCOPED_TRACE(what);
    RunConfig config = laid_out(hot("float32"), {"replicate=4,expert=4"});
    change(config);
    expect_the_bits_without_replicas(config, slots);
  };
  check(
      "one slot", [](RunConfig&) {}, 1);
  check(
      "more slots than experts", [](RunConfig&) {}, 100);
  check(
      "pools",
      [](RunConfig& c) {
        c.model.moe.moe_router_topk = 4;
        c.model.moe.moe_pool_factor = 1;
      },
      1);
  check("capacity", [](RunConfig& c) { c.model.moe.moe_expert_capacity_factor = 0.75; });
  check("large capacity", [](RunConfig& c) { c.model.moe.moe_expert_capacity_factor = 2.5; });
  check("shared experts", [](RunConfig& c) { c.model.moe.moe_shared_expert_intermediate_size = 12; });
  check("shared experts that overlap", [](RunConfig& c) {
    c.model.moe.moe_shared_expert_intermediate_size = 12;
    c.model.moe.moe_shared_expert_overlap = true;
  });
  check("biases", [](RunConfig& c) { c.model.moe.moe_expert_add_bias = true; });
  check("no gate", [](RunConfig& c) { c.model.mlp.swiglu = false; });
  check("latent experts", [](RunConfig& c) { c.model.moe.moe_latent_size = 6; });
  check("one expert after the other", [](RunConfig& c) { c.model.moe.moe_grouped_gemm = false; });
  check("adapters", [](RunConfig& c) {
    c.model.lora_rank = 2;
    c.model.lora_target_modules = "up_proj,gate_proj,down_proj";
  });
  check("one micro-batch", [](RunConfig& c) { c.train.micro_batch_size = 4; });
  check("dropout", [](RunConfig& c) { testing::drop(c); });
  check("layers that predict further tokens", [](RunConfig& c) { c.model.mtp_num_layers = 1; });
  for (const char* granularity : {"selective", "full"})
    check(granularity, [&](RunConfig& c) { c.model.recompute_granularity = granularity; });
}

TEST(ExpertReplicas, ChangeNoBitWithAnyRouter) {
  for (const char* selection : {"skew", "hot", "uniform", "zipf", "hash", "sinkhorn", "expert_choice"}) {
    SCOPED_TRACE(selection);
    RunConfig config = laid_out(hot("float32"), {"replicate=2,expert=2"});
    config.model.moe.moe_router_selection = selection;
    config.model.moe.moe_router_pre_softmax = true;
    config.model.moe.moe_router_imbalance = 3;
    expect_the_bits_without_replicas(config);
  }
  RunConfig config = laid_out(hot("float32"), {"replicate=2,expert=2"});
  config.model.moe.moe_router_score_function = "sigmoid";
  config.model.moe.moe_router_enable_expert_bias = true;
  config.model.moe.moe_router_num_groups = 4;
  config.model.moe.moe_router_group_topk = 2;
  expect_the_bits_without_replicas(config);
  config = laid_out(hot("float32"), {"replicate=2,expert=2"});
  config.model.moe.moe_router_load_balancing_type = "quantile_balancing";
  expect_the_bits_without_replicas(config);
}

// Every token chooses only expert 0; other experts have no rows.
TEST(ExpertReplicas, ShareAnExpertThatHasAllTokens) {
  for (const char* mesh : {"replicate=2,expert=2", "replicate=4,expert=4"}) {
    RunConfig config = laid_out(hot("bfloat16"), {mesh});
    config.model.moe.moe_router_topk = 1;
    config.model.moe.moe_router_pre_softmax = true;
    config.model.moe.moe_router_selection = "hot";
    expect_the_bits_without_replicas(config, 1);
  }
}

// Without deterministic mode the order of sums differs, but steps repeat bitwise.
TEST(ExpertReplicas, RepeatBitwise) {
  RunConfig config = laid_out(hot("float32"), {"replicate=4,expert=4"});
  config.parallel.deterministic = false;
  const Trajectory first = replicated(config, 2), second = replicated(config, 2);
  EXPECT_EQ(first.losses, second.losses);
  EXPECT_TRUE(first.weights == second.weights);
  testing::expect_equal(first, replicated(config, 0), 1e-3, "without replicas");
  config.model.dtype = "float64";
  testing::expect_equal(replicated(config, 2), replicated(config, 0), 1e-9, "without replicas, float64");
}

// The ranks do not share memory.
TEST(ExpertReplicas, ChangeNoBitAcrossProcesses) {
  RunConfig config = laid_out(hot("float32"), {"replicate=2,expert=2"});
  config.parallel.ranks_per_process = 1;
  const auto run = [&](int64_t slots) {
    config.model.moe.moe_replicated_experts = slots;
    return testing::on_processes(
        2, [&](testing::ProcessRank& rank) { return testing::bits_of_steps(config, rank, kReplicaSteps); });
  };
  const auto with = run(2), without = run(0);
  testing::expect_whole(with);
  for (const size_t rank : {0, 1}) EXPECT_EQ(with[rank].said, without[rank].said);
}

TEST(ExpertReplicas, MatchThePlan) {
  for (const char* granularity : {"none", "full"})
    for (const bool deterministic : {false, true})
      for (const LaidOut& layout : std::vector<LaidOut>{{"replicate=2,expert=2"},
                                                        {"replicate=4,expert=4"},
                                                        {"shard=4,expert=2", kFsdp},
                                                        {"replicate=2,pipeline=2,expert=2"}}) {
        RunConfig config = hot("bfloat16");
        config.parallel.deterministic = deterministic;
        config = laid_out(config, layout);
        config.model.recompute_granularity = granularity;
        config.model.moe.moe_replicated_experts = 2;
        config.train.sample_tokens = 0;
        SCOPED_TRACE(cat(described(layout), ", recompute ", granularity, deterministic ? ", deterministic" : ""));
        testing::expect_kept(config, {.prompt_tokens = 0});
      }
}

// The step's products are the same, wherever they are computed. For each slot, ranks also send a copy of an expert in
// forward and backward, its gradient, and counts.
TEST(ExpertReplicas, ArePlannedWithTheirTraffic) {
  RunConfig config = laid_out(hot("bfloat16"), {"replicate=2,expert=2"});
  config.parallel.deterministic = false;
  const auto plan_of = [&](int64_t slots) {
    config.model.moe.moe_replicated_experts = slots;
    return make_plan(resolve(config, {}));
  };
  const Plan with = plan_of(2), without = plan_of(0);
  const auto sent = [](const Plan& plan) {
    double bytes = 0;
    for (const auto& [axis, operations] : plan.ranks[0].sent)
      for (const auto& [operation, of_operation] : operations) bytes += of_operation;
    return bytes;
  };
  constexpr double kLayers = 2, kMicroBatches = 4, kSlots = 2, kElsewhere = 0.5;
  const double elements = 3.0 * 24 * 32,
               expected = kLayers * kMicroBatches * kSlots * kElsewhere * elements * (2 + 2 + 4);
  EXPECT_GE(sent(with) - sent(without), expected);
  EXPECT_LE(sent(with) - sent(without), 1.05 * expected);
  EXPECT_NEAR(with.step_flops, without.step_flops, 1e-2 * without.step_flops) << "sums of gradients";
}

}  // namespace
}  // namespace witan
