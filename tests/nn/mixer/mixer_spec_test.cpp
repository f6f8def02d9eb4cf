// Parameters and states are counted from specs without building anything, and equal those that are built.
#include "witan/nn/mixer/mixer_spec.h"

#include <gmock/gmock.h>

#include "nn/attention/attention_support.h"
#include "support/module.h"
#include "support/running_mean.h"
#include "witan/nn/attention/config.h"
#include "witan/nn/lora.h"

namespace witan {
namespace {

using testing::Rank;

constexpr int64_t kWidth = 24;

MixerSpec spec_of(const std::function<void(AttentionConfig&)>& change) {
  AttentionConfig config;
  change(config);
  config.validate(kWidth, 1);
  return config.layers(kWidth, 1).front();
}

void make_latent(AttentionConfig& config) {
  config.multi_latent_attention = true;
  config.kv_lora_rank = 10;
  config.latent_qk_head_dim = 6;
  config.qk_pos_emb_head_dim = 4;
}

GatedDeltaSpec gated_delta() {
  GatedDeltaSpec spec;
  spec.num_key_heads = 2;
  spec.num_value_heads = 6;
  spec.key_head_dim = 4;
  spec.value_head_dim = 5;
  spec.conv_kernel_dim = 3;
  return spec;
}

GatedDeltaSpec kimi_delta() {
  GatedDeltaSpec spec = gated_delta();
  spec.num_key_heads = spec.num_value_heads;
  spec.channel_decays = true;
  return spec;
}

Mamba2Spec mamba2(bool conv_bias) {
  Mamba2Spec spec;
  spec.num_heads = 6;
  spec.num_groups = 2;
  spec.head_dim = 5;
  spec.state_dim = 4;
  spec.conv_kernel_dim = 3;
  spec.conv_bias = conv_bias;
  return spec;
}

ShortConvolutionSpec short_convolution(bool bias) {
  ShortConvolutionSpec spec;
  spec.channels = kWidth;
  spec.conv_kernel_dim = 3;
  spec.bias = bias;
  return spec;
}

struct Named {
  const char* name;
  MixerSpec spec;
};

std::vector<Named> kinds() {
  MixerSpec with_values = spec_of([](AttentionConfig&) {});
  std::get<MultiHeadSpec>(with_values).value_scale = true;
  std::get<MultiHeadSpec>(with_values).value_table = 1;
  const auto sharing = [](const KeySharing& keys) {
    MixerSpec spec = spec_of([](AttentionConfig& c) {
      c.qk_layernorm = c.v_l2_norm = true;
      c.window_size = "2,0";
    });
    std::get<MultiHeadSpec>(spec).sharing = keys;
    return spec;
  };
  return {{"lent keys", sharing({.of = 0})},
          {"borrowed keys", sharing({.of = 0, .borrows = true})},
          {"grouped", spec_of([](AttentionConfig& c) { c.v_head_dim = 5; })},
          {"norms of heads, sinks, biases", spec_of([](AttentionConfig& c) {
             c.qk_layernorm = c.add_qkv_bias = true;
             c.softmax_type = "learnable";
           })},
          {"norms of the full width, all biases", spec_of([](AttentionConfig& c) {
             c.qk_layernorm = c.qk_layernorm_full_width = c.add_attention_bias = true;
           })},
          {"l2 norms in a window", spec_of([](AttentionConfig& c) {
             c.qk_l2_norm = true;
             c.window_size = "2,0";
           })},
          {"value embedding", with_values},
          {"gated output", spec_of([](AttentionConfig& c) {
             c.attention_output_gate = true;
             c.v_head_dim = 5;
           })},
          {"values from keys", spec_of([](AttentionConfig& c) {
             c.attention_k_eq_v = c.v_l2_norm = c.qk_layernorm = c.add_attention_bias = true;
           })},
          {"latent", spec_of(make_latent)},
          {"latent queries", spec_of([](AttentionConfig& c) {
             make_latent(c);
             c.q_lora_rank = 7;
             c.v_head_dim = 3;
           })},
          {"gated delta", gated_delta()},
          {"decays of channels", kimi_delta()},
          {"Mamba-2", mamba2(true)},
          {"Mamba-2 without biases", mamba2(false)},
          {"short convolution", short_convolution(false)},
          {"short convolution with biases", short_convolution(true)},
          {"none", NoMixer()},
          {"a kind of a program's own", CustomMixer{std::make_shared<testing::RunningMeanKind>(10)}}};
}

TEST(MixerSpec, ParametersMatchTheBuiltOnes) {
  LoraConfig lora{3, 1, 0, lora_target_names()};
  const auto plain = std::make_shared<const LoraConfig>(lora);
  lora.magnitudes = true;
  const auto rescaled = std::make_shared<const LoraConfig>(lora);
  for (const auto& [name, spec] : kinds())
    for (const auto& adapters : {std::shared_ptr<const LoraConfig>(), plain, rescaled})
      for (const Bias bias : {Bias::none, Bias::zeros}) {
        if (bias == Bias::zeros && std::holds_alternative<LatentSpec>(spec)) continue;  // LatentSpec has no biases
        SCOPED_TRACE(cat(name, adapters ? ", adapted" : "", adapters == rescaled ? ", rescaled" : "",
                         bias == Bias::zeros ? ", biases" : ""));
        Rank rank;
        MixerModel model{.width = kWidth, .bias = bias};
        Builder builder = testing::attention_builder(rank, DType::f32);
        model.lora = builder.lora = adapters;
        const auto mixer = mixer_kind(spec).make(builder, model, {});
        int64_t all = 0, of_adapters = 0;
        if (mixer)
          for (const Parameter* parameter : mixer->parameters()) {
            all += parameter->elements();
            of_adapters += is_adapter(parameter->name()) ? parameter->elements() : 0;
          }
        const MixerCounts counts = mixer_kind(spec).parameters(model);
        EXPECT_EQ(counts.weights + counts.vectors + counts.adapters, all);
        EXPECT_EQ(counts.adapters, of_adapters);
        EXPECT_EQ(mixer == nullptr, std::holds_alternative<NoMixer>(spec));
      }
}

TEST(MixerSpec, StatesHaveTheDeclaredBytes) {
  for (const auto& [name, spec] : kinds())
    for (const auto& [exact, cache] : std::vector<std::pair<bool, CacheFormat>>{
             {false, {}}, {true, {}}, {false, {.fp8 = true}}, {false, {.latents = true}}, {false, {true, true}}}) {
      SCOPED_TRACE(cat(name, cache.latents ? ", latents" : "", cache.fp8 ? ", fp8" : ""));
      Rank rank;
      const StateSize size{.rows = 3, .positions = 20, .all_positions = exact, .chunks = exact, .cache = cache};
      const auto mixer = mixer_kind(spec).make(testing::attention_builder(rank, DType::bf16), {.width = kWidth}, {});
      const int64_t declared = 3 * mixer_kind(spec).state_bytes(size, DType::bf16).of_row();
      const auto state = mixer ? mixer->make_state(rank.stream, size, DType::bf16) : nullptr;
      EXPECT_EQ(state ? state->bytes() : 0, declared);
    }
}

TEST(MixerSpec, LogitHeadsMatchTheBuiltMixers) {
  for (const auto& [name, spec] : kinds()) {
    Rank rank;
    const auto mixer = mixer_kind(spec).make(testing::attention_builder(rank, DType::f32), {.width = kWidth}, {});
    ClippedLogits* const logits = mixer ? mixer->clipped_logits() : nullptr;
    EXPECT_EQ(logits ? logits->logit_heads() : 0, mixer_kind(spec).logit_heads()) << name;
    EXPECT_EQ(mixer_kind(spec).key_against_lanes().empty(), mixer && mixer->lanes() != nullptr) << name;
  }
}

TEST(MixerSpec, FlopsCountVisiblePositions) {
  const MixerSpec full = spec_of([](AttentionConfig&) {}),
                  window = spec_of([](AttentionConfig&c) { c.window_size = "3,0"; });
  constexpr double kPair = 2 * 4 * (6 + 6);  // over heads: a product with a key and one with a value
  EXPECT_EQ(mixer_kind(full).decoding_flops(0), kPair);
  EXPECT_EQ(mixer_kind(full).decoding_flops(9), 10 * kPair);
  EXPECT_EQ(mixer_kind(window).decoding_flops(2), 3 * kPair);
  EXPECT_EQ(mixer_kind(window).decoding_flops(9), 4 * kPair);
  EXPECT_EQ(mixer_kind(full).mixing_flops(10), 5 * kPair);
  EXPECT_EQ(mixer_kind(window).mixing_flops(10), (4 - 16.0 / 20) * kPair);
  EXPECT_EQ(mixer_kind(window).mixing_flops(4), 2 * kPair) << "it ends nothing";
}

TEST(MixerSpec, KindsDescribeThemselves) {
  const auto text = [](const std::function<void(AttentionConfig&)>& change) {
    return mixer_kind(spec_of(change)).describe();
  };
  EXPECT_EQ(text([](AttentionConfig&) {}), "full attention");
  EXPECT_EQ(text([](AttentionConfig& c) { c.window_size = "3,0"; }), "sliding window of 4 tokens");
  EXPECT_EQ(text([](AttentionConfig& c) { c.position_embedding_type = "none"; }), "full attention, no RoPE");
  EXPECT_EQ(text(make_latent), "full latent attention");
  EXPECT_EQ(mixer_kind(gated_delta()).describe(), "Gated DeltaNet");
  EXPECT_EQ(mixer_kind(kimi_delta()).describe(), "Kimi Delta Attention");
  EXPECT_EQ(mixer_kind(mamba2(true)).describe(), "Mamba-2");
  EXPECT_EQ(mixer_kind(short_convolution(false)).describe(), "short convolution");
  EXPECT_EQ(mixer_kind(NoMixer()).describe(), "no attention");
}

}  // namespace
}  // namespace witan
