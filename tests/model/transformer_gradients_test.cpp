// Compares gradients of whole models with central differences of the loss.
#include "model/model_support.h"
#include "support/model_variants.h"
#include "witan/model/transformer.h"

namespace witan {
namespace {

using testing::Alone;
using testing::bind_gradients;
using testing::dropping_config;
using testing::gpt_config;
using testing::loss_of;
using testing::micro_batch;
using testing::MicroBatch;
using testing::other_config;
using testing::Rank;
using testing::tiny_config;
using testing::values;

double loss_without_tape(Rank& rank, Transformer& model, const MicroBatch& batch) {
  Tape off(rank.stream, Tape::Mode::off);
  return loss_of(off, model, batch).value().data<double>()[0];
}

// Compares a few elements of every parameter's gradient with central differences of the whole model's loss. `h`: the
// step size.
void expect_gradients_of_differences(const ModelConfig& config, double h = 1e-5) {
  Rank rank;
  Alone alone;
  Transformer model(rank.stream, config, 5, alone);
  bind_gradients(rank.stream, model);
  const MicroBatch batch = micro_batch(rank.stream, config, 2, 7, 3);
  Tape tape(rank.stream);
  tape.backward({{loss_of(tape, model, batch), {}}});
  double largest = 0;
  for (Parameter* parameter : model.parameters()) {
    if (parameter->frozen) continue;
    const Philox rng(1, Philox::stream_of(parameter->name()));
    const auto gradient = values(parameter->gradient());
    for (uint64_t draw = 0; draw < 4; ++draw) {
      const auto i = rng.below(static_cast<uint64_t>(parameter->elements()), draw);
      double& w = parameter->value().data<double>()[i];
      const double before = w;
      w = before + h;
      const double above = loss_without_tape(rank, model, batch);
      w = before - h;
      const double below = loss_without_tape(rank, model, batch);
      w = before;
      EXPECT_NEAR(gradient[i], (above - below) / (2 * h), 1e-8) << parameter->name() << " [" << i << "]";
      largest = std::max(largest, std::abs(gradient[i]));
    }
  }
  EXPECT_GT(largest, 1e-2) << "the check must have something to see";
}

TEST(Transformer, DenseGradientsMatchDifferences) {
  expect_gradients_of_differences(tiny_config(0));
  expect_gradients_of_differences(other_config(0));
  ModelConfig config = gpt_config();
  expect_gradients_of_differences(config);
  config.recompute_granularity = "full";
  expect_gradients_of_differences(config);
}

TEST(Transformer, MoeGradientsMatchDifferences) {
  ModelConfig config = tiny_config(4);
  expect_gradients_of_differences(config);
  expect_gradients_of_differences(dropping_config(4));
  config.moe.moe_shared_expert_intermediate_size = 10;
  expect_gradients_of_differences(config);
  config.moe.moe_grouped_gemm = false;
  config.moe.moe_router_topk = 1;
  config.moe.moe_router_pre_softmax = true;
  expect_gradients_of_differences(config);
  config = other_config(4);
  config.moe.moe_layer_freq = "[0,1]";
  config.recompute_granularity = "full";
  expect_gradients_of_differences(config);
}

TEST(Transformer, GradientsOfDifferingLayersMatchDifferences) {
  for (const char* granularity : {"none", "selective", "full"}) {
    SCOPED_TRACE(granularity);
    ModelConfig config = testing::mixed_config();
    config.recompute_granularity = granularity;
    expect_gradients_of_differences(config);
  }
  ModelConfig config = testing::mixed_config(0);
  config.add_bias_linear = true;
  config.attention.v_head_dim = 4;
  expect_gradients_of_differences(config);
}

TEST(Transformer, GradientsOfNormalisedQueriesAndOfSinksMatchDifferences) {
  for (const char* granularity : {"none", "selective", "full"}) {
    SCOPED_TRACE(granularity);
    ModelConfig of_widths = testing::full_width_config(), of_heads = testing::sinks_config();
    of_widths.recompute_granularity = of_heads.recompute_granularity = granularity;
    expect_gradients_of_differences(of_widths);
    expect_gradients_of_differences(of_heads);
  }
  ModelConfig config = testing::sinks_config(0);
  config.norm.normalization = "LayerNorm";
  config.norm.norm_bias = true;
  config.norm_placement = "post";
  expect_gradients_of_differences(config);
}

// A kind of mixer that exists only in tests.
TEST(Transformer, GradientsOfAnotherMixerMatchDifferences) {
  for (const char* granularity : {"none", "selective", "full"}) {
    SCOPED_TRACE(granularity);
    ModelConfig config = tiny_config(4);
    testing::give_running_means(config, {0}, 10);
    config.recompute_granularity = granularity;
    expect_gradients_of_differences(config);
  }
  ModelConfig config = tiny_config(0);
  config.add_bias_linear = true;
  testing::give_running_means(config, {0, 1}, 10);
  expect_gradients_of_differences(config);
}

// Gated DeltaNet, then attention with a gate. Norms of small keys curve the loss, so that the step is a smaller one.
TEST(Transformer, GradientsOfLinearAttentionMatchDifferences) {
  for (const char* granularity : {"none", "selective", "full"}) {
    SCOPED_TRACE(granularity);
    ModelConfig config = tiny_config(0);
    testing::add_linear_attention(config);
    config.recompute_granularity = granularity;
    expect_gradients_of_differences(config, 2e-6);
  }
}

// A router's norm curves the loss, so that the step is a smaller one.
TEST(Transformer, GradientsOfHeadsOfTwoSizesAndParallelMlpsMatchDifferences) {
  for (const char* granularity : {"none", "selective", "full"})
    for (const int64_t experts : {0, 4}) {
      SCOPED_TRACE(cat(granularity, ", ", experts, " experts"));
      ModelConfig config = tiny_config(experts);
      testing::add_gemma4_features(config, "3,0");
      config.recompute_granularity = granularity;
      if (experts > 0) config.recompute_modules = "layernorm,moe,mlp";
      expect_gradients_of_differences(config, 2e-6);
    }
}

// Norms of small products curve the loss, so that the step is a smaller one, and norms have a larger epsilon.
TEST(Transformer, GradientsOfBorrowedKeysAndOfEmbeddingsForLayersMatchDifferences) {
  for (const char* granularity : {"none", "selective", "full"})
    for (const int64_t experts : {0, 4}) {
      SCOPED_TRACE(cat(granularity, ", ", experts, " experts"));
      ModelConfig config = tiny_config(experts);
      testing::add_small_gemma4_features(config, "3,0");
      config.norm.norm_epsilon = 1e-2;
      config.recompute_granularity = granularity;
      expect_gradients_of_differences(config, 5e-7);
    }
  ModelConfig plain = tiny_config(0);  // without norms of heads, which are projected together
  plain.num_layers = 3;
  plain.num_kv_shared_layers = 2;
  plain.attention.attention_output_gate = true;
  expect_gradients_of_differences(plain, 2e-6);
  plain.attention.qk_layernorm = plain.attention.qk_layernorm_full_width = true;
  plain.attention.clip_qkv = 5;
  expect_gradients_of_differences(plain, 2e-6);
}

// Layers of one part each.
TEST(Transformer, GradientsOfHybridLayersMatchDifferences) {
  for (const char* granularity : {"none", "selective", "full"}) {
    SCOPED_TRACE(granularity);
    ModelConfig config = tiny_config(4);
    testing::add_hybrid_layers(config, "ME*-M");
    config.recompute_granularity = granularity;
    expect_gradients_of_differences(config, 2e-6);
  }
}

TEST(Transformer, GradientsOfCompressedAttentionMatchDifferences) {
  for (const char* granularity : {"none", "selective", "full"}) {
    SCOPED_TRACE(granularity);
    ModelConfig config = tiny_config(4);
    config.num_layers = 3;
    testing::add_compressed_attention(config);
    config.recompute_granularity = granularity;
    expect_gradients_of_differences(config, 2e-6);
  }
}

TEST(Transformer, GradientsOfResidualStreamsMatchDifferences) {
  for (const char* granularity : {"none", "selective", "full"}) {
    SCOPED_TRACE(granularity);
    ModelConfig config = tiny_config(4);
    testing::add_residual_streams(config);
    config.recompute_granularity = granularity;
    expect_gradients_of_differences(config, 2e-6);
  }
}

TEST(Transformer, GradientsOfJoinedLayersMatchDifferences) {
  for (const char* granularity : {"none", "selective", "full"})
    for (const int64_t experts : {0, 4}) {
      SCOPED_TRACE(cat(granularity, ", ", experts, " experts"));
      ModelConfig config = testing::nanogpt_config(experts);
      config.recompute_granularity = granularity;
      expect_gradients_of_differences(config);
    }
  // Each by itself, and together with norms that have weights.
  for (const auto& change : std::initializer_list<void (*)(ModelConfig&)>{
           [](ModelConfig& c) { c.skip_connections = true; }, [](ModelConfig& c) { c.embedding_residual = true; },
           [](ModelConfig& c) { c.value_embedding_freq = "[0,1]"; }, [](ModelConfig& c) { c.embedding_norm = true; },
           [](ModelConfig& c) { c.attention.no_attention_freq = "[1,0]"; },
           [](ModelConfig& c) { c.logit_soft_cap = 2; }, [](ModelConfig& c) { c.logit_scale = 0.5; },
           [](ModelConfig& c) { c.embedding_multiplier = 3; }, [](ModelConfig& c) { c.residual_multiplier = 0.4; },
           [](ModelConfig& c) { c.attention.qk_layernorm = c.attention.qk_layernorm_after_rope = true; },
           [](ModelConfig& c) {
             c.norm.normalization = "LayerNorm";
             c.norm.norm_weight = false;
           }}) {
    ModelConfig config = tiny_config(0);
    change(config);
    expect_gradients_of_differences(config);
  }
}

}  // namespace
}  // namespace witan
