#include "witan/planner/pages/layout_page.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "train/step/run_support.h"
#include "witan/parallel/mesh_shorthand.h"

namespace witan {
namespace {

TEST(LayoutPage, ShowsMeshGroupsAndATreeOfParameters) {
  RunConfig config = testing::small_config();
  config.parallel = {8, 2, 1};
  config.parallel.use_distributed_optimizer = true;
  config.parallel.num_distributed_optimizer_instances = 2;
  const std::string page = format_layout(resolve(config, {}));
  EXPECT_EQ(page.substr(0, page.find("\nDevice meshes")), R"(Layout of 8 ranks
  mesh           replicate 2 x shard 4
  expert mesh    expert_replicate 2 x expert_shard 2 x expert 2
  sharded        ZeRO-1 (optim): the optimizer is sharded over shard (4 ranks), for experts over expert_shard (2); each of 2 replicas holds all shards
                 rank 0 holds 11.2 K of the 27.2 K elements that it shards with other ranks

Groups of rank 0
  replicate x shard                0 1 2 3 4 5 6 7
  replicate                        0 4
  shard                            0 1 2 3
  expert                           0 1
  expert_replicate                 0 4
  expert_shard                     0 2
  expert_replicate x expert_shard  0 2 4 6
  expert_shard x expert            0 1 2 3

Parameters: shape -> local shape on rank 0, and placement on the mesh
  embedding
    weight                    [61, 32]                           Replicate on replicate, shard; optimizer sharded over shard
  layers
    0 … 1
      attention_norm
        weight                [32]                               Replicate on replicate, shard; optimizer sharded over shard
      attention
        q_proj
          weight              [32, 32]                           Replicate on replicate, shard; optimizer sharded over shard
        k_proj, v_proj
          weight              [16, 32]                           Replicate on replicate, shard; optimizer sharded over shard
        o_proj
          weight              [32, 32]                           Replicate on replicate, shard; optimizer sharded over shard
      mlp_norm
        weight                [32]                               Replicate on replicate, shard; optimizer sharded over shard
      moe
        router
          weight              [8, 32]                            Replicate on replicate, shard; optimizer sharded over shard
        experts
          gate_up_proj        [8, 48, 32] -> [4, 48, 32]         Replicate on expert_replicate, expert_shard; Shard(0) on expert; optimizer sharded over expert_shard
          down_proj           [8, 32, 24] -> [4, 32, 24]         Replicate on expert_replicate, expert_shard; Shard(0) on expert; optimizer sharded over expert_shard
  final_norm
    weight                    [32]                               Replicate on replicate, shard; optimizer sharded over shard

Legend
  Replicate on an axis: each of its ranks holds a full copy of what is shown
  Shard(d) on an axis: each of its ranks holds an equal slice of dim d, counted from 0
  sharded over axes: concatenated with others into one flat buffer, which is split into one shard per rank, as evenly
    as possible and regardless of row boundaries. Sharded values are all-gathered while their block computes
)");
}

// The mesh of PyTorch's DeviceMesh tutorial, with the FSDP mesh ("replicate", "shard") and the tensor-parallel one:
// nested lists and names as torch 2.8 prints them, on every rank.
TEST(LayoutPage, ListsMeshesOfEveryRankLikeTorch) {
  RunConfig config = testing::gpt_run_config();
  config.parallel.mesh = "replicate=2,shard=2,tensor=2";
  expand_mesh(config.parallel, {});
  config.train.global_batch_size = 4 * config.train.micro_batch_size;
  const std::string page = format_layout(resolve(config, {}));
  const std::string whole =
      "DeviceMesh([[[0, 1], [2, 3]], [[4, 5], [6, 7]]], mesh_dim_names=('replicate', 'shard', 'tensor'))\n";
  EXPECT_NE(page.find("\nDevice meshes\n  " + whole + "\nRanks"), std::string::npos) << page;
  for (int rank = 0; rank < 8; ++rank) {
    const int replicate = rank / 4, shard = rank / 2 % 2, tensor = rank % 2;
    const std::string begin = cat("  rank ", rank, "    replicate=", replicate, ", shard=", shard, ", tensor=", tensor);
    const size_t at = page.find(begin + "\n");
    ASSERT_NE(at, std::string::npos) << begin << " is not in\n" << page;
    const std::string own = page.substr(at, page.find(cat("  rank ", rank + 1), at) - at);
    for (const std::string& mesh :
         {whole,
          cat("DeviceMesh([[", tensor, ", ", 2 + tensor, "], [", 4 + tensor, ", ", 6 + tensor,
              "]], mesh_dim_names=('replicate', 'shard'))\n"),
          cat("DeviceMesh([", 4 * replicate + 2 * shard, ", ", 4 * replicate + 2 * shard + 1,
              "], mesh_dim_names=('tensor',))\n"),
          cat("DeviceMesh([", 4 * replicate + tensor, ", ", 4 * replicate + 2 + tensor,
              "], mesh_dim_names=('shard',))\n"),
          cat("DeviceMesh([", 2 * shard + tensor, ", ", 4 + 2 * shard + tensor, "], mesh_dim_names=('replicate',))\n")})
      EXPECT_NE(own.find("    " + mesh), std::string::npos) << mesh << " is not in\n" << own;
  }
  EXPECT_EQ(page.find("expert", page.find("\nRanks")), std::string::npos) << "a dense model has no expert meshes";
  const auto json = nlohmann::json::parse(layout_json(resolve(config, {})));
  EXPECT_EQ(json["coordinates"][6],
            nlohmann::json::parse(R"({"pipeline":0,"replicate":1,"shard":1,"context":0,"tensor":0})"));
  const auto tensor = std::ranges::find_if(
      json["groups"], [](const auto& one) { return one["axes"] == nlohmann::json::parse(R"(["tensor"])"); });
  ASSERT_NE(tensor, json["groups"].end());
  EXPECT_EQ((*tensor)["ranks"], nlohmann::json::parse("[[0,1],[2,3],[4,5],[6,7]]"));
}

TEST(LayoutPage, IsShortForOneRank) {
  RunConfig config = testing::gpt_run_config();
  const std::string page = format_layout(resolve(config, {}));
  EXPECT_EQ(page.find("Layout of 1 rank\n  mesh           one rank\n\nParameters"), 0u) << page;
  EXPECT_EQ(page.find("experts"), std::string::npos);
  EXPECT_NE(page.find("    0 … 1\n"), std::string::npos) << page;
}

TEST(LayoutPage, ShowsDividedValuesAsShards) {
  RunConfig config = testing::sharded_config(4, 2, 1);
  config.parallel.use_distributed_optimizer = false;
  config.parallel.data_parallel_sharding_strategy = "optim_grads_params";
  const std::string page = format_layout(resolve(config, {}));
  EXPECT_NE(page.find(" values, gradients, optimizer sharded over shard\n"), std::string::npos) << page;
  EXPECT_NE(page.find("Shard(0) on expert; values, gradients, optimizer sharded over expert_shard\n"),
            std::string::npos)
      << page;
}

}  // namespace

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

TEST(DivisionText, NamesAxesThatDivideAParameter) {
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

// All ranks are alike, so each keeps an equal share of the parameters, up to a chunk.
TEST(HeldParameters, MatchWhatEachRankOwns) {
  const RunConfig config = config_of({"optim_grads_params", 4});
  const Layout layout(config.parallel, 4, config.model.moe.num_experts);
  int64_t kept = 0, all = 0;
  for (const HeldParameter& one : held_parameters(resolve(config, {}), layout)) {
    EXPECT_EQ(one.owners, Axes{one.expert ? Axis::expert_shard : Axis::shard}) << one.name;
    if (one.expert) {
      EXPECT_EQ(one.global[0], 2 * one.local[0]) << one.name;
    } else {
      EXPECT_TRUE(one.placements.empty()) << one.name << " is not completely held";
    }
    kept += one.local_elements;
    all += one.local.elements();
  }
  EXPECT_GT(kept, all / 8);
  EXPECT_LT(kept, all);
}

TEST(LayoutJson, AgreesWithThePage) {
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
