// Axes do not disturb each other: layouts of 8 ranks that mix them train as one rank does.
#include <gtest/gtest.h>

#include <span>

#include "train/run_support.h"

namespace witan {
namespace {

using testing::run_engine;
using testing::Trajectory;

constexpr int64_t kSteps = 3;

// Ranks that are left divide samples. Experts as in the expert view: `expert` ranks share a set, of whom
// `expert_tensor` divide each; a dense model knows neither.
struct Mix {
  int64_t tensor, context, pipeline, expert, expert_tensor = 1;
  int64_t optimizers = 0;      // distributed ones; 0: every rank has the whole
  int64_t virtual_stages = 0;  // of a pipeline rank; 0: one
  bool loss_parallel = true;
};

const std::vector<Mix> kMixes = {
    // two axes
    {2, 2, 1, 1},
    {2, 1, 2, 1},
    {1, 2, 2, 1},
    {4, 2, 1, 1},
    {2, 4, 1, 1},
    {1, 2, 4, 1},
    {2, 1, 4, 1},
    // and experts, over ranks of one or several of them
    {2, 2, 1, 2},
    {2, 2, 1, 4},
    {2, 1, 2, 2},
    {1, 2, 2, 4},
    {1, 4, 1, 2},
    {2, 1, 1, 2, 2},
    {2, 2, 1, 2, 2},
    {2, 2, 1, 1, 4},
    // three axes and more
    {2, 2, 2, 1},
    {2, 2, 2, 2},
    {2, 2, 2, 2, 2},
    // with distributed optimizers
    {2, 2, 1, 2, 1, 1},
    {1, 2, 2, 2, 1, 1},
    {2, 1, 2, 2, 1, 1},
    {2, 1, 1, 2, 2, 2},
    {1, 2, 1, 2, 1, 2},
    // interleaved stages; logits that every rank of the tensor axis has whole
    {2, 1, 2, 1, 1, 0, 2},
    {1, 2, 2, 2, 1, 1, 2},
    {2, 2, 1, 2, 1, 0, 0, false},
};

std::string describe(const Mix& mix) {
  return cat("tensor ", mix.tensor, ", context ", mix.context, ", pipeline ", mix.pipeline, " x ", mix.virtual_stages,
             ", experts over ", mix.expert, " x ", mix.expert_tensor, ", optimizers ", mix.optimizers,
             mix.loss_parallel ? "" : ", whole logits");
}

RunConfig mixed(RunConfig config, const Mix& mix) {
  ParallelConfig& parallel = config.parallel;
  const bool dense = config.model.moe.num_experts == 0;
  parallel.ranks = 8;
  parallel.tensor_model_parallel_size = mix.tensor;
  parallel.sequence_parallel = mix.tensor > 1;
  parallel.loss_parallel = mix.loss_parallel;
  parallel.context_parallel_size = mix.context;
  parallel.pipeline_model_parallel_size = mix.pipeline;
  parallel.num_virtual_stages_per_pipeline_rank = mix.virtual_stages;
  parallel.expert_model_parallel_size = dense ? 1 : mix.expert;
  parallel.expert_tensor_parallel_size = dense ? 0 : mix.expert_tensor;
  parallel.use_distributed_optimizer = mix.optimizers > 0;
  parallel.num_distributed_optimizer_instances = std::max<int64_t>(mix.optimizers, 1);
  return config;
}

// The default recipe, as deep and as wide as the axes ask for.
RunConfig recipe() {
  RunConfig config;
  config.model.dtype = "float64";
  config.model.num_layers = 4;
  config.model.hidden_size = 32;
  config.model.vocab_size = 64;
  config.model.mlp.ffn_hidden_size = 24;
  config.model.attention.num_attention_heads = 8;
  config.model.attention.num_query_groups = 4;
  config.model.moe.moe_z_loss_coeff = 1e-3;
  config.data.seq_length = 16;
  config.train.micro_batch_size = 1;
  config.train.global_batch_size = 8;
  config.train.sample_tokens = 0;
  config.parallel = {1, 1, 1};
  return config;
}

void expect_mixes(const RunConfig& config, std::span<const Mix> mixes = kMixes) {
  const Trajectory one = run_engine(config, kSteps);
  for (const Mix& mix : mixes) testing::expect_equal(one, run_engine(mixed(config, mix), kSteps), 1e-9, describe(mix));
}

TEST(MixedLayouts, TheRecipeEqualsOneRankInFloat64) {
  expect_mixes(recipe());
}

TEST(MixedLayouts, ItsDenseTwinEqualsOneRankInFloat64) {
  RunConfig config = recipe();
  config.model.moe.num_experts = 0;
  expect_mixes(config);
}

// What axes need not divide divides nothing; what they divide has odd parts.
TEST(MixedLayouts, OddSizesEqualOneRankInFloat64) {
  RunConfig config = recipe();
  config.model.hidden_size = 27;
  config.model.vocab_size = 4 * 17;
  config.model.mlp.ffn_hidden_size = 4 * 7;
  config.model.attention.num_attention_heads = 12;
  config.model.attention.kv_channels = 6;
  config.model.moe.num_experts = 12;
  config.model.moe.moe_router_topk = 3;
  config.data.seq_length = 24;
  expect_mixes(config);
}

// Masks, documents and recomputation under three axes and experts.
TEST(MixedLayouts, WhatDependsOnPositionsEqualsOneRankInFloat64) {
  const std::vector<Mix> mixes = {{2, 2, 2, 2}, {2, 2, 1, 4, 1, 1}, {1, 2, 2, 2, 1, 1, 2}};
  for (const char* granularity : {"selective", "full"}) {
    RunConfig config = recipe();
    testing::drop(config);
    config.data.reset_attention_mask = true;
    config.data.reset_position_ids = true;
    config.model.recompute_granularity = granularity;
    expect_mixes(config, mixes);
  }
}

}  // namespace
}  // namespace witan
