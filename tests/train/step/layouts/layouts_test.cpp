// The layout never changes the result.
#include <gtest/gtest.h>

#include "support/long_form.h"
#include "train/step/layouts/recut.h"
#include "train/step/run_support.h"

namespace witan {
namespace {

using testing::drop;
using testing::expect_equal;
using testing::gpt_run_config;
using testing::run_engine;
using testing::small_config;
using testing::Trajectory;

const int64_t kSteps = testing::steps_of(2, 20);
const std::vector<std::pair<int, int>> kLayouts =
    testing::long_form() ? std::vector<std::pair<int, int>>{{2, 2}, {4, 1}, {8, 4}} : std::vector{std::pair{4, 2}};

// The default recipe at its own size in float64, with shorter samples. All layouts are tested with smaller models
// (every_layout_test.cpp).
TEST(Layouts, DefaultRecipeEqualsOneRankInFloat64) {
  RunConfig config;
  config.model.vocab_size = config.data.bpe.vocab_size;
  config.model.dtype = "float64";
  config.data.seq_length = 16;
  config.train.micro_batch_size = 1;
  config.train.global_batch_size = 8;
  config.train.sample_tokens = 0;
  config.parallel = {1, 1, 2};
  const Trajectory one = run_engine(config, kSteps);
  EXPECT_LT(one.losses.back(), one.losses.front());
  for (const auto& [ranks, expert] : kLayouts) {
    config.parallel = {ranks, expert, 1};
    expect_equal(one, run_engine(config, kSteps), 1e-9, cat(ranks, " ranks, experts over ", expert));
  }
}

// Ownership of shards changes no bit, unless distributed-optimizer instances sum separately.
TEST(Layouts, DistributedOptimizersChangeNoBit) {
  for (const auto& [ranks, expert] : std::vector<std::pair<int, int>>{{2, 1}, {4, 2}, {3, 1}}) {
    SCOPED_TRACE(cat(ranks, " ranks, experts over ", expert));
    RunConfig divided = testing::sharded_config(ranks, expert, 1);
    divided.train.global_batch_size = 24;
    RunConfig whole = divided;
    whole.parallel.use_distributed_optimizer = false;
    const int64_t steps = testing::steps_of(3, 6);
    const Trajectory a = run_engine(whole, steps), b = run_engine(divided, steps);
    EXPECT_EQ(a.losses, b.losses);
    EXPECT_EQ(a.norms, b.norms);
    EXPECT_EQ(a.weights, b.weights);
    EXPECT_LT(b.arena_high_water, a.arena_high_water);
  }
  RunConfig config = testing::sharded_config(8, 2, 2);
  config.model.dtype = "float64";
  RunConfig alone = config;
  alone.parallel = {1, 1, 1};
  const int64_t steps = testing::steps_of(3, 20);
  expect_equal(run_engine(alone, steps), run_engine(config, steps), 1e-9, "two optimizers of four ranks each");
}

TEST(Layouts, EveryRunRepeatsBitwiseInFloat32) {
  RunConfig config = small_config();
  for (const auto& [ranks, expert] : std::vector<std::pair<int, int>>{{1, 1}, {2, 2}, {4, 2}, {8, 8}}) {
    config.parallel = {ranks, expert, 1};
    const Trajectory first = run_engine(config, 10), second = run_engine(config, 10);
    EXPECT_EQ(first.losses, second.losses) << ranks << " ranks, experts over " << expert;
    EXPECT_EQ(first.norms, second.norms);
    EXPECT_EQ(first.weights, second.weights);
  }
}

TEST(Layouts, ThreadsChangeNoBit) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    RunConfig config = small_config();
    config.model.dtype = dtype;
    const Trajectory one = run_engine(config, 6);
    config.parallel.threads = 3;
    const Trajectory three = run_engine(config, 6);
    EXPECT_EQ(one.losses, three.losses) << dtype;
    EXPECT_EQ(one.weights, three.weights) << dtype;
  }
}

