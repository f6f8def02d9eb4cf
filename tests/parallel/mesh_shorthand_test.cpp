#include "witan/parallel/mesh_shorthand.h"

#include <gtest/gtest.h>

#include "support/message_of.h"
#include "witan/base/error.h"
#include "witan/parallel/layout.h"

namespace witan {
namespace {

using test::message_of;

ParallelConfig expanded(const std::string& mesh, ParallelConfig config = {}, const std::set<std::string>& given = {}) {
  config.mesh = mesh;
  expand_mesh(config, given);
  EXPECT_EQ(config.mesh, "");
  return config;
}

std::string refusal(const std::string& mesh, ParallelConfig config = {}, const std::set<std::string>& given = {},
                    const std::string& file = "") {
  config.mesh = mesh;
  return message_of<ConfigError>([&] { expand_mesh(config, given, file); });
}

TEST(MeshShorthand, SetsTheKeysOfEveryAxis) {
  const ParallelConfig config = expanded("replicate=2,shard=3,context=5,tensor=7,pipeline=11,expert=6,expert_tensor=1");
  EXPECT_EQ(config.ranks, 2 * 3 * 5 * 7 * 11);
  EXPECT_TRUE(config.use_distributed_optimizer);
  EXPECT_EQ(config.num_distributed_optimizer_instances, 2);
  EXPECT_EQ(config.context_parallel_size, 5);
  EXPECT_EQ(config.tensor_model_parallel_size, 7);
  EXPECT_EQ(config.pipeline_model_parallel_size, 11);
  EXPECT_EQ(config.expert_model_parallel_size, 6);
  EXPECT_EQ(config.expert_tensor_parallel_size, 1);
}

// The layout has the sizes of the mesh.
TEST(MeshShorthand, MatchesTheMeshOfTheLayout) {
  for (const int replicate : {1, 2, 4})
    for (const int shard : {1, 2, 4}) {
      const ParallelConfig config =
          expanded(cat("shard=", shard, ",replicate=", replicate, ",expert=", replicate * shard));
      const Layout layout(config, static_cast<int>(config.ranks), 16);
      EXPECT_EQ(layout.mesh().size(Axis::replicate), replicate);
      EXPECT_EQ(layout.mesh().size(Axis::shard), shard);
      EXPECT_EQ(layout.mesh().size(Axis::expert), replicate * shard);
    }
}

TEST(MeshShorthand, IgnoresBlanks) {
  const ParallelConfig config = expanded(" tensor = 2,\tpipeline= 3 ");
  EXPECT_EQ(config.tensor_model_parallel_size, 2);
  EXPECT_EQ(config.pipeline_model_parallel_size, 3);
}

// A resumed run starts with the keys of its last layout.
TEST(MeshShorthand, UnnamedAxesAreOne) {
  ParallelConfig before;
  before.tensor_model_parallel_size = 4;
  before.num_distributed_optimizer_instances = 4;
  before.use_distributed_optimizer = true;
  before.expert_model_parallel_size = 2;
  before.ranks = 16;
  const ParallelConfig config = expanded("replicate=8", before);
  EXPECT_EQ(config.ranks, 8);
  EXPECT_EQ(config.tensor_model_parallel_size, 1);
  EXPECT_FALSE(config.use_distributed_optimizer);
  EXPECT_EQ(config.num_distributed_optimizer_instances, 1);
  EXPECT_EQ(config.expert_model_parallel_size, 2) << "experts have their own key";
  EXPECT_EQ(expanded("tensor=2", before).num_distributed_optimizer_instances, 1);
  before.data_parallel_sharding_strategy = "optim_grads_params";
  EXPECT_EQ(expanded("replicate=8", before).data_parallel_sharding_strategy, "auto") << "nothing is sharded";
  EXPECT_EQ(expanded("shard=8", before).data_parallel_sharding_strategy, "optim_grads_params");
  EXPECT_EQ(expanded("context=8", before).data_parallel_sharding_strategy, "optim_grads_params")
      << "ranks of one sequence hold the same too";
  before.data_parallel_sharding_strategy = "no_shard";
  EXPECT_EQ(expanded("shard=8", before).sharding(), Sharding::optimizer);
}

TEST(MeshShorthand, ListsTheKeysItSet) {
  ParallelConfig config;
  EXPECT_TRUE(expand_mesh(config, {}).empty());
  config.mesh = "shard=2,expert=2";
  const auto keys = expand_mesh(config, {});
  for (const char* key : {"ranks", "use_distributed_optimizer", "num_distributed_optimizer_instances",
                          "tensor_model_parallel_size", "expert_model_parallel_size"})
    EXPECT_TRUE(keys.contains(key)) << key;
  EXPECT_FALSE(keys.contains("expert_tensor_parallel_size"));
}

TEST(MeshShorthand, AcceptsKeysThatAgree) {
  ParallelConfig given;
  given.ranks = 4;
  given.tensor_model_parallel_size = 2;
  given.use_distributed_optimizer = true;
  EXPECT_EQ(
      expanded("shard=2,tensor=2", given, {"ranks", "tensor_model_parallel_size", "use_distributed_optimizer"}).ranks,
      4);
  EXPECT_EQ(expanded("shard=2", {}, {"ranks"}).ranks, 2) << "0: choose automatically";
}

TEST(MeshShorthand, ErrorsNameBothSidesOfAContradiction) {
  ParallelConfig config;
  config.ranks = 4;
  config.tensor_model_parallel_size = 4;
  config.use_distributed_optimizer = true;
  config.num_distributed_optimizer_instances = 2;
  EXPECT_EQ(refusal("tensor=2,shard=2", config, {"tensor_model_parallel_size"}),
            "--mesh tensor=2,shard=2 implies tensor = 2, but --tensor-model-parallel-size 4 is given too: remove one");
  EXPECT_NE(refusal("shard=2", config, {"tensor_model_parallel_size"}).find("implies tensor = 1"), std::string::npos);
  EXPECT_EQ(refusal("replicate=8", config, {"ranks"}, "mine.toml"),
            "mine.toml: mesh = replicate=8 implies 8 ranks, but ranks = 4 is set there too: remove one");
  EXPECT_NE(refusal("replicate=8", config, {"use_distributed_optimizer"})
                .find("implies shard = 1, but --use-distributed-optimizer true"),
            std::string::npos);
  EXPECT_NE(refusal("shard=4", config, {"num_distributed_optimizer_instances"})
                .find("implies replicate = 1 beside shard = 4, but --num-distributed-optimizer-instances 2"),
            std::string::npos);
  config.data_parallel_sharding_strategy = "optim_grads_params";
  EXPECT_NE(refusal("replicate=4", config, {"data_parallel_sharding_strategy"})
                .find("implies shard = 1, but --data-parallel-sharding-strategy optim_grads_params"),
            std::string::npos);
  config.data_parallel_sharding_strategy = "no_shard";
  EXPECT_NE(refusal("shard=4", config, {"data_parallel_sharding_strategy"})
                .find("implies shard = 4, but --data-parallel-sharding-strategy no_shard"),
            std::string::npos);
}

TEST(MeshShorthand, ErrorsExplainNamesOfOtherPrograms) {
  const std::pair<const char*, const char*> names[] = {
      {"dp", "replicate"}, {"ddp", "replicate"}, {"data", "replicate"}, {"fsdp", "shard"}, {"zero", "shard"},
      {"cp", "context"},   {"pp", "pipeline"},   {"tp", "tensor"},      {"ep", "expert"},  {"etp", "expert_tensor"}};
  for (const auto& [name, axis] : names)
    EXPECT_NE(refusal(cat(name, "=2")).find(cat("there is no axis ", name, " (did you mean ", axis, "?)")),
              std::string::npos)
        << refusal(cat(name, "=2"));
}

TEST(MeshShorthand, SupportsExpertMeshes) {
  EXPECT_EQ(expert_axis_of("expert_model_parallel_size"), "expert");
  EXPECT_EQ(expert_axis_of("expert_tensor_parallel_size"), "expert_tensor");
  EXPECT_EQ(expert_axis_of("tensor_model_parallel_size"), "");
}

TEST(MeshShorthand, RefusesOtherText) {
  const std::pair<const char*, const char*> cases[] = {
      {"tensr=2", "there is no axis tensr (did you mean tensor?); there are replicate, shard"},
      {"replicate=2,,tensor=2", "there is no axis ;"},
      {"data=2", "there is no axis data (did you mean replicate?); there are"},
      {"world=2", "there is no axis world; there are"},
      {"expert_shard=2", "there is no axis expert_shard"},
      {"tensor", "tensor needs a number of ranks from 1 to 1048576, as in tensor=2, got nothing"},
      {"tensor=0", "got 0"},
      {"tensor=2x", "got 2x"},
      {"tensor=-1", "got -1"},
      {"tensor=99999999999999999999", "tensor needs a number of ranks"},
      {"tensor=2,tensor=2", "tensor is given twice"},
      {"replicate=1048576,pipeline=2", "has more than 1048576 ranks"}};
  for (const auto& [mesh, words] : cases)
    EXPECT_NE(refusal(mesh).find(words), std::string::npos) << mesh << ": " << refusal(mesh);
}

}  // namespace
}  // namespace witan
