#include "witan/planner/pages/sharding_text.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "train/run/run_support.h"
#include "witan/planner/pages/layout_page.h"

namespace witan {
namespace {

struct Asked {
  std::string strategy;
  int ranks = 8, instances = 1, tensor = 1, expert = 2;
};

RunConfig config_of(const Asked& asked) {
  RunConfig config = testing::small_config();
  config.parallel = {asked.ranks, asked.expert, 1};
  config.parallel.tensor_model_parallel_size = asked.tensor;
  config.parallel.sequence_parallel = asked.tensor > 1;
  config.parallel.expert_tensor_parallel_size = 1;
  config.parallel.data_parallel_sharding_strategy = asked.strategy;
  config.parallel.num_distributed_optimizer_instances = asked.instances;
  return config;
}

std::string text_of(const RunConfig& config) {
  return sharding_text(config,
                       Layout(config.parallel, static_cast<int>(config.parallel.ranks), config.model.moe.num_experts));
}

TEST(DivisionText, NamesWhatIsDividedOverWhichAxes) {
  EXPECT_EQ(text_of(config_of({"no_shard"})), "");
  EXPECT_EQ(text_of(config_of({"optim"})),
            "ZeRO-1 (optim): the optimizer is sharded over shard (8 ranks), for experts over expert_shard (4)");
  EXPECT_EQ(text_of(config_of({"optim_grads", 8, 1, 2})),
            "ZeRO-2 (optim_grads): gradients and optimizer are sharded over shard (4 ranks), for experts over "
            "expert_shard (4)");
  EXPECT_EQ(text_of(config_of({.strategy = "optim_grads_params", .expert = 8})),
            "FSDP (optim_grads_params): values, gradients and optimizer are sharded over shard (8 ranks); experts are "
            "not sharded, since expert_shard has one rank");
  EXPECT_EQ(text_of(config_of({"optim_grads_params", 8, 2})),
            "HSDP (optim_grads_params): values, gradients and optimizer are sharded over shard (4 ranks), for experts "
            "over expert_shard (2); each of 2 replicas holds all shards");
  EXPECT_EQ(text_of(config_of({.strategy = "optim_grads_params", .ranks = 2, .tensor = 2})),
            "FSDP (optim_grads_params): nothing is sharded, since the shard axes have one rank each");
}

// All ranks are alike, so that a rank keeps its share of what it computes with, give or take the chunks of a cut.
TEST(HeldParameters, KeepWhatTheirRankOwns) {
  const RunConfig config = config_of({"optim_grads_params", 4});
  const Layout layout(config.parallel, 4, config.model.moe.num_experts);
  int64_t kept = 0, all = 0;
  for (const HeldParameter& one : held_parameters(resolve(config, {}), layout)) {
    EXPECT_EQ(one.owners, Axes{one.expert ? Axis::expert_shard : Axis::shard}) << one.name;
    if (one.expert) {
      EXPECT_EQ(one.global[0], 2 * one.local[0]) << one.name;
    } else {
      EXPECT_TRUE(one.placements.empty()) << one.name << " is held whole by nobody";
    }
    kept += one.local_elements;
    all += one.local.elements();
  }
  EXPECT_GT(kept, all / 8);
  EXPECT_LT(kept, all);
}

TEST(LayoutJson, SaysWhatThePageSays) {
  const RunConfig config = config_of({"optim_grads_params", 8, 2});
  const auto json = nlohmann::json::parse(layout_json(resolve(config, {}), 300));
  EXPECT_EQ(json["ranks"], 8);
  EXPECT_EQ(json["assumed_vocabulary"], 300);
  EXPECT_EQ(json["mesh"]["replicate"], 2);
  EXPECT_EQ(json["mesh"]["shard"], 4);
  EXPECT_EQ(json["mesh_of_experts"]["expert_shard"], 2);
  EXPECT_EQ(json["sharded"], text_of(config));
  const auto& experts = json["parameters"].back()["name"] == "final_norm.weight" ? *(json["parameters"].end() - 2)
                                                                                 : json["parameters"].back();
  EXPECT_EQ(experts["name"], "layers.1.moe.experts.down_proj");
  EXPECT_EQ(experts["shape"], nlohmann::json({8, 32, 24}));
  EXPECT_EQ(experts["local_shape"], nlohmann::json({4, 32, 24}));
  EXPECT_EQ(experts["placements"],
            nlohmann::json({{"expert_replicate", "Replicate(own uses)"}, {"expert", "Shard(0)"}}));
  EXPECT_EQ(experts["sharded"], nlohmann::json({"values", "gradients", "optimizer"}));
  EXPECT_EQ(experts["sharded_over"], nlohmann::json({"expert_shard"}));
}

}  // namespace
}  // namespace witan
