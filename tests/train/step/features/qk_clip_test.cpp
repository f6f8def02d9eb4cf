#include "witan/train/step/features/qk_clip.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "support/message_of.h"
#include "train/step/layouts/one_rank.h"

namespace witan {
namespace {

using testing::kFsdp;
using testing::laid_out;
using testing::LaidOut;
using testing::run_engine;
using testing::Trajectory;

// The logits of many heads, but not of all, exceed the threshold.
RunConfig recipe(const char* dtype, double threshold = 0.02) {
  RunConfig config = testing::small_config();
  config.model.dtype = dtype;
  config.model.init_method_std = 0.1;
  config.data.seq_length = 16;
  config.model.attention.num_attention_heads = 8;
  config.model.attention.num_query_groups = 4;
  config.train.global_batch_size = 8;
  config.train.micro_batch_size = 1;
  config.optimizer.optimizer = "muon";
  config.optimizer.qk_clip = true;
  config.optimizer.qk_clip_threshold = threshold;
  return laid_out(config, {});
}

// With one query group in a layer, both projections are scaled by the largest reported logit.
TEST(QkClip, ScalesQueriesAndKeysByReportedLogits) {
  for (const double alpha : {0.5, 0.25, 1.0}) {
    RunConfig off = recipe("float64");
    off.model.num_layers = 1;
    off.model.moe.num_experts = 0;
    off.model.attention.num_query_groups = 1;
    off.model.add_bias_linear = true;
    off.optimizer.qk_clip = false;
    RunConfig on = off;
    on.optimizer.qk_clip = true;
    on.optimizer.qk_clip_alpha = alpha;
    const Trajectory plain = run_engine(off, 1), clipped = run_engine(on, 1);
    ASSERT_EQ(clipped.max_logits.size(), 1u);
    const double gamma = on.optimizer.qk_clip_threshold / clipped.max_logits[0];
    ASSERT_LT(gamma, 1);
    int64_t queries = 0, keys = 0, same = 0;
    for (size_t i = 0; i < plain.weights.size(); ++i) {
      const auto& [a, b] = std::pair{plain.weights[i], clipped.weights[i]};
      const auto is = [&](double factor) {
        for (size_t j = 0; j < a.size(); ++j)
          if (!(std::abs(a[j] * factor - b[j]) <= 1e-12 * std::abs(a[j]))) return false;
        return true;
      };
      if (std::ranges::all_of(a, [](double x) { return x == 0; }))
        continue;
      else if (is(1))
        ++same;
      else if (alpha == 0.5 ? is(std::sqrt(gamma)) : is(std::pow(gamma, alpha)))
        ++queries;
      else if (is(std::pow(gamma, 1 - alpha)))
        ++keys;
      else
        ADD_FAILURE() << "a tensor of " << a.size() << " changed otherwise";
    }
    // Weights and biases: with alpha 0.5 both have the same factor, with 1 keys are unchanged.
    EXPECT_EQ(queries + keys, alpha == 1 ? 2 : 4) << alpha;
    EXPECT_GT(same, 4);
  }
}

// A small version of DeepSeek's attention.
RunConfig latent(RunConfig config, int64_t q_lora_rank) {
  AttentionConfig& attention = config.model.attention;
  attention.multi_latent_attention = true;
  attention.num_query_groups = attention.num_attention_heads;
  attention.qk_layernorm = true;  // norms of the latents, which are not clipped
  attention.q_lora_rank = q_lora_rank;
  attention.kv_lora_rank = 12;
  attention.latent_qk_head_dim = 6;
  attention.qk_pos_emb_head_dim = 4;
  attention.v_head_dim = 5;
  return config;
}

// Clipping by the logits of one head: query rows are scaled by gamma^alpha or, where they meet the shared keys, by
// gamma; in the joint projection of keys and values only the keys are scaled, by gamma^(1 - alpha).
TEST(QkClip, ScalesPartsOfLatentAttention) {
  for (const int64_t q_lora_rank : {0, 8}) {
    RunConfig off = latent(recipe("float64"), q_lora_rank);
    off.model.num_layers = 1;
    off.model.moe.num_experts = 0;
    off.model.attention.num_attention_heads = off.model.attention.num_query_groups = 1;
    off.optimizer.qk_clip_threshold = 1e-3;
    off.optimizer.qk_clip_alpha = 0.25;
    off.optimizer.qk_clip = false;
    RunConfig on = off;
    on.optimizer.qk_clip = true;
    const Trajectory plain = run_engine(off, 1), clipped = run_engine(on, 1);
    ASSERT_EQ(clipped.max_logits.size(), 1u);
    const double gamma = on.optimizer.qk_clip_threshold / clipped.max_logits[0];
    ASSERT_LT(gamma, 0.9);
    const auto rows = static_cast<size_t>(6 + 4),
               width = static_cast<size_t>(q_lora_rank > 0 ? 8 : off.model.hidden_size);
    int queries = 0, keys = 0;
    for (size_t i = 0; i < plain.weights.size(); ++i) {
      const auto& [a, b] = std::pair{plain.weights[i], clipped.weights[i]};
      if (a == b) continue;
      const bool of_queries = a.size() == rows * width;
      ++(of_queries ? queries : keys);
      const size_t columns = of_queries ? width : 12;
      ASSERT_EQ(a.size(), columns * (of_queries ? 6 + 4 : 6 + 5));
      for (size_t j = 0; j < a.size(); ++j) {
        const bool still = j / columns < 6;
        const double factor = of_queries ? std::pow(gamma, still ? 0.25 : 1.0) : still ? std::pow(gamma, 0.75) : 1.0;
        EXPECT_NEAR(b[j], factor * a[j], 1e-12 * std::abs(a[j])) << i << " " << j;
      }
    }
    EXPECT_EQ(queries, 1);
    EXPECT_EQ(keys, 1);
  }
}

TEST(QkClip, LayoutsOfLatentAttentionEqualOneRankInFloat64) {
  const RunConfig whole = latent(recipe("float64", 0.01), 8);
  const Trajectory one = testing::expect_steps_of_one_rank(whole,
                                                           {{"shard=4,expert=2", kFsdp},
                                                            {"shard=4", "optim_grads"},
                                                            {"shard=2,context=2"},
                                                            {.mesh = "shard=2,context=2", .comm = "p2p"},
                                                            {"tensor=2,expert_tensor=2"},
                                                            {"shard=2,pipeline=2", "auto"}},
                                                           3);
  RunConfig unclipped = whole;
  unclipped.optimizer.qk_clip_threshold = 1e6;
  EXPECT_NE(one.losses, run_engine(unclipped, 3).losses);
}

TEST(QkClip, LogitsStayBelowTheThreshold) {
  RunConfig off = recipe("float32"), on = off;
  on.optimizer.qk_clip_threshold = 0.5;
  off.optimizer.qk_clip_threshold = 1e6;  // records logits without clipping
  on.optimizer.lr = off.optimizer.lr = 0.05;
  on.optimizer.lr_warmup_iters = off.optimizer.lr_warmup_iters = 0;
  const Trajectory free = run_engine(off, 12), bounded = run_engine(on, 12);
  EXPECT_EQ(free.max_logits.size(), 12u);
  EXPECT_GT(free.max_logits.back(), 2 * bounded.max_logits.back());
  EXPECT_LT(bounded.max_logits.back(), 2);
  RunConfig none = off;
  none.optimizer.qk_clip = false;
  EXPECT_EQ(run_engine(none, 12).losses, free.losses) << "recording logits changes nothing";
  EXPECT_TRUE(run_engine(none, 1).max_logits.empty());
}

TEST(QkClip, LayoutsEqualOneRankInFloat64) {
  const int64_t steps = 3;
  const Trajectory one = testing::expect_steps_of_one_rank(recipe("float64"),
                                                           {{"replicate=2"},
                                                            {"shard=4,expert=2"},
                                                            {"shard=4", "optim_grads"},
                                                            {"shard=4,expert=4", kFsdp},
                                                            {"replicate=2,shard=2", kFsdp},
                                                            {"shard=2,context=2"},
                                                            {.mesh = "shard=2,context=2", .comm = "p2p"},
                                                            {"tensor=2,expert_tensor=2"},
                                                            {"tensor=8,expert_tensor=1"},  // ranks share a group
                                                            {"shard=2,tensor=2,expert_tensor=2", kFsdp},
                                                            {"shard=2,pipeline=2", "auto"},
                                                            {"shard=2,pipeline=2", kFsdp}},
                                                           steps);
  EXPECT_NE(one.losses, run_engine(recipe("float64", 1e6), steps).losses);
}

// With float16 and bfloat16 values the masters are scaled; Adam's shards begin anywhere in a head.
TEST(QkClip, DeterministicLayoutsHaveTheBitsOfOneRank) {
  for (const char* optimizer : {"muon", "adam"})
    for (const char* dtype : {"bfloat16", "float16"}) {
      RunConfig config = recipe(dtype);
      config.optimizer.optimizer = optimizer;
      config.optimizer.initial_loss_scale = 256;
      config.parallel.deterministic = true;
      const Trajectory one = run_engine(config, 3);
      for (const LaidOut& layout : std::vector<LaidOut>{
               {"replicate=4,expert=2"}, {"shard=4,expert=2"}, {"shard=4,expert=2", kFsdp}, {"shard=2,pipeline=2"}}) {
        SCOPED_TRACE(cat(optimizer, ", ", dtype, ", ", described(layout)));
        const Trajectory several = run_engine(laid_out(config, layout), 3);
        EXPECT_EQ(one.losses, several.losses);
        EXPECT_EQ(one.max_logits, several.max_logits);
        EXPECT_TRUE(one.weights == several.weights);
      }
    }
}

// A recomputed forward records the same logits; a step in several passes uses those of its last computation.
TEST(QkClip, RecomputationAndThreadsChangeNothing) {
  RunConfig config = laid_out(recipe("float32"), {"shard=2,expert=2"});
  const Trajectory plain = run_engine(config, 3);
  testing::expect_repeats(config, 3);
  config.model.recompute_granularity = "full";
  const Trajectory again = run_engine(config, 3);
  EXPECT_EQ(plain.max_logits, again.max_logits);
  EXPECT_EQ(plain.losses, again.losses);
}

TEST(QkClip, IsRefusedWhereItHasNoEffect) {
  RunConfig config = recipe("float32");
  config.model.attention.qk_layernorm = true;
  EXPECT_NE(test::message_of<ConfigError>([&] { config.validate(); }).find("qk_clip = true with qk_layernorm"),
            std::string::npos);
}

}  // namespace
}  // namespace witan
