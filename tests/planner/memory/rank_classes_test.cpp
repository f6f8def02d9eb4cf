#include "witan/planner/memory/rank_classes.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "train/step/run_support.h"
#include "witan/parallel/mesh_shorthand.h"
#include "witan/planner/plan.h"

namespace witan {
namespace {

using testing::small_config;
using Ranks = PlanOptions::Ranks;

struct Case {
  const char* mesh;
  const char* strategy = "auto";
  int64_t experts = 8;
  bool tied = true;
  const char* window = "none";
  const char* comm = "auto";
};

std::string describe(const Case& c) {
  return cat(c.mesh, ", ", c.strategy, ", ", c.experts, " experts", c.tied ? "" : ", untied", ", window ", c.window,
             ", ", c.comm);
}

// Matrices are large enough for each owner to have its own chunks.
RunConfig config_of(const Case& c) {
  RunConfig config = small_config();
  config.model.num_layers = 4;
  config.model.hidden_size = 128;
  config.model.attention.num_attention_heads = config.model.attention.num_query_groups = 4;
  config.model.mlp.ffn_hidden_size = 512;
  config.model.vocab_size = 1000;
  config.model.untie_embeddings_and_output_weights = !c.tied;
  config.model.moe.num_experts = c.experts;
  config.model.attention.window_size = c.window;
  config.data.seq_length = 16;
  config.train.micro_batch_size = 1;
  config.train.sample_tokens = 0;
  config.parallel.data_parallel_sharding_strategy = c.strategy;
  config.parallel.mesh = c.mesh;
  config.parallel.cp_comm_type = c.comm;
  config.parallel.ranks = 0;
  expand_mesh(config.parallel, {});
  if (c.experts == 0) config.parallel.expert_model_parallel_size = 1;
  config.parallel.sequence_parallel = config.parallel.tensor_model_parallel_size > 1;
  config.validate();
  return config;
}

const std::vector<Case> kCases = {
    {"replicate=8"},
    {"replicate=8,expert=4"},
    {"shard=8,expert=4"},
    {"shard=8,expert=1"},
    {"shard=8", "auto", 0, false},
    {"replicate=2,shard=4,expert=2"},
    {"shard=8,expert=2", "optim_grads"},
    {"shard=8,expert=2", "optim_grads_params"},
    {"replicate=2,shard=4", "optim_grads_params", 0},
    {"tensor=4,shard=2,expert=2"},
    {"tensor=4,shard=2,expert=4,expert_tensor=2"},
    {"tensor=2,shard=4,expert=2,expert_tensor=1", "optim_grads_params"},
    {"context=4,shard=2,expert=2"},
    {"context=2,tensor=2,shard=2,expert=4,expert_tensor=1"},
    {"pipeline=4,replicate=2,expert=2"},
    {"pipeline=2,shard=2,tensor=2,expert=2", "auto", 8, false},
    {"pipeline=2,context=2,shard=2", "auto", 0},
    {"pipeline=2,shard=4,expert=2", "optim_grads_params"},
    {"context=4,shard=2", "optim_grads_params", 0},
    {"context=4,shard=2", "auto", 0, true, "2,0"},
    {"context=4,pipeline=2,expert=2", "auto", 8, true, "5,0"},
    {"context=4,shard=2,expert=2", "auto", 8, true, "none", "p2p"},
    {"context=4,shard=2", "auto", 0, true, "2,0", "p2p"},
    {"context=4,pipeline=2,expert=2", "auto", 8, true, "5,0", "p2p"},
    {"context=8", "auto", 0},  // more ranks than heads
};

bool same_costs(const KernelCosts& a, const KernelCosts& b) {
  const auto same_cost = [](const auto& x, const auto& y) {
    return x.first == y.first && x.second.flops == y.second.flops && x.second.bytes == y.second.bytes;
  };
  return std::ranges::equal(a, b, [&](const auto& x, const auto& y) {
    return x.first == y.first && std::ranges::equal(x.second, y.second, same_cost);
  });
}

// Each rank of a class has the needs and calls planned for its representative.
TEST(RankClasses, AgreeWithPlansOfEveryRank) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(describe(c));
    const RunConfig config = config_of(c);
    const Plan all = make_plan(resolve(config, {})),
               alone = make_plan(resolve(config, {}), {.ranks = Ranks::one_by_one});
    ASSERT_EQ(all.ranks.size(), alone.ranks.size());
    for (size_t rank = 0; rank < all.ranks.size(); ++rank) {
      const RankPlan &a = all.ranks[rank], &b = alone.ranks[rank];
      EXPECT_EQ(a.arena_bytes, b.arena_bytes) << "rank " << rank;
      EXPECT_EQ(a.tags, b.tags) << "rank " << rank;
      EXPECT_EQ(a.sent, b.sent) << "rank " << rank;
      EXPECT_EQ(a.eval_sent, b.eval_sent) << "rank " << rank;
      EXPECT_TRUE(same_costs(a.step, b.step)) << "rank " << rank;
      EXPECT_TRUE(same_costs(a.evaluation, b.evaluation)) << "rank " << rank;
    }
    EXPECT_EQ(all.needed_bytes(), alone.needed_bytes());
    EXPECT_NEAR(all.step_flops, alone.step_flops, 1e-9 * alone.step_flops);
  }
}

