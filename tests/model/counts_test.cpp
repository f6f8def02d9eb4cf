// Compares counts with those that Megatron-LM's public runs print, and with models built on the meta device.
#include "witan/model/counts.h"

#include "model/model_support.h"
#include "support/golden.h"
#include "support/model_variants.h"

namespace witan {
namespace {

using testing::Alone;
using testing::megatron_reference;
using testing::other_config;
using testing::tiny_config;

struct MetaRank {
  ThreadPool pool{1};
  Stream stream{{Device::Kind::meta}, Arena::meta(), pool};
};

int64_t parameters_of(const ModelConfig& config, Group& group) {
  MetaRank rank;
  const Transformer model(rank.stream, config, 1, group);
  int64_t sum = 0;
  for (const Parameter* parameter : model.parameters()) sum += parameter->elements();
  return sum;
}

int64_t parameters_of(const ModelConfig& config) {
  Alone alone;
  return parameters_of(config, alone);
}

TEST(Counts, MatchTheDenseReference) {
  const ParameterCounts counts = count_parameters(megatron_reference(0));
  EXPECT_EQ(counts.exact, 213'148'160);
  EXPECT_EQ(counts.active, 213'148'160);
  EXPECT_EQ(counts.experts, 0);
  EXPECT_EQ(counts.megatron_layers, 81'839'104);
  EXPECT_EQ(counts.megatron_embeddings, 131'334'144);
  EXPECT_EQ(counts.megatron_total(), 213'173'248);
  EXPECT_EQ(parameters_of(megatron_reference(0)), counts.exact);
}

TEST(Counts, MatchTheMoeReference) {
  const ParameterCounts counts = count_parameters(megatron_reference(64));
  EXPECT_EQ(counts.exact, 4'375'732'736);
  EXPECT_EQ(counts.active, 213'934'592);
  EXPECT_EQ(counts.megatron_layers, 4'243'637'248);
  EXPECT_EQ(counts.megatron_embeddings, 131'334'144);
  EXPECT_EQ(counts.megatron_total(), 4'374'971'392);
  EXPECT_EQ(parameters_of(megatron_reference(64)), counts.exact);
}

TEST(Counts, MatchOneRankOfFourThatDivideExperts) {
  const ParameterCounts counts = count_parameters(megatron_reference(64));
  EXPECT_EQ(counts.exact - counts.experts + counts.experts / 4, 1'204'838'912);
  for (int r = 0; r < 4; ++r) {
    MetaGroup expert(4, r, "expert");
    EXPECT_EQ(parameters_of(megatron_reference(64), expert), 1'204'838'912) << "rank " << r;
  }
}

TEST(Counts, OfABuiltModelMatchItsConfiguration) {
  std::vector<ModelConfig> configs = {tiny_config(0), tiny_config(4), other_config(0), other_config(4)};
  configs.push_back(tiny_config(4));
  configs.back().num_layers = 5;
  configs.back().moe.moe_layer_freq = "2";
  configs.push_back(other_config(6));
  configs.back().moe.moe_layer_freq = "[0,1]";
  configs.push_back(tiny_config(0));
  configs.back().attention.kv_channels = 10;
  configs.push_back(tiny_config(3));
  configs.back().norm.normalization = "LayerNorm";
  configs.push_back(testing::gpt_config());
  configs.push_back(testing::gpt_config());
  configs.back().mlp.swiglu = true;
  configs.back().attention.kv_channels = 10;
  configs.back().attention.num_query_groups = 2;
  configs.push_back(testing::dropping_config(4));
  configs.push_back(testing::mixed_config());
  configs.push_back(testing::mixed_config(0));
  configs.back().add_bias_linear = true;
  configs.push_back(tiny_config(4));
  configs.back().moe.moe_layer_freq = "[1,0]";
  configs.back().moe.moe_shared_expert_intermediate_size = 10;
  configs.push_back(other_config(4));
  configs.back().moe.moe_shared_expert_intermediate_size = 7;
  configs.back().moe.moe_shared_expert_gate = true;
  configs.push_back(tiny_config(4));
  configs.back().moe.moe_layer_freq = "[1,0]";
  configs.back().moe.moe_expert_add_bias = true;
  configs.back().moe.moe_latent_size = 6;
  configs.push_back(tiny_config(4));
  configs.back().moe.moe_expert_add_bias = configs.back().add_bias_linear = true;
  for (const int64_t q_lora_rank : {0, 6}) {
    configs.push_back(tiny_config(4));
    configs.back().attention.multi_latent_attention = true;
    configs.back().attention.q_lora_rank = q_lora_rank;
    configs.back().attention.kv_lora_rank = 10;
    configs.back().attention.latent_qk_head_dim = 6;
    configs.back().attention.qk_pos_emb_head_dim = 4;
    configs.back().attention.v_head_dim = 5;
  }
  for (const int64_t experts : {0, 4}) {
    configs.push_back(testing::full_width_config(experts));
    configs.push_back(testing::sinks_config(experts));
  }
  configs.push_back(testing::gpt_config());
  configs.back().attention.qk_layernorm = configs.back().attention.add_qkv_bias = true;
  configs.push_back(testing::gpt_config());
  configs.back().attention.add_attention_bias = true;
  configs.push_back(testing::mixed_config());
  configs.back().attention.add_attention_bias = configs.back().add_mlp_bias = true;
  configs.push_back(testing::nanogpt_config(0));
  for (const char* layers : {"M*-", "ME*-M"}) {
    testing::add_hybrid_layers(configs.emplace_back(testing::tiny_config(4)), layers);
    configs.back().moe.moe_latent_size = configs.back().moe.num_experts > 0 ? 4 : 0;
  }
  testing::add_residual_streams(configs.emplace_back(testing::tiny_config(4)));
  for (const int64_t rank : {0, 3}) {
    configs.emplace_back(testing::tiny_config(4)).num_layers = 3;
    configs.back().lora_rank = rank;
    testing::add_compressed_attention(configs.back());
  }
  testing::add_hybrid_layers(configs.emplace_back(testing::tiny_config(4)), "ME*-M");
  testing::add_residual_streams(configs.back());
  configs.push_back(testing::nanogpt_config(4));
  configs.back().norm.norm_weight = true;
  configs.back().attention.num_query_groups = 1;
  configs.push_back(testing::mixed_config());
  configs.back().mtp_num_layers = 2;
  for (const int64_t experts : {0, 4}) {
    configs.push_back(other_config(experts));
    configs.back().add_bias_linear = experts == 0;
    testing::give_running_means(configs.back(), {1}, 10);
  }
  for (const int64_t experts : {0, 4}) {
    testing::add_gemma4_features(configs.emplace_back(tiny_config(experts)), "3,0");
    configs.back().add_mlp_bias = true;
    testing::add_gemma4_features(configs.emplace_back(tiny_config(experts)), "3,0");
    configs.back().attention.add_attention_bias = true;
    configs.back().lora_rank = 2;
    for (const int64_t rank : {0, 2}) {
      testing::add_small_gemma4_features(configs.emplace_back(tiny_config(experts)), "3,0");
      configs.back().make_vocab_size_divisible_by = 16;
      configs.back().lora_rank = rank;
      configs.back().lora_use_dora = rank > 0 && experts == 0;
    }
  }
  for (const ModelConfig& config : configs) {
    const ParameterCounts counts = count_parameters(config);
    EXPECT_EQ(parameters_of(config), counts.exact);
    EXPECT_LE(counts.active, counts.exact);
    EXPECT_EQ(counts.active<counts.exact, config.moe.num_experts> 2);
  }
}

// A dense layer, then MoE layers with experts of their own width, counted as in theoretical_memory_usage.py: each layer
// has 2 H [F x 1.5 of its own] + 2 H² (1 + G/A), here plus 4 H for its norms.
TEST(Counts, OfMixedLayersAreSumsOverLayers) {
  ModelConfig config = megatron_reference(64);
  config.moe.moe_layer_freq = "([0]*1+[1]*23)";
  config.mlp.ffn_hidden_size = 4096;
  config.moe.moe_ffn_hidden_size = 1024;
  const ParameterCounts counts = count_parameters(config);
  const int64_t attention = 2 * 512 * 512 + 2 * 512 * 128, dense = 3 * 512 * 4096, expert = 3 * 512 * 1024;
  EXPECT_EQ(counts.experts, 23 * 64 * expert);
  EXPECT_EQ(counts.exact - counts.active, 23 * 63 * expert);
  EXPECT_EQ(counts.megatron_layers, 24 * (attention + 4 * 512) + dense + 23 * 64 * expert + 2 * 512);
  EXPECT_EQ(parameters_of(config), counts.exact);
  config.attention.v_head_dim = 64;
  EXPECT_EQ(counts.exact - count_parameters(config).exact, 24 * (512 * (4 + 1) * 64))
      << "values and the output of half";
  EXPECT_EQ(parameters_of(config), count_parameters(config).exact);
}

// One layer of DeepSeek-V3's attention: width 7168, 128 heads of 128 + 64 and 128 channels, latents of 1536 and 512.
TEST(Counts, MatchLatentAttention) {
  ModelConfig config = megatron_reference(0);
  config.hidden_size = 7168;
  config.num_layers = 1;
  config.attention.num_attention_heads = 128;
  config.attention.multi_latent_attention = true;
  config.attention.q_lora_rank = 1536;
  const ParameterCounts counts = count_parameters(config);
  const int64_t D = 7168, H = 128, queries = 1536 * (D + 1 + H * 192), keys = D * (512 + 64) + 512 + 512 * H * 256;
  const int64_t attention = queries + keys + H * 128 * D, mlp = 3 * D * config.mlp.ffn_hidden_size;
  EXPECT_EQ(attention, 187'107'328);
  EXPECT_EQ(counts.exact, 2 * D * config.padded_vocab_size() + attention + mlp + 3 * D);
  EXPECT_EQ(counts.megatron_layers, attention + mlp + 6 * D);
}

TEST(Counts, SharedExpertsAreActiveAndNotRouted) {
  ModelConfig config = megatron_reference(64);
  const ParameterCounts without = count_parameters(config);
  config.moe.moe_shared_expert_intermediate_size = 100;
  const ParameterCounts with = count_parameters(config);
  const int64_t shared = 24 * 3 * 512 * 100;  // gate, up and down of each layer
  EXPECT_EQ(with.exact - without.exact, shared);
  EXPECT_EQ(with.active - without.active, shared);
  EXPECT_EQ(with.experts, without.experts);
  EXPECT_EQ(with.megatron_layers - without.megatron_layers, shared);
  config.moe.num_experts = 0;
  EXPECT_EQ(count_parameters(config).exact, count_parameters(megatron_reference(0)).exact) << "a dense model has none";
}

// GPT-2 small as counted on Hugging Face's model card, and padded to a multiple of 128 as by Megatron-LM.
TEST(Counts, MatchGpt2) {
  ModelConfig config = testing::gpt_config();
  config.num_layers = 12;
  config.hidden_size = 768;
  config.vocab_size = 50257;
  config.attention.num_attention_heads = config.attention.num_query_groups = 12;
  config.attention.max_position_embeddings = 1024;
  config.mlp.ffn_hidden_size = 3072;
  EXPECT_EQ(count_parameters(config).exact, 124'439'808);
  EXPECT_EQ(parameters_of(config), 124'439'808);
  config.make_vocab_size_divisible_by = 128;
  EXPECT_EQ(count_parameters(config).exact, 124'439'808 + 47 * 768);
  EXPECT_EQ(parameters_of(config), 124'439'808 + 47 * 768);
  EXPECT_EQ(count_parameters(config).megatron_embeddings, 50304 * 768);
}

// The initial norm that the specs of all parameters imply: normal values contribute n std^2, ones n.
double predicted_norm(const Module& model) {
  double square = 0;
  for (const Parameter* parameter : model.parameters()) {
    const Initialization init = parameter->spec().init;
    const auto n = static_cast<double>(parameter->elements());
    if (init.kind == Initialization::Kind::normal) square += n * init.std * init.std;
    if (init.kind == Initialization::Kind::ones) square += n;
  }
  return std::sqrt(square);
}

TEST(InitialNorm, MatchesTheReferenceRuns) {
  MetaRank rank;
  Alone alone;
  EXPECT_NEAR(predicted_norm(Transformer(rank.stream, megatron_reference(0), 1, alone)), 315.04, 0.005);
  EXPECT_NEAR(predicted_norm(Transformer(rank.stream, megatron_reference(64), 1, alone)), 1104.960, 0.0005);
}

TEST(InitialNorm, OfActualValuesMatchesThePrediction) {
  ModelConfig config = megatron_reference(8);
  config.num_layers = 3;
  config.hidden_size = 64;
  config.vocab_size = 2000;
  config.mlp.ffn_hidden_size = 160;
  testing::Rank rank;
  Alone alone;
  const Transformer model(rank.stream, config, 1234, alone);
  double square = 0, normals = 0;
  for (const Parameter* parameter : model.parameters()) {
    for (const double value : testing::values(parameter->value())) square += value * value;
    normals += static_cast<double>(parameter->elements());
  }
  const double predicted = predicted_norm(model);
  EXPECT_NEAR(std::sqrt(square), predicted, predicted * 4 / std::sqrt(2 * normals));
}

// Figures that public Megatron-LM runs printed, and their arithmetic.
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
