// No layout changes the result of models whose layers have inputs besides the residual stream (value embeddings, skips,
// the embedding), or without attention, with norms without weights, or with bounded logits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "support/long_form.h"
#include "support/message_of.h"
#include "support/model_variants.h"
#include "train/step/layouts/one_rank.h"

namespace witan {
namespace {

using testing::expect_bits_of_one_rank;
using testing::expect_recomputation_changes_no_bit;
using testing::expect_steps_of_one_rank;
using testing::kFsdp;
using testing::laid_out;
using testing::LaidOut;
using testing::run_engine;
using testing::small_config;
using testing::Trajectory;

const int64_t kSteps = testing::steps_of(3, 20);

const std::vector<LaidOut> kLayouts = {{"replicate=2,expert=2"},
                                       {"replicate=4,expert=4"},
                                       {"shard=2,expert=2", "optim"},
                                       {"shard=4,expert=2", kFsdp},
                                       {"tensor=2,expert=2,expert_tensor=1"},
                                       {"shard=2,tensor=2,expert_tensor=2", kFsdp},
                                       {"tensor=4,expert=4,expert_tensor=1"},
                                       {"context=2,expert=2"}};

RunConfig nanogpt(int64_t experts) {
  RunConfig config = small_config();
  ModelConfig& model = config.model;
  testing::add_nanogpt_variants(model);
  model.vocab_size = 60;
  model.make_vocab_size_divisible_by = 16;
  model.dtype = "float64";
  model.init_method_std = 0.5;
  model.attention.num_attention_heads = model.attention.num_query_groups = 4;
  model.attention.softmax_scale = 0.12;
  model.logit_soft_cap = 15;
  model.moe.num_experts = experts;
  return config;
}

TEST(JoinedLayers, EveryLayoutEqualsOneRankInFloat64) {
  const Trajectory one = expect_steps_of_one_rank(nanogpt(8), kLayouts, kSteps);
  EXPECT_LT(one.losses.back(), one.losses.front());
}

// Tensor parallelism without sequence parallelism, and with more ranks than key/value groups.
TEST(JoinedLayers, DenseModelsEqualOneRankToo) {
  for (const int64_t groups : {4, 1})
    for (const bool sequence_parallel : {false, true}) {
      RunConfig config = nanogpt(0);
      config.model.attention.num_query_groups = groups;
      const Trajectory one = run_engine(laid_out(config, {""}), kSteps);
      RunConfig divided = laid_out(config, {"tensor=2"});
      divided.parallel.sequence_parallel = sequence_parallel;
      testing::expect_equal(one, run_engine(divided, kSteps), 1e-9,
                            cat(groups, " groups", sequence_parallel ? ", sequence parallel" : ""));
    }
}

TEST(JoinedLayers, DeterministicLayoutsHaveTheBitsOfOneRank) {
  RunConfig config = nanogpt(8);
  config.model.dtype = "float32";
  config.parallel.deterministic = true;
  config.train.global_batch_size = 8;
  expect_bits_of_one_rank(config, {kLayouts[0], kLayouts[1], kLayouts[3]}, 3);
}

TEST(JoinedLayers, RecomputationChangesNoBit) {
  RunConfig config = laid_out(nanogpt(8), {"shard=2,expert=2", kFsdp});
  config.model.dtype = "float32";
  expect_recomputation_changes_no_bit(config, 3);
}

// Planned bytes equal the run's on every rank; a tied head after a norm without weights has no unit.
TEST(JoinedLayers, TakeThePlannedBytes) {
  for (const LaidOut& layout : {LaidOut{""}, kLayouts[1], kLayouts[3], kLayouts[5]})
    for (const char* granularity : {"none", "full"}) {
      RunConfig config = laid_out(nanogpt(8), layout);
      config.model.dtype = "bfloat16";
      config.model.recompute_granularity = granularity;
      config.model.init_method = "normal";
      config.model.untie_embeddings_and_output_weights = layout.mesh.empty();
      EXPECT_EQ(run_engine(config, 2).arena_high_water, make_plan(resolve(config, {})).arena_bytes())
          << described(layout) << ", " << granularity;
    }
}

// Gemma 4's small models.
RunConfig small_gemma(int64_t experts) {
  RunConfig config = small_config();
  ModelConfig& model = config.model;
  testing::add_small_gemma4_features(model, "5,0");
  model.vocab_size = 60;
  model.make_vocab_size_divisible_by = 16;
  model.dtype = "float64";
  model.attention.num_attention_heads = 4;
  model.attention.window_num_query_groups = 4;
  model.attention.num_query_groups = 2;
  model.moe.num_experts = experts;
  config.data.seq_length = 16;
  return config;
}

const std::vector<LaidOut> kOfGemma = {{"replicate=2,expert=2"},
                                       {"shard=4,expert=2", kFsdp},
                                       {"tensor=2,expert=2,expert_tensor=1"},
                                       {"tensor=4,expert_tensor=1"},
                                       {"shard=2,tensor=2,expert_tensor=2", kFsdp},
                                       {"context=4,expert=2"},
                                       {.mesh = "context=4,expert=2", .comm = "p2p"},
                                       {"context=2,tensor=2,expert_tensor=1"}};

TEST(BorrowedKeys, EveryLayoutEqualsOneRankInFloat64) {
  expect_steps_of_one_rank(small_gemma(8), kOfGemma, kSteps);
}

// Tensor parallelism without sequence parallelism, and with more ranks than key/value groups.
TEST(BorrowedKeys, DenseModelsEqualOneRankToo) {
  for (const int64_t groups : {2, 1})
    for (const bool sequence_parallel : {false, true}) {
      RunConfig config = small_gemma(0);
      config.model.attention.num_query_groups = groups;
      config.model.recompute_granularity = sequence_parallel ? "full" : "none";
      const Trajectory one = run_engine(laid_out(config, {""}), kSteps);
      RunConfig divided = laid_out(config, {"tensor=2"});
      divided.parallel.sequence_parallel = sequence_parallel;
      testing::expect_equal(one, run_engine(divided, kSteps), 1e-9,
                            cat(groups, " groups", sequence_parallel ? ", sequence parallel" : ""));
    }
}

TEST(BorrowedKeys, RecomputationChangesNoBit) {
  RunConfig config = laid_out(small_gemma(8), {"shard=2,expert=2", kFsdp});
  config.model.dtype = "float32";
  expect_recomputation_changes_no_bit(config, 3);
}

TEST(BorrowedKeys, TakeThePlannedBytes) {
  for (const LaidOut& layout : {LaidOut{""}, kOfGemma[1], kOfGemma[4], kOfGemma[7]})
    for (const char* granularity : {"none", "selective", "full"}) {
      RunConfig config = laid_out(small_gemma(8), layout);
      config.model.dtype = "bfloat16";
      config.model.recompute_granularity = granularity;
      EXPECT_EQ(run_engine(config, 2).arena_high_water, make_plan(resolve(config, {})).arena_bytes())
          << described(layout) << ", " << granularity;
    }
}

// A stage may have layers that borrow keys if it also has those that lend them.
TEST(BorrowedKeys, StayWithinAPipelineStage) {
  RunConfig config = small_gemma(0);
  config.model.hidden_size_per_layer_input = 0;
  config.model.num_layers = 6;
  RunConfig divided = laid_out(config, {"pipeline=2"});
  divided.parallel.decoder_first_pipeline_num_layers = 2;
  testing::expect_equal(run_engine(laid_out(config, {""}), kSteps), run_engine(divided, kSteps), 1e-9, "two stages");
  divided.parallel.decoder_first_pipeline_num_layers = 4;
  EXPECT_THAT(
      test::message_of<ConfigError>([&] { run_engine(divided, 1); }),
      ::testing::HasSubstr("num_kv_shared_layers = 2: layer 4 attends to keys and values of layer 2, which is in "
                           "another pipeline stage: let one stage, and one virtual one, have all of these "
                           "layers, or set pipeline_model_parallel_size = 1"));
}

TEST(JoinedLayers, RefusesPipelines) {
  const auto why = [](auto&& change) {
    RunConfig config = small_config();
    config.parallel.ranks = config.parallel.pipeline_model_parallel_size = 2;
    change(config.model);
    return test::message_of<ConfigError>([&] { config.validate(); });
  };
  const std::string rest =
      " has later layers read what earlier ones computed, and stages of a pipeline pass on the residual stream alone; "
      "set pipeline_model_parallel_size = 1, and divide the model by data_parallel_sharding_strategy, expert or tensor "
      "parallelism instead";
  EXPECT_EQ(why([](ModelConfig& c) { c.skip_connections = true; }),
            "pipeline_model_parallel_size = 2: skip_connections = true" + rest);
  EXPECT_EQ(why([](ModelConfig& c) { c.embedding_residual = true; }),
            "pipeline_model_parallel_size = 2: embedding_residual = true" + rest);
  EXPECT_EQ(why([](ModelConfig& c) { c.value_embedding_freq = "[1,1]"; }),
            "pipeline_model_parallel_size = 2: value_embedding_freq = [1,1]" + rest);
  EXPECT_EQ(why([](ModelConfig& c) { c.hidden_size_per_layer_input = 4; }),
            "pipeline_model_parallel_size = 2: hidden_size_per_layer_input = 4" + rest);
}

}  // namespace
}  // namespace witan
