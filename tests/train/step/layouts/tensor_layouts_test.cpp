// Tensor-parallel ranks have the results of one rank: losses and gradient norms of every step, and final parameters.
#include <gtest/gtest.h>

#include "support/message_of.h"
#include "train/step/run_support.h"

namespace witan {
namespace {

using testing::run_engine;
using testing::Trajectory;

// All sizes that a tensor axis must divide evenly are divisible by 4; the vocabulary is not.
RunConfig dense_config() {
  RunConfig config = testing::small_config();
  config.model.dtype = "float64";
  config.model.moe.num_experts = 0;
  config.model.attention.num_query_groups = 4;
  config.train.global_batch_size = 8;
  return config;
}

struct Of {
  int64_t ranks, tensor;
  bool sequence_parallel = false, loss_parallel = true, distributed_optimizer = false;
  int64_t expert = 1, expert_tensor = 0;  // for models with experts
};

RunConfig divided(RunConfig config, const Of& of) {
  config.parallel.ranks = of.ranks;
  config.parallel.tensor_model_parallel_size = of.tensor;
  config.parallel.sequence_parallel = of.sequence_parallel;
  config.parallel.loss_parallel = of.loss_parallel;
  config.parallel.use_distributed_optimizer = of.distributed_optimizer;
  config.parallel.expert_model_parallel_size = of.expert;
  config.parallel.expert_tensor_parallel_size = of.expert_tensor;
  return config;
}

void expect_equal(const Trajectory& one, const Trajectory& several) {
  constexpr double kTolerance = 1e-9;
  ASSERT_EQ(one.losses.size(), several.losses.size());
  for (size_t step = 0; step < one.losses.size(); ++step) {
    EXPECT_NEAR(one.losses[step], several.losses[step], kTolerance * one.losses[step]) << "loss of step " << step;
    EXPECT_NEAR(one.norms[step], several.norms[step], kTolerance * one.norms[step]) << "norm of step " << step;
  }
  ASSERT_EQ(one.weights.size(), several.weights.size());
  for (size_t i = 0; i < one.weights.size(); ++i)
    for (size_t j = 0; j < one.weights[i].size(); ++j)
      ASSERT_NEAR(one.weights[i][j], several.weights[i][j], kTolerance) << "parameter " << i << ", element " << j;
}

void expect_layouts(const RunConfig& config, const std::vector<Of>& layouts, int64_t steps = 6) {
  const Trajectory one = run_engine(config, steps);
  for (const Of& of : layouts) {
    SCOPED_TRACE(cat(of.ranks, " ranks, tensor ", of.tensor, of.sequence_parallel ? ", sequence parallel" : "",
                     of.loss_parallel ? "" : ", whole logits", of.distributed_optimizer ? ", ZeRO-1" : "",
                     ", experts over ", of.expert, " x ", of.expert_tensor));
    expect_equal(one, run_engine(divided(config, of), steps));
  }
}

const std::vector<Of> kEach = {{2, 2}, {4, 4, true}, {4, 2, true, false, true}};

TEST(TensorLayouts, DenseModelsEqualOneRank) {
  expect_layouts(dense_config(),
                 {{2, 2}, {4, 4}, {2, 2, true}, {4, 4, true}, {2, 2, false, false}, {4, 4, true, false}}, 20);
}

TEST(TensorLayouts, ReplicasAndADistributedOptimizerEqualOneRank) {
  expect_layouts(dense_config(), {{4, 2}, {4, 2, true}, {4, 2, false, true, true}, {8, 4, true, false, true}});
}

TEST(TensorLayouts, AnUntiedHeadEqualsOneRank) {
  RunConfig config = dense_config();
  config.model.untie_embeddings_and_output_weights = true;
  expect_layouts(config, kEach);
}

TEST(TensorLayouts, BiasesLearnedPositionsAndLayerNormEqualOneRank) {
  RunConfig config = testing::gpt_run_config();
  config.model.dtype = "float64";
  config.model.attention.max_position_embeddings = 13;
  config.model.attention.num_query_groups = 4;
  config.train.global_batch_size = 8;
  expect_layouts(config, kEach);
}

// There are more ranks than query groups: several ranks share keys and values and divide their channels.
TEST(TensorLayouts, RanksThatShareAQueryGroupEqualOneRank) {
  for (const int64_t groups : {1, 2}) {
    SCOPED_TRACE(cat(groups, " groups"));
    RunConfig config = dense_config();
    config.model.attention.num_query_groups = groups;
    expect_layouts(config, {{2, 2}, {4, 4}, {4, 4, true}, {8, 4, true, false, true}});
    config.model.add_bias_linear = true;
    config.model.mlp.swiglu = false;
    config.model.recompute_granularity = "full";
    config.model.attention.rotary_percent = 0.5;
    expect_layouts(config, {{4, 4, true}}, 3);
  }
  RunConfig config = dense_config();
  config.model.attention.num_query_groups = 1;
  config.parallel.context_parallel_size = 2;
  config.data.seq_length = 16;
  RunConfig one = config;
  one.parallel = {1, 1, 1};
  expect_equal(run_engine(one, 3), run_engine(divided(config, {4, 2, true}), 3));
}

// Runs of one layout have the same bits on any number of threads; they differ from those of one rank.
TEST(TensorLayouts, DeterministicRunsOfALayoutRepeatBitwise) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    RunConfig config = dense_config();
    config.model.moe.num_experts = 8;
    config.model.dtype = dtype;
    config.model.attention.num_query_groups = 1;
    testing::drop(config);
    config.parallel.deterministic = true;
    testing::expect_repeats(
        divided(config, {.ranks = 4, .tensor = 2, .sequence_parallel = true, .expert = 2, .expert_tensor = 2}), 5);
  }
}

