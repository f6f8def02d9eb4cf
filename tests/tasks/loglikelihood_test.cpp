#include "witan/tasks/loglikelihood.h"

#include <gtest/gtest.h>

#include "support/module.h"
#include "witan/generate/generation_batch.h"

namespace witan {
namespace {

using testing::Alone;
using testing::Rank;

ModelConfig scored_config(const std::string& windows = "none") {
  ModelConfig config;
  config.num_layers = 2;
  config.hidden_size = 24;
  config.vocab_size = 50;
  config.init_method_std = 0.5;
  config.dtype = "bfloat16";
  config.mlp.ffn_hidden_size = 20;
  config.moe.num_experts = 4;
  config.attention.window_size = windows;
  return config;
}

std::vector<TokenPair> some_pairs() {
  std::vector<TokenPair> pairs;
  for (int32_t i = 0; i < 7; ++i) {
    TokenPair pair;
    for (int32_t t = 0; t < 3 + (i * 5) % 17; ++t) pair.tokens.push_back((7 * i + 3 * t * t) % 50);
    pair.continuation = 1 + i % 2;
    pairs.push_back(pair);
  }
  return pairs;
}

// Equals token-by-token scoring of a prompt in generation, bitwise for any batch size.
TEST(Loglikelihoods, EqualPromptScoresForAnyBatchSize) {
  for (const char* windows : {"none", "4,0"}) {
    Rank rank;
    Alone alone;
    Transformer model(rank.stream, scored_config(windows), 1, alone);
    const auto pairs = some_pairs();
    std::vector<double> expected;
    for (const TokenPair& pair : pairs) {
      GenerationRequest request{pair.tokens, {}, 1, true};
      request.options.max_tokens = 0;
      const auto scored = generate(rank.stream, model, std::span(&request, 1)).at(0).prompt;
      double nats = 0;
      for (size_t t = pair.tokens.size() - static_cast<size_t>(pair.continuation); t < pair.tokens.size(); ++t)
        nats += static_cast<double>(*scored[t].logprob);
      expected.push_back(nats);
    }
    for (const int64_t batch_size : {1, 3, 7, 50}) {
      const auto found = loglikelihoods(rank.stream, model, pairs, {.batch_size = batch_size});
      for (size_t i = 0; i < pairs.size(); ++i) EXPECT_EQ(found[i].nats, expected[i]) << batch_size << ": " << i;
    }
  }
}

TEST(Loglikelihoods, ReportGreedyAnswers) {
  Rank rank;
  Alone alone;
  Transformer model(rank.stream, scored_config(), 1, alone);
  GenerateOptions options;
  options.max_tokens = 3;
  options.sampler.temperature = 0;
  TokenPair own{{4, 8, 15}, 3};
  for (const int32_t token : generate(rank.stream, model, own.tokens, options)) own.tokens.push_back(token);
  TokenPair other = own;
  other.tokens[4] = (other.tokens[4] + 1) % 50;
  size_t told = 0;
  const std::vector<TokenPair> pairs = {own, other};
  const auto found = loglikelihoods(rank.stream, model, pairs, {}, [&](size_t done) { told = done; });
  EXPECT_TRUE(found[0].greedy);
  EXPECT_FALSE(found[1].greedy);
  EXPECT_GT(found[0].nats, found[1].nats);
  EXPECT_EQ(told, 2u);
}

}  // namespace
}  // namespace witan