TEST(Layouts, ModelVariantsEqualOneRankInFloat64) {
  RunConfig config = small_config();
  config.model.dtype = "float64";
  const std::vector<std::pair<const char*, std::function<void(RunConfig&)>>> variants = {
      {"dense", [](RunConfig& c) { c.model.moe.num_experts = 0; }},
      {"top-1, softmax before the choice",
       [](RunConfig& c) {
         c.model.moe.moe_router_topk = 1;
         c.model.moe.moe_router_pre_softmax = true;
       }},
      {"every second block", [](RunConfig& c) { c.model.moe.moe_layer_freq = "2"; }},
      {"layers that differ, full recompute",
       [](RunConfig& c) {
         c.model.moe.moe_layer_freq = "([0]*1+[1]*" + std::to_string(c.model.num_layers - 1) + ")";
         c.model.moe.moe_ffn_hidden_size = 12;
         c.model.attention.window_size = "3,0";
         c.model.attention.window_attn_skip_freq = "2";
         c.model.attention.v_head_dim = 6;
         c.model.recompute_granularity = "full";
       }},
      {"z-loss", [](RunConfig& c) { c.model.moe.moe_z_loss_coeff = 1e-2; }},
      {"sequential experts, full recompute",
       [](RunConfig& c) {
         c.model.moe.moe_grouped_gemm = false;
         c.model.recompute_granularity = "full";
       }},
      {"shared experts", [](RunConfig& c) { c.model.moe.moe_shared_expert_intermediate_size = 20; }},
      {"shared experts, GELU, full recompute",
       [](RunConfig& c) {
         c.model.moe.moe_shared_expert_intermediate_size = 7;
         c.model.mlp.swiglu = false;
         c.model.recompute_granularity = "full";
       }},
      {"layer norm, GELU, untied",
       [](RunConfig& c) {
         c.model.norm.normalization = "LayerNorm";
         c.model.norm.norm_bias = true;
         c.model.mlp.swiglu = false;
         c.model.untie_embeddings_and_output_weights = true;
       }},
      {"capacity, the likeliest are kept", [](RunConfig& c) { c.model.moe.moe_expert_capacity_factor = 0.75; }},
      {"capacity, the first are kept, padded, full recompute",
       [](RunConfig& c) {
         c.model.moe.moe_expert_capacity_factor = 1;
         c.model.moe.moe_token_drop_policy = "position";
         c.model.moe.moe_pad_expert_input_to_capacity = true;
         c.model.moe.moe_router_load_balancing_type = "none";
         c.model.recompute_granularity = "full";
       }},
      {"PyTorch's initial values, all parameters decay",
       [](RunConfig& c) {
         c.model.init_method = "torch";
         c.optimizer.decay_norms_and_biases = true;
       }},
      {"GEGLU",
       [](RunConfig& c) {
         c.model.mlp.swiglu = false;
         c.model.mlp.geglu = true;
       }},
      {"SGD", [](RunConfig& c) { c.optimizer.optimizer = "sgd"; }},
      {"Lion", [](RunConfig& c) { c.optimizer.optimizer = "lion"; }},
      {"AdEMAMix",
       [](RunConfig& c) {
         c.optimizer.optimizer = "ademamix";
         c.optimizer.ademamix_warmup_iters = 4;
       }},
      {"steps are skipped as spikes",
       [](RunConfig& c) {
         c.optimizer.skip_step_sigma = 0.25;
         c.optimizer.skip_step_window = 4;
       }},
      {"moments in bfloat16",
       [](RunConfig& c) { c.optimizer.exp_avg_dtype = c.optimizer.exp_avg_sq_dtype = "bfloat16"; }},
      {"dropout", drop},
      {"learned positions, biases, dropout, dense",
       [](RunConfig& c) {
         const std::string dtype = c.model.dtype;
         c = gpt_run_config();
         c.model.dtype = dtype;
       }},
  };
  for (const auto& [name, change] : variants) {
    RunConfig one = config;
    change(one);
    RunConfig four = one;
    four.parallel = {4, one.model.moe.num_experts > 0 ? 2 : 1, 1};
    const int64_t steps = testing::steps_of(5, 20);
    expect_equal(run_engine(one, steps), run_engine(four, steps), 1e-9, name);
  }
}

// A micro-batch's dropout masks depend on its number, not on the rank that runs it.
TEST(Layouts, DropoutEqualsOneRankInEveryLayout) {
  RunConfig config = small_config();
  config.model.dtype = "float64";
  const Trajectory plain = run_engine(config, 3);
  drop(config);
  const Trajectory one = run_engine(config, 3);
  EXPECT_GT(std::abs(one.losses[0] - plain.losses[0]), 1e-6);
  for (const auto& [ranks, expert] : std::vector<std::pair<int, int>>{{2, 1}, {2, 2}, {4, 2}, {8, 1}, {8, 8}}) {
    config.parallel = {ranks, expert, 1};
    expect_equal(one, run_engine(config, 3), 1e-9, cat(ranks, " ranks, experts over ", expert));
  }
}

TEST(Layouts, ThreadsAndRepetitionChangeNoBitOfDropout) {
  for (RunConfig config : {small_config(), gpt_run_config()}) {
    drop(config);
    const Trajectory one = run_engine(config, 4), again = run_engine(config, 4);
    EXPECT_EQ(one.weights, again.weights);
    config.parallel.threads = 3;
    const Trajectory three = run_engine(config, 4);
    EXPECT_EQ(one.losses, three.losses);
    EXPECT_EQ(one.weights, three.weights);
  }
}

