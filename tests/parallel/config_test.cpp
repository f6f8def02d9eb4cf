#include "witan/parallel/config.h"

#include <gtest/gtest.h>

#include "support/message_of.h"
#include "witan/base/error.h"

namespace witan {
namespace {

ParallelConfig with_expert_ranks(int64_t size) {
  ParallelConfig config;
  config.expert_model_parallel_size = size;
  return config;
}
std::string refusal(int64_t size, int world, int64_t num_experts) {
  return test::message_of<ConfigError>([&] { with_expert_ranks(size).validate(world, num_experts); });
}

TEST(ParallelConfig, ErrorsNameReasonAndFix) {
  EXPECT_EQ(refusal(16, 16, 8),
            "expert_model_parallel_size = 16: more ranks than the 8 experts (expert_tensor_parallel_size shards an "
            "expert's matrices); set expert_model_parallel_size to 8, the nearest that works");
  EXPECT_EQ(refusal(8, 4, 8),
            "expert_model_parallel_size = 8: more ranks than the 4 there are, which the other axes make (--mesh "
            "replicate=8,expert=8 has 8); set expert_model_parallel_size to 4, the nearest that works");
  EXPECT_EQ(
      refusal(3, 6, 8),
      "num_experts = 8 is not divisible by expert_model_parallel_size = 3; set expert_model_parallel_size to 2, the "
      "nearest that works");
  EXPECT_EQ(refusal(4, 6, 8),
            "expert_model_parallel_size = 4 does not divide the 6 ranks of a pipeline stage; set "
            "expert_model_parallel_size to "
            "2, the nearest that works");
  EXPECT_EQ(refusal(2, 4, 0),
            "expert_model_parallel_size = 2: a dense model has no experts to distribute; set it to 1, or num_experts "
            "above 0");
}

TEST(ParallelConfig, CheckpointTimeoutIsAtLeastTheCallTimeout) {
  ParallelConfig config;
  EXPECT_EQ(config.checkpoint_deadline_seconds(), 3600);
  config.distributed_timeout_minutes = 90;
  EXPECT_EQ(config.checkpoint_deadline_seconds(), 5400);
  const auto set = [&](const char* text) {
    for (const Field& field : config.fields())
      if (field.name == "checkpoint_timeout_minutes") field.set(text, "--checkpoint-timeout-minutes");
  };
  for (const char* nonsense : {"0", "-5", "0.01", "1e7", "nan", "an hour"})
    EXPECT_NE(test::message_of<ConfigError>([&] { set(nonsense); }).find("checkpoint_timeout_minutes"),
              std::string::npos)
        << nonsense;
  set("120.5");
  EXPECT_EQ(config.checkpoint_deadline_seconds(), 7230);
}

TEST(ParallelConfig, ErrorsNameTheNearestSizesOnBothSides) {
  EXPECT_EQ(cat(nearest_divisors("ranks", 3, 4)), "set ranks to 2 or 4, the nearest that work");
  EXPECT_EQ(cat(nearest_divisors("ranks", 5, 64)), "set ranks to 4 or 8, the nearest that work");
  EXPECT_EQ(cat(nearest_divisors("ranks", 9, 4)), "set ranks to 4, the nearest that works");
  EXPECT_EQ(cat(nearest_divisors("ranks", 3, 1)), "set ranks to 1, the nearest that works");
  EXPECT_EQ(cat(NearestSizes{"ranks", 3, 9, [](int64_t size) { return size == 1 || size == 9; }}),
            "set ranks to 1 or 9, the nearest that work");
}

TEST(ParallelConfig, SplitsExpertsWithinAStage) {
  ParallelConfig config = with_expert_ranks(4);
  config.pipeline_model_parallel_size = 2;
  EXPECT_EQ(test::message_of<ConfigError>([&] { config.validate(4, 8); }),
            "expert_model_parallel_size = 4: more ranks than the 2 of a pipeline stage; set "
            "expert_model_parallel_size to 2, the nearest that works");
  config.expert_tensor_parallel_size = 2;
  EXPECT_EQ(test::message_of<ConfigError>([&] { config.validate(8, 8); }),
            "expert_model_parallel_size = 4: more ranks than the 2 that expert_tensor_parallel_size = 2 leaves of 4 of "
            "a pipeline stage (1 would leave all); set expert_model_parallel_size to 2, the nearest that works");
}

TEST(ParallelConfig, ChecksExpertHosts) {
  ParallelConfig config = with_expert_ranks(8);
  config.hierarchical_expert_parallel_size = 3;
  EXPECT_EQ(test::message_of<ConfigError>([&] { config.validate(8, 8); }),
            "hierarchical_expert_parallel_size = 3 does not divide the 8 expert-parallel ranks into hosts of as many "
            "each; set hierarchical_expert_parallel_size to 2 or 4, the nearest that work");
  EXPECT_EQ(config.hierarchical_expert_ranks(1, 8), 3);
  config.expert_model_parallel_size = 1;
  config.validate(8, 8);  // has no effect
  EXPECT_EQ(config.hierarchical_expert_ranks(8, 8), 0);
  config.expert_model_parallel_size = 0;
  config.hierarchical_expert_parallel_size = 4;
  config.deterministic = true;
  EXPECT_EQ(test::message_of<ConfigError>([&] { config.validate(8, 8); }),
            "hierarchical_expert_parallel_size = 4 sums what a token's experts make of it host by host, but "
            "deterministic = true promises the bits of layouts that do not; set hierarchical_expert_parallel_size = 0, "
            "or deterministic = false");
  config.validate(4, 8);  // one host
  EXPECT_EQ(config.hierarchical_expert_ranks(4, 8), 0);
  config.tensor_model_parallel_size = 2;
  config.validate(16, 8);  // its bits differ from other layouts' anyway
  EXPECT_EQ(config.hierarchical_expert_ranks(16, 8), 4);
}

TEST(ParallelConfig, ChecksRanksPerSample) {
  ParallelConfig config;
  config.tensor_model_parallel_size = 3;
  EXPECT_EQ(test::message_of<ConfigError>([&] { config.validate(4, 0); }),
            "tensor_model_parallel_size = 3 does not divide 4 ranks: set ranks to a multiple of 3, or "
            "set tensor_model_parallel_size to 2 or 4, the nearest that work");
  config.tensor_model_parallel_size = 2;
  config.context_parallel_size = 3;
  EXPECT_EQ(test::message_of<ConfigError>([&] { config.validate(8, 0); }),
            "context_parallel_size = 3 does not divide 4 of 8 ranks: set ranks to a multiple of 6, or "
            "set context_parallel_size to 2 or 4, the nearest that work");
}

TEST(ParallelConfig, AcceptsDivisors) {
  for (const int64_t size : {0, 1, 2, 4, 8}) with_expert_ranks(size).validate(8, 64);
  with_expert_ranks(1).validate(7, 0);
  with_expert_ranks(0).validate(7, 0);
  EXPECT_EQ(with_expert_ranks(4).expert_ranks(8, 64), 4);
}

TEST(ParallelConfig, AutomaticSizeIsTheLargestCommonDivisor) {
  const ParallelConfig automatic;
  EXPECT_EQ(automatic.expert_ranks(2, 8), 2);
  EXPECT_EQ(automatic.expert_ranks(16, 8), 8);
  EXPECT_EQ(automatic.expert_ranks(6, 8), 2);
  EXPECT_EQ(automatic.expert_ranks(5, 8), 1);
  EXPECT_EQ(automatic.expert_ranks(4, 0), 1);
}

TEST(ParallelConfig, DeterministicSumsNeedNodesOfATree) {
  ParallelConfig config;
  config.validate_tree(6, 6, 3);  // not deterministic
  config.deterministic = true;
  config.validate_tree(1, 8, 7);
  config.validate_tree(6, 0, 4);
  config.validate_tree(6, 6, 4);  // experts over all ranks
  config.expert_model_parallel_size = 2;
  config.validate_tree(6, 6, 1);
  EXPECT_EQ(test::message_of<ConfigError>([&] { config.validate_tree(6, 6, 3); }),
            "deterministic = true needs a power-of-two number of micro-batches per data-parallel rank, got 3 on each "
            "of 6 ranks: change ranks or global_batch_size / micro_batch_size, or use one rank");
  config.expert_model_parallel_size = 3;
  EXPECT_EQ(test::message_of<ConfigError>([&] { config.validate_tree(6, 6, 4); }),
            "deterministic = true needs a power-of-two expert_model_parallel_size, or one over all 6 ranks of a "
            "pipeline stage, got 3");
}

TEST(ParallelConfig, LimitsValues) {
  ParallelConfig config;
  set_field(config.fields(), "ranks", "2", "--ranks");
  EXPECT_EQ(config.ranks, 2);
  EXPECT_THROW(set_field(config.fields(), "ranks", "-1", "--ranks"), ConfigError);
  EXPECT_THROW(set_field(config.fields(), "threads", "-1", "--threads"), ConfigError);
  EXPECT_THROW(set_field(config.fields(), "expert_model_parallel_size", "-2", "--expert-model-parallel-size"),
               ConfigError);
}

TEST(ParallelConfig, OptimizerInstancesDivideTheRanks) {
  ParallelConfig config;
  config.num_distributed_optimizer_instances = 2;
  EXPECT_EQ(test::message_of<ConfigError>([&] { config.validate(4, 8); }),
            "num_distributed_optimizer_instances = 2 needs use_distributed_optimizer = true");
  config.use_distributed_optimizer = true;
  config.validate(4, 8);
  config.num_distributed_optimizer_instances = 4;
  EXPECT_EQ(test::message_of<ConfigError>([&] { config.validate(6, 8); }),
            "num_distributed_optimizer_instances = 4 does not divide the 6 data-parallel ranks; set "
            "num_distributed_optimizer_instances to 3 or 6, the nearest that work");
  config.num_distributed_optimizer_instances = 2;
  config.deterministic = true;
  config.validate_tree(8, 8, 2);
  EXPECT_THROW(config.validate_tree(6, 8, 2), ConfigError);
}

TEST(ParallelConfig, DerivesTheSharding) {
  ParallelConfig config;
  EXPECT_EQ(config.sharding(), Sharding::none);
  config.use_distributed_optimizer = true;
  EXPECT_EQ(config.sharding(), Sharding::optimizer);
  config.data_parallel_sharding_strategy = "optim_grads";
  EXPECT_EQ(config.sharding(), Sharding::gradients);
  config.use_distributed_optimizer = false;
  config.data_parallel_sharding_strategy = "optim_grads_params";
  EXPECT_EQ(config.sharding(), Sharding::parameters);
  config.reshard_after_forward = false;
  config.num_distributed_optimizer_instances = 2;
  EXPECT_NO_THROW(config.validate(4, 8));
}

TEST(ParallelConfig, RefusesOptionsIncompatibleWithSharding) {
  const auto complaint = [](const std::function<void(ParallelConfig&)>& change) {
    ParallelConfig config;
    change(config);
    return test::message_of<ConfigError>([&] { config.validate(4, 8); });
  };
  EXPECT_EQ(complaint([](ParallelConfig& c) {
              c.use_distributed_optimizer = true;
              c.data_parallel_sharding_strategy = "no_shard";
            }),
            "use_distributed_optimizer = true shards the optimizer, but data_parallel_sharding_strategy = no_shard "
            "shards nothing; set it to optim, or use_distributed_optimizer to false");
  const auto complaint_of_comm = [&](const char* type) {
    return complaint([&](ParallelConfig& c) { c.cp_comm_type = type; });
  };
  EXPECT_EQ(complaint_of_comm("a2a+p2p"),
            "cp_comm_type = a2a+p2p: rings of groups that exchange heads are not supported; set it to a2a, which needs "
            "heads for every rank, or to p2p, which does not");
  EXPECT_EQ(complaint_of_comm("all_gather"),
            "cp_comm_type = all_gather: keys and values are not gathered; set it to p2p, which passes them on and "
            "never holds all of them, or to a2a");
  EXPECT_EQ(complaint_of_comm("p2p a2a"),
            "cp_comm_type = p2p a2a: all layers have heads of one number and exchange them in one way; give one value, "
            "auto, p2p or a2a");
  EXPECT_EQ(complaint_of_comm("ring"), "cp_comm_type = ring: must be one of auto, p2p, a2a");
  EXPECT_EQ(complaint([](ParallelConfig& c) { c.reshard_after_forward = false; }),
            "reshard_after_forward = false, but only data_parallel_sharding_strategy = optim_grads_params gathers "
            "parameters; leave it true");
  EXPECT_EQ(complaint([](ParallelConfig& c) {
              c.data_parallel_sharding_strategy = "optim_grads";
              c.overlap_grad_reduce = false;
            }),
            "overlap_grad_reduce = false keeps full gradients until the end of the backward, but "
            "data_parallel_sharding_strategy = optim_grads keeps only shards of them; set overlap_grad_reduce to true, "
            "or the strategy to optim");
}

}  // namespace
}  // namespace witan
