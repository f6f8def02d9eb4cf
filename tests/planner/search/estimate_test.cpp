#include <gtest/gtest.h>

#include "support/model_variants.h"
#include "train/step/run_support.h"
#include "witan/parallel/mesh_shorthand.h"
#include "witan/planner/plan.h"
#include "witan/planner/search/search.h"
#include "witan/planner/time/step_time.h"

namespace witan {
namespace {

// The model is large enough for weights and matrix products to dominate a step.
RunConfig config_on(const std::string& mesh, const std::string& strategy, int64_t experts) {
  RunConfig config = testing::small_config();
  config.model.num_layers = 8;
  config.model.hidden_size = 1024;
  config.model.vocab_size = 32000;
  config.model.dtype = "bfloat16";
  config.model.untie_embeddings_and_output_weights = true;
  config.model.attention.num_attention_heads = config.model.attention.num_query_groups = 8;
  config.model.mlp.ffn_hidden_size = 4096;
  config.model.moe.num_experts = experts;
  config.data.seq_length = 1024;
  config.train.micro_batch_size = 1;
  config.train.global_batch_size = 32;
  config.train.sample_tokens = 0;
  config.parallel.data_parallel_sharding_strategy = strategy;
  config.parallel.device = "cuda";
  config.parallel.ranks = 0;
  config.parallel.mesh = mesh;
  expand_mesh(config.parallel, {});
  config.parallel.sequence_parallel = config.parallel.tensor_model_parallel_size > 1;
  config.validate();
  return config;
}

// Layouts dropped because their state does not fit would really not have fitted, and those ranked first are likely to
// be fast.
void expect_near_plan(const RunConfig& given) {
  const ResolvedConfig config = resolve(given, {});
  const Cluster cluster{find_gpu("h100"), 8, 450e9, 50e9};
  const Ceilings ceilings = cluster.ceilings({"bfloat16", static_cast<int>(config->parallel.ranks), 1});
  const LayoutEstimate estimate = estimate_layout(config, cluster, ceilings);
  const Plan plan = make_plan(config);
  int64_t most = 0;
  for (const RankPlan& rank : plan.ranks)
    most = std::max(most, rank.tags.at("weights") + rank.tags.at("gradients") + rank.tags.at("optimizer"));
  EXPECT_LE(estimate.state_bytes, most);
  EXPECT_GE(estimate.state_bytes, most / 2);
  EXPECT_GE(estimate.bytes, plan.arena_bytes() / 3);
  EXPECT_LE(estimate.bytes, 2 * plan.arena_bytes());
  const double seconds = predict_step(plan, config, ceilings, &cluster).seconds;
  EXPECT_GE(estimate.seconds, seconds / 2);
  EXPECT_LE(estimate.seconds, seconds * 2);
}

TEST(Estimate, StateIsAtMostThePlansAndTimeIsCloseToIt) {
  for (const auto& [mesh, strategy, experts] : std::vector<std::tuple<const char*, const char*, int64_t>>{
           {"replicate=8", "auto", 0},
           {"shard=8", "auto", 0},
           {"shard=8", "optim_grads_params", 0},
           {"tensor=4,shard=2", "auto", 0},
           {"pipeline=4,shard=2", "auto", 0},
           {"context=4,shard=2", "auto", 0},
           {"shard=8,expert=8", "auto", 8},
           {"tensor=2,shard=4,expert=4", "auto", 8},
           {"tensor=2,pipeline=2,shard=2,expert=4,expert_tensor=1", "auto", 8}}) {
    SCOPED_TRACE(cat(mesh, ", ", strategy, ", ", experts, " experts"));
    expect_near_plan(config_on(mesh, strategy, experts));
  }
}

TEST(Estimate, ConsidersEveryLayer) {
  for (const char* mesh : {"shard=8,expert=8", "tensor=2,shard=4,expert=4"}) {
    SCOPED_TRACE(mesh);
    RunConfig config = config_on(mesh, "auto", 8);
    config.model.moe.moe_layer_freq = "([0]*6+[1]*2)";
    config.model.moe.moe_ffn_hidden_size = 512;
    config.model.attention.window_size = "127,0";
    config.model.attention.window_attn_skip_freq = "4";
    config.model.attention.v_head_dim = 64;
    config.validate();
    expect_near_plan(config);
  }
}

TEST(Estimate, CountsTheHeadsOfRecurrentLayers) {
  for (void (*add)(ModelConfig&) : {testing::add_linear_attention, testing::add_short_convolutions}) {
    RunConfig config = config_on("context=4,shard=2", "auto", 0);
    add(config.model);
    config.model.linear_attention.linear_key_head_dim = config.model.linear_attention.linear_value_head_dim = 128;
    config.validate();
    expect_near_plan(config);
  }
}

TEST(Estimate, CountsBuffersOfCommunication) {
  RunConfig config = config_on("shard=8,expert=8", "auto", 8);
  config.parallel.peer_memory = false;
  config.model.moe.moe_exchange_factor = 3;
  expect_near_plan(config);
}

TEST(Estimate, CountsRowsOncePerDestinationHost) {
  for (const double factor : {0.0, 1.2}) {
    SCOPED_TRACE(cat("parts of ", factor));
    RunConfig config = config_on("shard=8,expert=8", "auto", 8);
    config.parallel.hierarchical_expert_parallel_size = 4;
    config.model.moe.moe_exchange_factor = factor;
    expect_near_plan(config);
  }
}

}  // namespace
}  // namespace witan