// The vocabulary is divided as evenly as possible; neither that nor padding rows of the embedding change the model.
TEST(TensorLayouts, AnyVocabularyEqualsOneRank) {
  for (const char* method : {"normal", "torch"})
    for (const bool untied : {false, true})
      for (const int64_t words : {97, 289}) {
        SCOPED_TRACE(cat(words, " words, ", method, untied ? ", untied" : ""));
        RunConfig config = dense_config();
        config.model.vocab_size = words;
        config.model.init_method = method;
        config.model.untie_embeddings_and_output_weights = untied;
        Trajectory one = run_engine(config, 2);
        const std::vector<Of> layouts = {{2, 2}, {4, 4, true}, {2, 2, true, false}, {4, 4, false, false}};
        for (const Of& of : layouts) expect_equal(one, run_engine(divided(config, of), 2));
        config.model.make_vocab_size_divisible_by = 128;
        for (std::vector<double>& table : one.weights)
          if (static_cast<int64_t>(table.size()) == words * config.model.hidden_size)
            table.resize(static_cast<size_t>(config.model.padded_vocab_size() * config.model.hidden_size), 0);
        expect_equal(one, run_engine(config, 2));
        for (const Of& of : layouts) expect_equal(one, run_engine(divided(config, of), 2));
      }
}

// 65536 elements are one chunk of the gradient norm and of sharding, and 65568 are two.
TEST(TensorLayouts, RanksMayHaveDifferentNumbersOfVocabularyChunks) {
  RunConfig config = dense_config();
  config.model.vocab_size = 2 * 2048 + 1;
  config.train.check_states = true;
  for (const bool untied : {false, true}) {
    config.model.untie_embeddings_and_output_weights = untied;
    const Trajectory one = run_engine(config, 2);
    for (const char* strategy : {"no_shard", "optim", "optim_grads", "optim_grads_params"})
      for (const bool sequence_parallel : {false, true}) {
        SCOPED_TRACE(cat(strategy, untied ? ", untied" : "", sequence_parallel ? ", sequence parallel" : ""));
        RunConfig several = divided(config, {4, 2, sequence_parallel});
        several.parallel.data_parallel_sharding_strategy = strategy;
        expect_equal(one, run_engine(several, 2));
      }
  }
}

TEST(TensorLayouts, RecomputationEqualsOneRank) {
  for (const char* granularity : {"selective", "full"}) {
    RunConfig config = dense_config();
    config.model.recompute_granularity = granularity;
    SCOPED_TRACE(granularity);
    expect_layouts(config, kEach, 3);
  }
}

TEST(TensorLayouts, TorchsInitialValuesEqualOneRank) {
  RunConfig config = dense_config();
  config.model.init_method = "torch";
  expect_layouts(config, kEach, 3);
}

RunConfig moe_config() {
  RunConfig config = dense_config();
  config.model.moe.num_experts = 8;
  config.model.moe.moe_z_loss_coeff = 1e-2;
  return config;
}

TEST(TensorLayouts, ModelsWithExpertsEqualOneRank) {
  expect_layouts(moe_config(),
                 {
                     {.ranks = 2, .tensor = 2, .sequence_parallel = true, .expert_tensor = 1},
                     {.ranks = 2, .tensor = 2, .sequence_parallel = true, .expert_tensor = 2},
                     {.ranks = 4, .tensor = 4, .sequence_parallel = true, .expert = 2, .expert_tensor = 2},
                 },
                 12);
}

TEST(TensorLayouts, ExpertsMayUseRanksOfOtherAxes) {
  expect_layouts(
      moe_config(),
      {
          {.ranks = 2, .tensor = 2, .sequence_parallel = true, .expert = 2, .expert_tensor = 1},
          {.ranks = 2, .tensor = 1, .expert_tensor = 2},
          {.ranks = 4, .tensor = 2, .sequence_parallel = true, .expert = 4, .expert_tensor = 1},
          {.ranks = 4, .tensor = 2, .sequence_parallel = true, .distributed_optimizer = true, .expert = 2},
          {.ranks = 8, .tensor = 2, .sequence_parallel = true, .loss_parallel = false, .expert = 2, .expert_tensor = 4},
      },
      4);
}

