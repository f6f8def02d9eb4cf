// recipes/parity/nanogpt_moe.toml, Tutel's example of modded-nanogpt with experts: its parameter count on 8 ranks, its
// schedule, and the same recipe at a width that a CPU can train.
#include <gtest/gtest.h>

#include "train/step/run_support.h"
#include "witan/model/counts.h"
#include "witan/moe/config.h"
#include "witan/optim/lr_schedule.h"

namespace witan {
namespace {

RunConfig recipe() {
  RunConfig config;
  read_toml(config.fields(), WITAN_SOURCE_DIR "/recipes/parity/nanogpt_moe.toml");
  config.validate();
  return config;
}

TEST(NanogptParity, EachRankHasAnEighthOfTheExperts) {
  const ParameterCounts counts = count_parameters(recipe().model);
  constexpr int64_t kUnread = 17;  // of the example's 64 factors, unused there (tests/cli/args/recipes_test.cpp)
  EXPECT_EQ(counts.exact - counts.experts + kUnread, 699'859'008);
  EXPECT_EQ(counts.experts / recipe().parallel.expert_model_parallel_size, 402'653'184);
  EXPECT_EQ(recipe().model.moe.expert_capacity(4096), 563) << "int(1.1 * (4096 / 8))";
}

// The rate is constant for 55 % of 1750 steps and then falls linearly to a tenth.
TEST(NanogptParity, ScheduleMatchesTheExample) {
  const RunConfig config = recipe();
  const auto rate = [&](int64_t iteration) {
    return learning_rate(config.optimizer, config.train.train_iters, iteration);
  };
  for (const int64_t iteration : {1, 500, 962}) EXPECT_EQ(rate(iteration), 0.008) << iteration;
  for (const int64_t iteration : {1000, 1300, 1749}) {
    const double left = (1 - static_cast<double>(iteration) / 1750) / 0.45;
    EXPECT_NEAR(rate(iteration), 0.008 * (left + (1 - left) * 0.1), 0.008 * 1e-3) << iteration;
  }
  EXPECT_EQ(rate(1750), 0.0008);
}

RunConfig narrow(int64_t ranks) {
  RunConfig config = recipe();
  config.model.hidden_size = 32;
  config.model.attention.kv_channels = 8;
  config.model.attention.num_attention_heads = config.model.attention.num_query_groups = 4;
  config.model.mlp.ffn_hidden_size = 64;
  config.model.vocab_size = 61;
  config.model.logit_scale = 1 / std::sqrt(32.0);
  config.model.dtype = "float32";
  config.model.norm.norm_epsilon = 1e-6;
  config.model.moe.num_experts = 4;
  config.data.seq_length = 32;
  config.train.train_iters = 40;
  config.train.global_batch_size = 4;
  config.optimizer.lr_wsd_decay_iters = 18;
  config.parallel = {ranks, ranks, 1};
  return config;
}

// The example averages gradients of experts as if all ranks had the same experts. Here, ranks that shard experts,
// checked by --check-states, train like one rank.
TEST(NanogptParity, ExpertParallelRanksLearnLikeOneRank) {
  const auto train = [](int64_t ranks) {
    return testing::run_engine(narrow(ranks), 40, [](const RunConfig& config, const Layout& layout, int rank, int64_t) {
      return testing::own_batches(config, layout, rank, 0);  // the same at every step
    });
  };
  const testing::Trajectory one = train(1), four = train(4);
  EXPECT_LT(one.losses.back(), one.losses.front() - 1);
  EXPECT_LT(four.losses.back(), four.losses.front() - 1);
  for (size_t step = 0; step < 3; ++step) {
    EXPECT_NEAR(four.losses[step], one.losses[step], 1e-4 * one.losses[step]) << step;
    EXPECT_NEAR(four.norms[step], one.norms[step], 1e-3 * one.norms[step]) << step;
  }
}

}  // namespace
}  // namespace witan
