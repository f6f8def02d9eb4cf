#include <gtest/gtest.h>

#include "train/step/run_support.h"
#include "witan/planner/plan.h"

namespace witan {
namespace {

using testing::small_config;

// nearest_fitting() relies on this estimate.
TEST(QuickPlan, EstimatesArenasOfFullPlans) {
  RunConfig config = small_config();
  config.train.global_batch_size = 48;
  config.train.sample_tokens = 0;
  config.parallel = {2, 2, 1};
  EXPECT_EQ(estimate_arena_bytes(resolve(config, {})), 2 * make_plan(resolve(config, {})).arena_bytes());
  config.parallel.deterministic = true;
  config.train.global_batch_size = config.train.micro_batch_size * 2 * 16;
  EXPECT_EQ(estimate_arena_bytes(resolve(config, {})), 2 * make_plan(resolve(config, {})).arena_bytes());
}

double bytes_sent(const RankPlan& rank) {
  double sum = 0;
  for (const auto& [axis, operations] : rank.sent)
    for (const auto& [operation, bytes] : operations) sum += bytes;
  return sum;
}

double flops_of(const RankPlan& rank) {
  double sum = 0;
  for (const auto& [part, kernels] : rank.step)
    for (const auto& [kernel, cost] : kernels) sum += cost.flops;
  return sum;
}

// A few micro-batches represent many: quick plans agree with full plans within 5 %, at both ends of a pipeline too.
TEST(QuickPlan, IsCloseToTheFullPlan) {
  const auto expect_near = [](const char* what, auto change) {
    RunConfig config = small_config();
    config.model.num_layers = 4;
    config.model.vocab_size = 64;
    config.data.seq_length = 64;
    config.train.global_batch_size = 64;
    config.train.sample_tokens = 0;
    config.parallel = {4, 1, 1};
    change(config);
    config.validate();
    const Plan plan = make_plan(resolve(config, {})), quick = quick_plan(resolve(config, {}));
    for (const RankPlan& rank : quick.ranks) {
      SCOPED_TRACE(cat(what, ", rank ", rank.rank));
      const RankPlan& exact = plan.ranks[static_cast<size_t>(rank.rank)];
      EXPECT_NEAR(static_cast<double>(rank.arena_bytes), static_cast<double>(exact.arena_bytes),
                  0.05 * static_cast<double>(exact.arena_bytes));
      EXPECT_NEAR(flops_of(rank), flops_of(exact), 0.05 * flops_of(exact));
      EXPECT_NEAR(bytes_sent(rank), bytes_sent(exact), 0.05 * bytes_sent(exact));
    }
    EXPECT_EQ(quick.ranks.size(), config.parallel.pipeline_model_parallel_size > 1 ? 2u : 1u);
  };
  expect_near("replicas", [](RunConfig&) {});
  expect_near("experts", [](RunConfig& c) { c.parallel.expert_model_parallel_size = 4; });
  expect_near("distributed optimizer", [](RunConfig& c) { c.parallel.use_distributed_optimizer = true; });
  expect_near("FSDP", [](RunConfig& c) { c.parallel.data_parallel_sharding_strategy = "optim_grads_params"; });
  expect_near("tensor", [](RunConfig& c) {
    c.parallel.tensor_model_parallel_size = 2;
    c.parallel.sequence_parallel = true;
  });
  expect_near("context", [](RunConfig& c) { c.parallel.context_parallel_size = 2; });
  expect_near("pipeline", [](RunConfig& c) { c.parallel.pipeline_model_parallel_size = 2; });
  expect_near("FSDP of stages", [](RunConfig& c) {
    c.parallel.pipeline_model_parallel_size = 2;
    c.parallel.data_parallel_sharding_strategy = "optim_grads_params";
  });
  expect_near("kept values", [](RunConfig& c) {
    c.parallel.data_parallel_sharding_strategy = "optim_grads_params";
    c.parallel.reshard_after_forward = false;
  });
  expect_near("virtual stages", [](RunConfig& c) {
    c.parallel.pipeline_model_parallel_size = 2;
    c.parallel.num_virtual_stages_per_pipeline_rank = 2;
  });
}

}  // namespace
}  // namespace witan