TEST(TensorLayouts, AnExpertsCapacityCoversTheWholeMicroBatch) {
  for (const char* policy : {"probs", "position"}) {
    RunConfig config = moe_config();
    config.model.moe.moe_expert_capacity_factor = 0.75;
    config.model.moe.moe_token_drop_policy = policy;
    config.model.recompute_granularity = "full";
    const Trajectory one = run_engine(config, 3);
    for (const double share : one.dropped) EXPECT_GT(share, 0) << "no token was dropped, so the test proves nothing";
    const Trajectory four = run_engine(
        divided(config, {.ranks = 4, .tensor = 2, .sequence_parallel = true, .expert = 2, .expert_tensor = 2}), 3);
    expect_equal(one, four);
    EXPECT_EQ(one.dropped, four.dropped);
  }
}

TEST(TensorLayouts, DropoutEqualsOneRank) {
  for (RunConfig config : {dense_config(), moe_config()}) {
    const Trajectory kept = run_engine(config, 1);
    testing::drop(config);
    EXPECT_GT(std::abs(run_engine(config, 1).losses[0] - kept.losses[0]), 1e-6);
    expect_layouts(
        config,
        {{.ranks = 2, .tensor = 2, .sequence_parallel = true}, {.ranks = 4, .tensor = 4, .sequence_parallel = true}},
        3);
  }
  RunConfig config = dense_config();
  testing::drop(config);
  expect_layouts(config, {{.ranks = 2, .tensor = 2}}, 3);
}

TEST(TensorLayouts, PlansMatchTheMemory) {
  const auto expect_planned = [](RunConfig config, const Of& of) {
    config.train.sample_tokens = 0;
    const RunConfig run = divided(config, of);
    EXPECT_EQ(make_plan(resolve(run, {})).arena_bytes(), run_engine(run, 3).arena_high_water) << of.ranks << " ranks";
  };
  expect_planned(dense_config(), {.ranks = 2, .tensor = 2});
  RunConfig config = moe_config();
  testing::drop(config);
  for (const char* granularity : {"none", "selective", "full"}) {
    config.model.recompute_granularity = granularity;
    expect_planned(config, {.ranks = 4,
                            .tensor = 2,
                            .sequence_parallel = true,
                            .distributed_optimizer = true,
                            .expert = 2,
                            .expert_tensor = 2});
  }
}

TEST(TensorLayouts, ReplicatedValuesStayEqual) {
  RunConfig config = moe_config();
  config.train.check_states = true;
  config.model.recompute_granularity = "selective";
  const Of of{.ranks = 4,
              .tensor = 2,
              .sequence_parallel = true,
              .distributed_optimizer = true,
              .expert = 2,
              .expert_tensor = 2};
  expect_equal(run_engine(config, 2), run_engine(divided(config, of), 2));
}

TEST(TensorLayouts, ExpertsRequireSequenceParallelism) {
  const RunConfig config = divided(moe_config(), {2, 2});
  EXPECT_EQ(test::message_of<ConfigError>([&] { config.validate(); }),
            "tensor_model_parallel_size = 2 with num_experts = 8 needs sequence_parallel = true, so that each rank "
            "dispatches different tokens to the experts");
}

TEST(TensorLayouts, RefusesIndivisibleSizes) {
  const auto refused = [](const std::function<void(RunConfig&)>& change) {
    RunConfig config = divided(dense_config(), {4, 4});
    change(config);
    return test::message_of<ConfigError>([&] { config.validate(); });
  };
  const auto heads = [](int64_t queries, int64_t groups, int64_t channels) {
    return [=](RunConfig& c) {
      c.model.attention.num_attention_heads = queries;
      c.model.attention.num_query_groups = groups;
      c.model.attention.kv_channels = channels;
    };
  };
  EXPECT_EQ(refused(heads(12, 6, 8)),
            "num_query_groups = 6 is not divisible by tensor_model_parallel_size = 4, and ranks cannot split the 8 "
            "channels of each group evenly; set tensor_model_parallel_size to 3 or 6, the nearest that work");
  EXPECT_EQ(refused(heads(4, 1, 6)),
            "num_query_groups = 1 is not divisible by tensor_model_parallel_size = 4, and ranks cannot split the 6 "
            "channels of each group evenly; set tensor_model_parallel_size to 2, the nearest that works");
  EXPECT_EQ(refused([](RunConfig& c) { c.model.vocab_size = 3; }),
            "tensor_model_parallel_size = 4: vocab_size = 3 leaves ranks without an entry; set "
            "tensor_model_parallel_size to at most 3");
  EXPECT_EQ(refused([](RunConfig& c) {
              c.data.seq_length = 3;
              c.model.attention.position_embedding_type = "learned_absolute";
              c.model.attention.max_position_embeddings = 3;
            }),
            "tensor_model_parallel_size = 4: max_position_embeddings = 3 leaves ranks without an entry; set "
            "tensor_model_parallel_size to at most 3");
}

}  // namespace
}  // namespace witan