TEST(Layouts, RecomputationChangesNoBitOfDropout) {
  for (RunConfig config : {small_config(), gpt_run_config()}) {
    drop(config);
    const Trajectory kept = run_engine(config, 3);
    for (const char* granularity : {"selective", "full"}) {
      config.model.recompute_granularity = granularity;
      const Trajectory again = run_engine(config, 3);
      EXPECT_EQ(kept.losses, again.losses) << granularity;
      EXPECT_EQ(kept.weights, again.weights) << granularity;
    }
  }
}

TEST(Layouts, CapacityEqualsOneRankInFloat64) {
  RunConfig config = small_config();
  config.model.dtype = "float64";
  config.model.moe.moe_expert_capacity_factor = 1.0;
  const Trajectory one = run_engine(config, 20);
  for (const double share : one.dropped) EXPECT_GT(share, 0) << "no token was dropped, so the test proves nothing";
  for (const auto& [ranks, expert] : std::vector<std::pair<int, int>>{{2, 1}, {2, 2}, {4, 2}, {4, 4}, {8, 8}}) {
    config.parallel = {ranks, expert, 1};
    const Trajectory several = run_engine(config, 20);
    expect_equal(one, several, 1e-9, cat(ranks, " ranks, experts over ", expert));
    EXPECT_EQ(one.dropped, several.dropped);
  }
}

TEST(Layouts, PaddingToCapacityChangesNoBit) {
  RunConfig config = small_config();
  config.model.moe.moe_expert_capacity_factor = 1.0;
  const Trajectory ragged = run_engine(config, 5);
  config.model.moe.moe_pad_expert_input_to_capacity = true;
  const Trajectory padded = run_engine(config, 5);
  EXPECT_EQ(ragged.losses, padded.losses);
  EXPECT_EQ(ragged.weights, padded.weights);
}

// 24 tokens and a capacity of 23 per expert: routing with a capacity that drops nothing.
TEST(Layouts, CapacityThatIsNotReachedChangesNoBit) {
  RunConfig config = small_config();
  for (const int ranks : {1, 2}) {
    config.parallel = {ranks, ranks, 1};
    config.model.moe.moe_expert_capacity_factor = 0;
    const Trajectory dropless = run_engine(config, 6);
    config.model.moe.moe_expert_capacity_factor = 3.8;
    const Trajectory roomy = run_engine(config, 6);
    EXPECT_EQ(roomy.dropped, std::vector<double>(6, 0.0));
    EXPECT_EQ(roomy.losses, dropless.losses);
    EXPECT_EQ(roomy.weights, dropless.weights);
  }
}

TEST(Layouts, RecomputationChangesNoBit) {
  for (const char* dtype : {"float32", "bfloat16", "float64"}) {
    RunConfig config = small_config();
    config.model.dtype = dtype;
    const Trajectory kept = run_engine(config, 5);
    for (const char* granularity : {"selective", "full"}) {
      config.model.recompute_granularity = granularity;
      const Trajectory again = run_engine(config, 5);
      EXPECT_EQ(kept.losses, again.losses) << dtype << ", " << granularity;
      EXPECT_EQ(kept.weights, again.weights) << dtype << ", " << granularity;
    }
  }
}

// Sums over tokens are independent of the micro-batch size: the loss, the z-loss, their gradients, clipping. The load
// of experts is not.
TEST(Layouts, MicroBatchesChangeOnlyTheLoadBalancingLoss) {
  RunConfig config = small_config();
  config.model.dtype = "float64";
  config.model.moe.moe_z_loss_coeff = 1e-2;
  config.model.moe.moe_router_load_balancing_type = "none";
  config.optimizer.clip_grad = 0.1;
  const auto run = [&](int64_t micro_batch_size) {
    config.train.micro_batch_size = micro_batch_size;
    return run_engine(config, kSteps, testing::recut);
  };
  Trajectory one = run(1);
  for (const int64_t size : {2, 4, 16}) {
    Trajectory other = run(size);
    EXPECT_NE(one.balances, other.balances);
    other.balances = one.balances;
    expect_equal(one, other, 1e-9, cat("micro-batches of ", size));
  }
}

TEST(Layouts, StateChecksPass) {
  RunConfig config = small_config();
  config.train.check_states = true;
  config.parallel = {4, 2, 1};
  EXPECT_EQ(run_engine(config, 3).losses.size(), 3u);
}

}  // namespace
}  // namespace witan
