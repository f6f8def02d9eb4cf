// Generation that caches latents, or keys and values in e4m3.
#include <cmath>

#include "support/model_variants.h"
#include "support/module.h"
#include "witan/generate/generation_batch.h"

namespace witan {
namespace {

using testing::Alone;
using testing::Rank;
using Tokens = std::vector<int32_t>;

const GenerationMode kLatents{.cache = {.cache_mla_latents = "true"}}, kFp8{.cache = {.kv_cache_dtype = "fp8_e4m3"}},
    kBoth{.cache = {"fp8_e4m3", "true"}};

ModelConfig model_config(const std::string& dtype) {
  ModelConfig config;
  config.num_layers = 2;
  config.hidden_size = 24;
  config.vocab_size = 50;
  config.init_method_std = 0.5;
  config.dtype = dtype;
  config.mlp.ffn_hidden_size = 20;
  config.moe.num_experts = 4;
  return config;
}

ModelConfig latent_config(const std::string& dtype, const std::string& window = "none") {
  ModelConfig config = model_config(dtype);
  testing::add_latent_attention(config, {.q_rank = 7, .kv_rank = 10, .head = 6, .rotated_head = 4, .value_head = 5});
  testing::add_stretched_positions(config);
  config.attention.window_size = window;
  return config;
}

ModelConfig windows_and_sinks(const std::string& dtype) {
  ModelConfig config = model_config(dtype);
  testing::add_gpt_oss_features(config, "6,0");
  config.attention.num_query_groups = 2;
  return config;
}

ModelConfig head_norms(const std::string& dtype) {
  ModelConfig config = model_config(dtype);
  config.attention.qk_layernorm = true;
  return config;
}

struct Kind {
  std::string name;
  ModelConfig config;
  GenerationMode mode;
};

std::vector<Kind> kinds(const std::string& dtype) {
  return {{"latents", latent_config(dtype), kLatents},
          {"latents in a window", latent_config(dtype, "6,0"), kLatents},
          {"keys in fp8", model_config(dtype), kFp8},
          {"normed keys in fp8", head_norms(dtype), kFp8},
          {"windows in fp8", windows_and_sinks(dtype), kFp8},
          {"latents in fp8", latent_config(dtype), kBoth},
          {"latent heads in fp8", latent_config(dtype), kFp8}};
}

std::vector<GenerationRequest> requests_of(int64_t max_tokens) {
  std::vector<GenerationRequest> requests;
  for (const int64_t length : {5, 1, 70, 13}) {
    GenerationRequest request;
    for (int64_t i = 0; i < length; ++i) request.prompt.push_back(static_cast<int32_t>((i * i * 7 + length) % 50));
    request.options.max_tokens = max_tokens;
    request.options.sampler.temperature = 1.5;
    request.options.sampler.seed = static_cast<uint64_t>(length);
    request.top_logprobs = 0;
    requests.push_back(std::move(request));
  }
  return requests;
}

Tokens tokens_of(const witan::Generation& generation) {
  Tokens tokens;
  for (const GeneratedToken& token : generation.tokens) tokens.push_back(token.token);
  return tokens;
}

std::vector<double> logprobs_of(const witan::Generation& generation) {
  std::vector<double> logprobs;
  for (const GeneratedToken& token : generation.tokens) logprobs.push_back(token.logprob.value());
  return logprobs;
}

// The log probabilities that the default caches give a text.
std::vector<double> expected(Rank& rank, Transformer& model, GenerationRequest request,
                             const witan::Generation& generation) {
  const size_t prompt = request.prompt.size();
  for (const GeneratedToken& token : generation.tokens) request.prompt.push_back(token.token);
  request.options.max_tokens = 0;
  request.prompt_logprobs = true;
  const witan::Generation scored = generate(rank.stream, model, std::span(&request, 1))[0];
  std::vector<double> logprobs;
  for (size_t i = prompt; i < scored.prompt.size(); ++i) logprobs.push_back(scored.prompt[i].logprob.value());
  return logprobs;
}

// The largest distance of log probabilities from those of the default caches.
double farthest(const Kind& kind) {
  Rank rank(2);
  Alone alone;
  Transformer model(rank.stream, kind.config, 8, alone);
  const auto requests = requests_of(12);
  const auto generations = generate(rank.stream, model, requests, {}, kind.mode);
  double most = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto got = logprobs_of(generations[i]), exact = expected(rank, model, requests[i], generations[i]);
    for (size_t t = 0; t < got.size(); ++t) most = std::max(most, std::abs(got[t] - exact[t]));
  }
  return most;
}

// Log probabilities are float32.
TEST(OtherCaches, LatentsChangeLogprobsByRoundings) {
  for (const Kind& kind : kinds("float64")) {
    if (kind.mode.cache.kv_cache_dtype != "auto") continue;
    EXPECT_LT(farthest(kind), 2e-6) << kind.name;
  }
}

// Without experts, of which a token may choose others, and with the small weights that training begins with.
TEST(OtherCaches, Fp8ChangesLogprobsLittle) {
  for (Kind& kind : kinds("float64")) {
    if (kind.mode.cache.kv_cache_dtype == "auto") continue;
    kind.config.moe.num_experts = 0;
    kind.config.moe.moe_router_add_bias = kind.config.moe.moe_expert_add_bias = false;
    kind.config.init_method_std = 0.1;
    const double distance = farthest(kind);
    EXPECT_LT(distance, 0.03) << kind.name;
    EXPECT_GT(distance, 1e-5) << kind.name;
  }
}

TEST(OtherCaches, TextsDoNotDependOnTheBatch) {
  for (const auto& [name, config, mode] : kinds("bfloat16")) {
    SCOPED_TRACE(name);
    Rank rank(2);
    Alone alone;
    Transformer model(rank.stream, config, 8, alone);
    const auto requests = requests_of(9);
    const auto together = generate(rank.stream, model, requests, {}, mode);
    for (size_t i = 0; i < requests.size(); ++i) {
      const auto by_itself = generate(rank.stream, model, std::span(&requests[i], 1), {}, mode)[0];
      EXPECT_EQ(tokens_of(together[i]), tokens_of(by_itself)) << "request " << i;
      EXPECT_EQ(logprobs_of(together[i]), logprobs_of(by_itself)) << "request " << i;
    }
  }
}

TEST(OtherCaches, TextsOfAGroupAreWhatTheyAreAlone) {
  for (const auto& [name, config, mode] : kinds("bfloat16")) {
    SCOPED_TRACE(name);
    Rank rank(2);
    Alone alone;
    Transformer model(rank.stream, config, 8, alone);
    const auto requests = requests_of(9);
    const std::vector<uint64_t> seeds = {3, 14, 15};
    GenerationBatch batch(rank.stream, model, {3, 80}, mode);
    std::vector<witan::Generation> got(requests.size() * seeds.size());
    size_t next = 0;
    while (next < requests.size() || !batch.idle()) {
      for (; next < requests.size() && batch.has_room(seeds.size()); ++next) batch.admit_group(requests[next], seeds);
      batch.step();
      for (auto& [number, generation] : batch.take_finished()) got[number] = std::move(generation);
    }
    for (size_t i = 0; i < got.size(); ++i) {
      GenerationRequest request = requests[i / seeds.size()];
      request.options.sampler.seed = seeds[i % seeds.size()];
      const witan::Generation by_itself = generate(rank.stream, model, std::span(&request, 1), {}, mode)[0];
      EXPECT_EQ(tokens_of(got[i]), tokens_of(by_itself)) << "text " << i;
      EXPECT_EQ(logprobs_of(got[i]), logprobs_of(by_itself)) << "text " << i;
    }
  }
}

// A text that begins with a cached one reads its latents.
TEST(OtherCaches, LatentsOfAPrefixAreReused) {
  Rank rank(2);
  Alone alone;
  Transformer model(rank.stream, latent_config("float64"), 8, alone);
  GenerationBatch batch(rank.stream, model, {1, 90}, kLatents);
  GenerationRequest request = requests_of(6)[2];
  for (const int64_t cached : {0, 75}) {
    batch.admit(request);
    while (!batch.idle()) batch.step();
    const witan::Generation kept = batch.take_finished().at(0).second;
    EXPECT_EQ(kept.cached_prompt_tokens, cached);
    EXPECT_TRUE(testing::close(logprobs_of(kept), expected(rank, model, request, kept), 2e-6, 0));
    for (const int32_t token : tokens_of(kept)) request.prompt.push_back(token);
    request.prompt.push_back(7);
  }
}

TEST(OtherCaches, ArePlannedToTheByte) {
  for (const auto& [name, config, mode] : kinds("bfloat16")) {
    SCOPED_TRACE(name);
    const auto requests = requests_of(5);
    Rank rank(2);
    Alone alone;
    Transformer model(rank.stream, config, 8, alone);
    generate(rank.stream, model, requests, {}, mode);
    ThreadPool pool(2);
    Stream meta({Device::Kind::meta}, Arena::meta(), pool);
    Transformer planned(meta, config, 8, alone);
    generate(meta, planned, requests, {}, mode);
    EXPECT_EQ(meta.arena().high_water(), rank.stream.arena().high_water());
  }
}

// A GPU caches latents without being asked.
TEST(OtherCaches, LatentsAreSmaller) {
  ModelConfig config = latent_config("bfloat16");
  Rank rank;
  Alone alone;
  Stream gpu({Device::Kind::meta, 0, Device::Kind::cuda}, Arena::meta(), rank.pool);
  Transformer model(gpu, config, 1, alone);
  const auto held = [&](const GenerationMode& mode) {
    const int64_t before = gpu.arena().live();
    const GenerationBatch batch(gpu, model, {4, 1024}, mode);
    return gpu.arena().live() - before;
  };
  constexpr int64_t kPositions = 2 * 4 * 1024;  // of two layers
  EXPECT_EQ(held({}), kPositions * 14 * 2);
  EXPECT_EQ(held({.cache = {.cache_mla_latents = "false"}}), kPositions * 4 * 15 * 2);
  EXPECT_EQ(held({.repeatable = true}), kPositions * 4 * 15 * 2);
  EXPECT_EQ(held(kFp8), kPositions * (14 + 8));
  EXPECT_EQ(held({.cache = {"fp8_e4m3", "false"}}), kPositions * 4 * (15 + 8));
}

}  // namespace
}  // namespace witan
