// Pipeline stages train like one model: the layout never changes the result.
#include <gtest/gtest.h>

#include "train/step/run_support.h"

namespace witan {
namespace {

using testing::run_engine;
using testing::small_config;
using testing::Trajectory;

RunConfig layered_config(int64_t layers) {
  RunConfig config = small_config();
  config.model.num_layers = layers;
  config.train.micro_batch_size = 1;
  config.train.global_batch_size = 8;
  return config;
}

void expect_equal(const Trajectory& a, const Trajectory& b, double tolerance) {
  ASSERT_EQ(a.losses.size(), b.losses.size());
  for (size_t step = 0; step < a.losses.size(); ++step) {
    EXPECT_NEAR(a.losses[step], b.losses[step], tolerance * std::abs(a.losses[step])) << "loss of step " << step;
    EXPECT_NEAR(a.norms[step], b.norms[step], tolerance * std::abs(a.norms[step])) << "gradient norm of step " << step;
  }
  ASSERT_EQ(a.weights.size(), b.weights.size());
  for (size_t i = 0; i < a.weights.size(); ++i)
    for (size_t j = 0; j < a.weights[i].size(); ++j)
      ASSERT_NEAR(a.weights[i][j], b.weights[i][j], 10 * tolerance) << "parameter " << i << ", element " << j;
}

// A pipeline's settings; missing keys keep their values.
struct Cut {
  int64_t stages = 1, chunks = 0, first = 0, last = 0, ranks = 0, expert = 1;
};

RunConfig divided(RunConfig config, const Cut& cut) {
  ParallelConfig& parallel = config.parallel;
  parallel.pipeline_model_parallel_size = cut.stages;
  parallel.num_virtual_stages_per_pipeline_rank = cut.chunks;
  parallel.decoder_first_pipeline_num_layers = cut.first;
  parallel.decoder_last_pipeline_num_layers = cut.last;
  parallel.ranks = std::max(cut.ranks, cut.stages);
  parallel.expert_model_parallel_size = cut.expert;
  return config;
}

std::string text_of(const Cut& cut) {
  return cat(cut.stages, " stages, ", cut.chunks, " chunks, first ", cut.first, ", last ", cut.last, ", ", cut.ranks,
             " ranks, experts over ", cut.expert);
}

void expect_one_rank_in_float64(RunConfig config, const std::vector<Cut>& cuts) {
  config.model.dtype = "float64";
  const Trajectory one = run_engine(config, 4);
  for (const Cut& cut : cuts) {
    SCOPED_TRACE(text_of(cut));
    expect_equal(one, run_engine(divided(config, cut), 4), 1e-9);
  }
}

TEST(Pipeline, DenseEqualsOneRankInFloat64) {
  for (const bool untied : {true, false}) {
    RunConfig config = layered_config(5);
    config.model.moe.num_experts = 0;
    config.model.untie_embeddings_and_output_weights = untied;
    expect_one_rank_in_float64(config, {{.stages = 2},
                                        {.stages = 4},
                                        {.stages = 2, .chunks = 2},
                                        {.stages = 3, .first = 2, .last = 1},
                                        {.stages = 2, .ranks = 4}});
  }
}

TEST(Pipeline, ExpertsAndTheirLossesEqualOneRankInFloat64) {
  RunConfig config = layered_config(5);
  config.model.moe.moe_z_loss_coeff = 1e-2;
  config.model.moe.moe_layer_freq = "[1,1,0,1,1]";
  expect_one_rank_in_float64(config, {{.stages = 2},
                                      {.stages = 4},
                                      {.stages = 2, .chunks = 2},
                                      {.stages = 2, .last = 1, .ranks = 4, .expert = 2},
                                      {.stages = 2, .ranks = 8, .expert = 2}});
}

// Numbers of micro-batches that the stages do not divide, and fewer micro-batches than stages.
TEST(Pipeline, SupportsAnyNumberOfMicroBatches) {
  for (const int64_t micro_batches : {1, 3, 7}) {
    RunConfig config = layered_config(4);
    config.train.global_batch_size = micro_batches;
    expect_one_rank_in_float64(config, {{.stages = 2}, {.stages = 2, .chunks = 2}, {.stages = 4}});
  }
}

TEST(Pipeline, ModelVariantsEqualOneRankInFloat64) {
  const std::vector<std::pair<const char*, std::function<void(RunConfig&)>>> variants = {
      {"PyTorch's initial values", [](RunConfig& c) { c.model.init_method = "torch"; }},
      {"full recompute", [](RunConfig& c) { c.model.recompute_granularity = "full"; }},
      {"selective recompute, dropout",
       [](RunConfig& c) {
         c.model.recompute_granularity = "selective";
         testing::drop(c);
       }},
      {"learned positions, biases, dropout, dense",
       [](RunConfig& c) {
         c = testing::gpt_run_config();
         c.model.num_layers = 4;
       }},
      {"the embedding and the loss count as layers",
       [](RunConfig& c) {
         c.parallel.account_for_embedding_in_pipeline_split = c.parallel.account_for_loss_in_pipeline_split = true;
         c.model.num_layers = 2;
       }},
  };
  for (const auto& [name, change] : variants) {
    SCOPED_TRACE(name);
    RunConfig config = layered_config(4);
    change(config);
    expect_one_rank_in_float64(config, {{.stages = 2}, {.stages = 2, .chunks = 2}});
  }
}

// With check_states, which compares state, gradients and copies of the embedding.
TEST(Pipeline, StateChecksPass) {
  RunConfig config = divided(layered_config(4), {.stages = 2, .ranks = 4, .expert = 2});
  config.train.check_states = true;
  EXPECT_EQ(run_engine(config, 3).losses.size(), 3u);
}

}  // namespace
}  // namespace witan