std::vector<RankClass> classes_of(const RunConfig& config, size_t most = 1000) {
  return rank_classes(
      config, Layout(config.parallel, static_cast<int>(config.parallel.ranks), config.model.moe.num_experts), most);
}

std::vector<std::vector<int>> ranks_of(const std::vector<RankClass>& classes) {
  std::vector<std::vector<int>> ranks;
  for (const RankClass& one : classes) ranks.push_back(one.ranks);
  return ranks;
}

TEST(RankClasses, SeparateOnlyRanksThatDiffer) {
  using Sets = std::vector<std::vector<int>>;
  EXPECT_EQ(ranks_of(classes_of(config_of({"replicate=8,expert=4"}))), (Sets{{0, 1, 2, 3, 4, 5, 6, 7}}));
  EXPECT_EQ(ranks_of(classes_of(config_of({"pipeline=4,replicate=2,expert=2"}))),
            (Sets{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  // The first tensor-parallel rank keeps values that the others replace by zeros.
  EXPECT_EQ(ranks_of(classes_of(config_of({"tensor=4,replicate=2", "auto", 0}))), (Sets{{0, 4}, {1, 2, 3, 5, 6, 7}}));
}

// One class can hold every rank. If there are too many classes, the rank that owns the most is planned for all that
// hold the same.
TEST(RankClasses, MergeTooManyClassesByOwnedState) {
  for (const Case& c : {Case{"shard=8,expert=1"}, Case{"shard=8,expert=1", "optim_grads_params"}}) {
    SCOPED_TRACE(describe(c));
    const RunConfig config = config_of(c);
    const auto fine = classes_of(config), coarse = classes_of(config, 1);
    EXPECT_GT(fine.size(), 1u);
    EXPECT_TRUE(std::ranges::all_of(fine, &RankClass::exact));
    ASSERT_EQ(coarse.size(), 1u);
    EXPECT_EQ(coarse[0].ranks.size(), 8u);
    EXPECT_FALSE(coarse[0].exact);
    const Plan all = make_plan(resolve(config, {})),
               few = make_plan(resolve(config, {}), {.ranks = Ranks::by_class, .most_classes = 1});
    ASSERT_EQ(few.ranks.size(), 1u);
    EXPECT_EQ(few.arena_bytes(), all.arena_bytes());
    int64_t most = 0;
    for (const RankPlan& rank : all.ranks) most = std::max(most, rank.tags.at("optimizer"));
    EXPECT_EQ(few.ranks[0].tags.at("optimizer"), most);
  }
}

TEST(RankClasses, PlanThousandsOfRanksWithAFew) {
  Case wide = {"pipeline=4,shard=32,tensor=4,context=2,expert=8,expert_tensor=1"};
  RunConfig config = config_of({"replicate=1"});
  config.parallel.mesh = wide.mesh;
  config.parallel.ranks = 0;
  config.parallel.expert_model_parallel_size = 0;
  expand_mesh(config.parallel, {});
  config.parallel.sequence_parallel = true;
  config.train.global_batch_size = 64;
  config.validate();
  ASSERT_EQ(config.parallel.ranks, 1024);
  const Plan plan = make_plan(resolve(config, {}), {.ranks = Ranks::by_class});
  EXPECT_LE(plan.ranks.size(), 32u);
  std::vector<int> ranks;
  for (const RankPlan& one : plan.ranks) ranks.insert(ranks.end(), one.ranks.begin(), one.ranks.end());
  std::ranges::sort(ranks);
  ASSERT_EQ(ranks.size(), 1024u);
  for (int rank = 0; rank < 1024; ++rank) EXPECT_EQ(ranks[static_cast<size_t>(rank)], rank);
}

}  // namespace
}  // namespace witan
