// Compares Megatron-LM's formulas with figures that its public runs printed.
#include <gtest/gtest.h>

#include "model/model_support.h"
#include "support/golden.h"
#include "witan/model/counts.h"

namespace witan {
namespace {

using testing::megatron_reference;

constexpr double kMebi = 1024 * 1024;

// Both numbers are rounded, to a tenth of a millisecond and of a TFLOP/s.
TEST(MegatronFormulas, ThroughputOfEveryLoggedLine) {
  const auto lines = test::megatron_runs();
  ASSERT_EQ(lines.size(), 49u);
  for (const auto& line : lines) {
    const ModelConfig config = megatron_reference(line.at("run") == "dense" ? 0 : 64);
    const double flops = megatron_iteration_flops(config, 2048, 64);
    const double ms = std::stod(line.at("ms")), printed = std::stod(line.at("tflops"));
    const auto tflops = [&](double milliseconds) { return flops / (milliseconds * 1e-3 * 8 * 1e12); };
    EXPECT_LE(tflops(ms + 0.05) - 0.05, printed) << line.at("run") << ' ' << line.at("iter");
    EXPECT_GE(tflops(ms - 0.05) + 0.05, printed) << line.at("run") << ' ' << line.at("iter");
  }
}

TEST(MegatronFormulas, FlopsOfAnIteration) {
  EXPECT_NEAR(megatron_iteration_flops(megatron_reference(0), 2048, 64) / 1.5554653559e14, 1, 1e-10);
  EXPECT_EQ(megatron_iteration_flops(megatron_reference(64), 2048, 64),
            megatron_iteration_flops(megatron_reference(0), 2048, 64));  // top-1: as many FLOPs as a dense layer
  ModelConfig config = megatron_reference(64);
  config.moe.moe_router_topk = 3;
  // Two more experts per token with three 512 x 1792 matrices each, in 24 layers, 6 FLOPs per parameter.
  EXPECT_NEAR(megatron_iteration_flops(config, 2048, 64) - megatron_iteration_flops(megatron_reference(64), 2048, 64),
              64.0 * 2048 * 24 * 2 * 3 * 512 * 1792 * 6, 1e6);
  config = megatron_reference(64);
  config.moe.moe_shared_expert_intermediate_size = 100;
  EXPECT_NEAR(megatron_iteration_flops(config, 2048, 64) - megatron_iteration_flops(megatron_reference(64), 2048, 64),
              64.0 * 2048 * 24 * 3 * 512 * 100 * 6, 1e6);
  config = megatron_reference(0);
  config.mlp.swiglu = false;
  EXPECT_NEAR(megatron_iteration_flops(megatron_reference(0), 2048, 1) - megatron_iteration_flops(config, 2048, 1),
              2048.0 * 24 * 512 * 1792 * 6, 1e6);
}

// num_floating_point_operations() of a model whose first layer is dense: 6 FLOPs per weight that a token uses.
TEST(MegatronFormulas, FlopsOfMixedLayersAreSumsOverLayers) {
  ModelConfig config = megatron_reference(64);
  const double before = megatron_iteration_flops(config, 2048, 1);
  config.moe.moe_layer_freq = "([0]*1+[1]*23)";
  config.mlp.ffn_hidden_size = 4096;
  config.moe.moe_ffn_hidden_size = 1024;
  config.moe.moe_router_topk = 2;
  const double change = 3.0 * 512 * ((4096 - 1792) + 23 * (2 * 1024 - 1792));
  EXPECT_NEAR(megatron_iteration_flops(config, 2048, 1) - before, 6 * 2048 * change, 1e5);
  const double mixed = megatron_iteration_flops(config, 2048, 1);
  config.attention.window_size = "127,0";
  EXPECT_EQ(megatron_iteration_flops(config, 2048, 1), mixed) << "Megatron-LM does not look at windows";
}

// num_floating_point_operations() with --mtp-num-layers: a layer like the last one, its projection and norms, and
// logits.
TEST(MegatronFormulas, FlopsOfMultiTokenPrediction) {
  ModelConfig config = megatron_reference(64), more = config;
  more.mtp_num_layers = 2;
  ModelConfig deeper = config;
  deeper.num_layers += 2;
  EXPECT_NEAR(megatron_iteration_flops(more, 2048, 1) - megatron_iteration_flops(deeper, 2048, 1),
              6.0 * 2048 * 2 * (512 * 128256 + 2 * 512 * 512 + 3 * 512), 1e6);
}

// num_floating_point_operations() with --multi-latent-attention: weights, norms of latents and half of all pairs.
TEST(MegatronFormulas, FlopsOfLatentAttention) {
  ModelConfig config = megatron_reference(0);
  config.attention.num_attention_heads = 16;
  config.attention.multi_latent_attention = true;
  config.attention.v_head_dim = 96;
  const double layers = static_cast<double>(config.num_layers), D = 512, S = 2048, F = 1792, V = 128256;
  const auto per_token = [&] { return megatron_iteration_flops(config, 2048, 4) / (6 * 4 * S); };
  const double others = layers * 3 * D * F + D * V, pairs = S * 16 * (192 + 96) / 2;
  const double shared = 512 * (D + 16 * (128 + 96) + 1) + D * 64 + 16 * 96 * D + pairs;
  EXPECT_NEAR(per_token(), others + layers * (D * 16 * 192 + shared), 1);
  config.attention.q_lora_rank = 100;
  EXPECT_NEAR(per_token(), others + layers * (100 * (D + 16 * 192 + 1) + shared), 1);
}

// A layer without attention lacks 2 H² (1 + G/A) weights, and the products of queries and keys; tables of value
// embeddings are only looked up.
TEST(MegatronFormulas, LayersWithoutAttentionLackItsFlops) {
  ModelConfig config = megatron_reference(0);
  const double before = megatron_iteration_flops(config, 2048, 1);
  config.attention.no_attention_freq = "24";
  config.value_embedding_freq = "[1]*23+[0]";
  EXPECT_NEAR(before - megatron_iteration_flops(config, 2048, 1),
              6.0 * 2048 * (2 * 512 * 512 + 2 * 512 * 128 + 2048 * 4 * 256), 1e5);
}

TEST(MegatronFormulas, TheoreticalMemory) {
  const auto mebibytes = [](int64_t experts, bool distributed) {
    return megatron_weight_and_optimizer_bytes(megatron_reference(experts), 8, distributed) / kMebi;
  };
  EXPECT_NEAR(mebibytes(0, true), 1524.73, 0.005);
  EXPECT_NEAR(mebibytes(64, true), 31292.23, 0.005);
  EXPECT_DOUBLE_EQ(mebibytes(0, false) * kMebi, 213'173'248.0 * 18);
}

TEST(MegatronFormulas, MemoryWithExpertParallelism) {
  const auto mebibytes = [](int64_t experts, int64_t expert_parallel) {
    return weight_and_optimizer_bytes(megatron_reference(experts), 8, expert_parallel, true) / kMebi;
  };
  EXPECT_NEAR(mebibytes(0, 1), 1524.55, 0.005);
  EXPECT_NEAR(mebibytes(64, 4), 13153.68, 0.005);
  EXPECT_NEAR(mebibytes(64, 8), 10129.68, 0.005);
}

}  // namespace
}  // namespace witan
