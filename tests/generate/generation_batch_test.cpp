#include "witan/generate/generation_batch.h"

#include <cmath>

#include "generate/generation_support.h"
#include "support/message_of.h"

namespace witan {
namespace {

using testing::Alone;
using testing::architectures;
using testing::base_config;
using testing::gpt_oss_config;
using testing::logprobs_of;
using testing::Rank;
using testing::request_of;
using testing::requests_of;
using testing::SmallBatch;
using testing::text_of;
using testing::Tokens;
using testing::trained_logprobs;
using testing::values;
TEST(GenerationBatch, LogprobsHaveTheBitsOfTraining) {
  for (const std::string dtype : {"float32", "bfloat16"})
    for (const auto& [name, config] : architectures(dtype)) {
      SCOPED_TRACE(cat(name, ", ", dtype));
      Rank rank(2);
      Alone alone;
      Transformer model(rank.stream, config, 8, alone);
      const auto requests = requests_of();
      const auto generations = generate(rank.stream, model, requests);
      for (size_t i = 0; i < requests.size(); ++i) {
        const Tokens text = text_of(requests[i], generations[i]);
        EXPECT_EQ(text.size(), requests[i].prompt.size() + 9);
        EXPECT_EQ(logprobs_of(generations[i]), trained_logprobs(rank, model, text)) << "request " << i;
      }
    }
}

// A temperature of the batch is one of the model: twice the logits of 0.5, in draws and log probabilities.
TEST(GenerationBatch, TemperatureDividesTheLogitsOfDrawsAndLogprobs) {
  for (const std::string dtype : {"float32", "bfloat16"}) {
    SCOPED_TRACE(dtype);
    Rank rank(2);
    Alone alone;
    ModelConfig config = base_config(dtype, 4);
    Transformer model(rank.stream, config, 8, alone);
    config.logit_scale = 2;
    Transformer scaled(rank.stream, config, 8, alone);
    const auto requests = requests_of();
    const auto generations = generate(rank.stream, model, requests, {}, {.temperature = 0.5});
    const auto expected = generate(rank.stream, scaled, requests), untempered = generate(rank.stream, model, requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(text_of(requests[i], generations[i]), text_of(requests[i], expected[i])) << "request " << i;
      EXPECT_EQ(logprobs_of(generations[i]), logprobs_of(expected[i])) << "request " << i;
      EXPECT_NE(logprobs_of(generations[i]), logprobs_of(untempered[i])) << "request " << i;
    }
  }
}

TEST(GenerationBatch, TextsDoNotDependOnTheBatch) {
  for (const auto& [name, config] : architectures("bfloat16")) {
    SCOPED_TRACE(name);
    Rank rank(2);
    Alone alone;
    Transformer model(rank.stream, config, 8, alone);
    const auto requests = requests_of();
    const auto together = generate(rank.stream, model, requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      const auto by_itself = generate(rank.stream, model, std::span(&requests[i], 1));
      EXPECT_EQ(text_of(requests[i], together[i]), text_of(requests[i], by_itself[0])) << "request " << i;
      EXPECT_EQ(logprobs_of(together[i]), logprobs_of(by_itself[0])) << "request " << i;
    }
  }
}

// Options of all kinds, for texts that are computed together.
std::vector<SamplerOptions> mixed_options() {
  return {{.temperature = 1.5, .seed = 5},
          {.temperature = 0},
          {.temperature = 0.8, .top_k = 7, .seed = 6},
          {.temperature = 1.2, .top_p = 0.7, .repetition_penalty = 1.5},
          {.temperature = 2, .top_k = 20, .top_p = 0.9, .min_p = 0.05, .seed = 7}};
}

TEST_F(SmallBatch, TextsHaveTheirOwnOptions) {
  auto requests = requests_of(12);
  const auto options = mixed_options();
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].options.sampler = options[i];
    requests[i].options.vocab_size = 50 - static_cast<int64_t>(i);
    requests[i].top_logprobs = static_cast<int64_t>(i) - 2;
  }
  const auto together = all(requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto by_itself = all({requests[i]});
    EXPECT_EQ(text_of(requests[i], together[i]), text_of(requests[i], by_itself[0])) << i;
    for (size_t t = 0; t < together[i].tokens.size(); ++t) {
      EXPECT_EQ(together[i].tokens[t].logprob, by_itself[0].tokens[t].logprob) << i;
      EXPECT_EQ(std::ssize(together[i].tokens[t].top), std::max<int64_t>(requests[i].top_logprobs, 0)) << i;
      EXPECT_LT(together[i].tokens[t].token, 50 - static_cast<int64_t>(i));
    }
  }
}

// Rows of the states are reused by texts that arrive while others are running.
TEST_F(SmallBatch, AdmitsTextsWhileOthersRun) {
  const auto requests = requests_of(6);
  const auto expected = all(requests);
  GenerationBatch batch(rank_.stream, model_, {2, 80});
  std::vector<witan::Generation> got(requests.size());
  size_t next = 0;
  while (next < requests.size() || !batch.idle()) {
    if (batch.has_room() && next < requests.size()) {
      EXPECT_EQ(batch.admit(requests[next]), next);
      ++next;
    }
    batch.step();
    for (auto& [number, generation] : batch.take_finished()) got[number] = std::move(generation);
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(text_of(requests[i], got[i]), text_of(requests[i], expected[i])) << i;
    EXPECT_EQ(logprobs_of(got[i]), logprobs_of(expected[i])) << i;
  }
}

// Groups whose texts have one prompt, of which some wait for a row, beside texts of their own.
TEST(GenerationBatch, TextsOfAGroupAreWhatTheyAreAlone) {
  for (const auto& [name, config] : architectures("bfloat16")) {
    SCOPED_TRACE(name);
    Rank rank(2);
    Alone alone;
    Transformer model(rank.stream, config, 8, alone);
    std::vector<GenerationRequest> requests = requests_of();
    for (GenerationRequest& request : requests) request.prompt_logprobs = false;
    const std::vector<uint64_t> seeds = {3, 14, 15, 9, 26};
    GenerationBatch batch(rank.stream, model, {3, 80});
    std::vector<witan::Generation> got(requests.size() * seeds.size());
    size_t next = 0;
    while (next < requests.size() || !batch.idle()) {
      for (; next < requests.size() && batch.has_room(seeds.size()); ++next)
        EXPECT_EQ(batch.admit_group(requests[next], seeds), next * seeds.size());
      batch.step();
      for (auto& [number, generation] : batch.take_finished()) got[number] = std::move(generation);
    }
    for (size_t i = 0; i < got.size(); ++i) {
      GenerationRequest request = requests[i / seeds.size()];
      request.options.sampler.seed = seeds[i % seeds.size()];
      const witan::Generation expected = generate(rank.stream, model, std::span(&request, 1))[0];
      EXPECT_EQ(text_of(request, got[i]), text_of(request, expected)) << "text " << i;
      EXPECT_EQ(logprobs_of(got[i]), logprobs_of(expected)) << "text " << i;
      const auto length = static_cast<int64_t>(request.prompt.size());
      EXPECT_EQ(got[i].cached_prompt_tokens, i % seeds.size() > 0 ? length : 0) << "text " << i;
    }
  }
}

// Texts that end with their first token leave their row at once; the last one takes over that of the prompt.
TEST_F(SmallBatch, GroupsOfTextsThatEndAtOnceNeedTwoRows) {
  GenerationRequest request = requests_of(1)[0];
  request.prompt_logprobs = false;
  const std::vector<uint64_t> seeds = {1, 2, 3, 4};
  GenerationBatch batch(rank_.stream, model_, {2, 20});
  batch.admit_group(request, seeds);
  EXPECT_TRUE(batch.has_room());
  EXPECT_FALSE(batch.has_room(2));
  batch.step();
  EXPECT_TRUE(batch.idle());
  EXPECT_EQ(batch.take_finished().size(), seeds.size());
  EXPECT_TRUE(batch.has_room(2));
}

TEST_F(SmallBatch, RefusesGroupsThatDoNotFit) {
  GenerationBatch batch(rank_.stream, model_, {1, 20});
  GenerationRequest request = requests_of(1)[0];
  const std::vector<uint64_t> seeds = {1, 2};
  EXPECT_EQ(test::message_of<ConfigError>([&] { batch.admit_group(request, seeds); }),
            "generate: a group of 2 texts needs two free rows, and of 1 rows 1 are free");
  GenerationBatch larger(rank_.stream, model_, {2, 20});
  EXPECT_EQ(test::message_of<ConfigError>([&] { larger.admit_group(request, seeds); }),
            "generate: a group of texts needs max_tokens of 1 at least, and no prompt_logprobs");
}

TEST_F(SmallBatch, ListsTopTokensWithTheirLogprobs) {
  GenerationRequest request = requests_of(4)[0];
  request.top_logprobs = 50;
  const witan::Generation generation = all({request})[0];
  std::vector<GeneratedToken> tokens(generation.prompt.begin() + 1, generation.prompt.end());
  tokens.insert(tokens.end(), generation.tokens.begin(), generation.tokens.end());
  EXPECT_EQ(tokens.size(), request.prompt.size() + 3);
  for (const GeneratedToken& token : tokens) {
    ASSERT_EQ(token.top.size(), 50u);
    double sum = 0;
    bool found = false;
    for (size_t i = 0; i < token.top.size(); ++i) {
      sum += std::exp(static_cast<double>(token.top[i].logprob));
      if (i > 0) {
        EXPECT_GE(token.top[i - 1].logprob, token.top[i].logprob);
      }
      if (token.top[i].token == token.token) found = token.top[i].logprob == token.logprob;
    }
    EXPECT_NEAR(sum, 1, 1e-5);
    EXPECT_TRUE(found) << "its own logprob is among them, the same number";
  }
  request.top_logprobs = 3;
  const auto generations = all({request});
  for (const GeneratedToken& token : generations[0].tokens) EXPECT_EQ(token.top.size(), 3u);
}

TEST_F(SmallBatch, OmitsLogprobsNotRequested) {
  GenerationRequest request = requests_of(4)[0];
  request.top_logprobs = -1;
  request.prompt_logprobs = false;
  const witan::Generation generation = all({request})[0];
  EXPECT_TRUE(generation.prompt.empty());
  for (const GeneratedToken& token : generation.tokens) EXPECT_FALSE(token.logprob.has_value());
}

TEST_F(SmallBatch, ScoresPromptsWithoutGenerating) {
  const GenerationRequest longer = requests_of(4)[2], request = requests_of(0)[2];
  const witan::Generation scored = all({request})[0];
  EXPECT_TRUE(scored.tokens.empty());
  EXPECT_EQ(scored.finish, Finish::length);
  ASSERT_EQ(scored.prompt.size(), request.prompt.size());
  EXPECT_FALSE(scored.prompt[0].logprob.has_value());
  const witan::Generation continued = all({longer})[0];
  for (size_t i = 1; i < scored.prompt.size(); ++i) {
    EXPECT_EQ(scored.prompt[i].token, request.prompt[i]);
    EXPECT_EQ(scored.prompt[i].logprob, continued.prompt[i].logprob);
  }
}

TEST_F(SmallBatch, ReportsTheFinishReason) {
  auto requests = requests_of(8);
  const auto whole = all(requests);
  requests[0].options.stop_tokens = {49, whole[0].tokens[3].token};
  requests[1].options.end_of_text = whole[1].tokens[2].token;
  const auto some = all(requests, [](size_t request, const GeneratedToken&) { return request != 3; });
  EXPECT_EQ(some[0].finish, Finish::stop);
  EXPECT_EQ(some[1].finish, Finish::stop);
  EXPECT_EQ(some[2].finish, Finish::length);
  EXPECT_EQ(some[3].finish, Finish::stopped_by_caller);
  EXPECT_LE(some[0].tokens.size(), 3u);
  EXPECT_LE(some[1].tokens.size(), 2u);
  EXPECT_EQ(some[2].tokens.size(), 8u);
  EXPECT_EQ(some[3].tokens.size(), 1u);
  EXPECT_EQ(some[3].tokens[0].token, whole[3].tokens[0].token);
}

TEST_F(SmallBatch, RepetitionPenaltyCoversPromptAndText) {
  GenerationRequest request = request_of({3, 4, 5}, 20, 0, 0);
  request.options.sampler.repetition_penalty = 1e6;  // hardly any token repeats
  const Tokens text = text_of(request, all({request})[0]);
  EXPECT_EQ(std::set<int32_t>(text.begin(), text.end()).size(), text.size());
  request.options.sampler.repetition_penalty = 1;
  const Tokens free = text_of(request, all({request})[0]);
  EXPECT_LT(std::set<int32_t>(free.begin(), free.end()).size(), free.size()) << "the check must have something to see";
}

TEST_F(SmallBatch, CountPenaltiesCoverGeneratedTokensOnly) {
  GenerationRequest request = request_of({3, 4, 5}, 20, 0, 0);
  request.options.sampler.presence_penalty = 1e6;
  const witan::Generation once = all({request})[0];
  std::set<int32_t> said;
  for (const GeneratedToken& token : once.tokens) said.insert(token.token);
  EXPECT_EQ(said.size(), 20u) << "nothing is said twice";
  request.options.sampler.presence_penalty = 0;
  request.options.sampler.frequency_penalty = 1e6;
  EXPECT_EQ(text_of(request, all({request})[0]), text_of(request, once)) << "nor here";
  request.options.sampler.frequency_penalty = 0;
  const int32_t first = once.tokens[0].token;
  request.prompt.push_back(first);
  const int32_t next = all({request})[0].tokens[0].token;
  request.options.sampler.presence_penalty = 1e6;
  EXPECT_EQ(all({request})[0].tokens[0].token, next) << "the prompt counts for nothing";
  request.options.sampler.logit_bias = {{next, -1e6}};
  const witan::Generation without = all({request})[0];
  for (const GeneratedToken& token : without.tokens) EXPECT_NE(token.token, next);
  request.options.sampler.logit_bias = {{7, 1e9}};
  const witan::Generation sevens = all({request})[0];
  for (const GeneratedToken& token : sevens.tokens) EXPECT_EQ(token.token, 7);
}

TEST_F(SmallBatch, RefusesRequestsThatDoNotFit) {
  GenerationBatch batch(rank_.stream, model_, {1, 10});
  const auto refusal = [&](const GenerationRequest& request) {
    return test::message_of<ConfigError>([&] { batch.admit(request); });
  };
  EXPECT_EQ(refusal(request_of({1, 2, 3}, 8, 0, 0)),
            "generate: a prompt of 3 tokens and max_tokens = 8 do not fit into a cache of 10 positions: ask for fewer "
            "tokens, or give the caches more positions");
  batch.admit(request_of({1, 2, 3}, 7, 0, 0));
  EXPECT_FALSE(batch.has_room());
  EXPECT_EQ(refusal(request_of({1}, 1, 0, 0)), "generate: all 1 rows of the caches are taken");
  EXPECT_EQ(test::message_of<DataError>([&] {
              batch.admit(request_of({1, 50}, 1, 0, 0));
            }),
            "generate: the prompt has token 50, which is not one of the model's 50");
}

TEST(GenerationBatchOnMeta, NeedsTheMemoryOfTheLongestTexts) {
  for (const bool scored : {false, true}) {
    const ModelConfig config = gpt_oss_config("bfloat16");
    auto requests = requests_of(5);
    for (GenerationRequest& request : requests)
      request.prompt_logprobs = scored, request.top_logprobs = scored ? 2 : -1;
    Rank rank(2);
    Alone alone;
    Transformer model(rank.stream, config, 8, alone);
    generate(rank.stream, model, requests);
    ThreadPool pool(2);
    Stream meta({Device::Kind::meta}, Arena::meta(), pool);
    Transformer planned(meta, config, 8, alone);
    generate(meta, planned, requests);
    EXPECT_EQ(meta.arena().high_water(), rank.stream.arena().high_water());
  }
}

// The top tokens are selected on the device, or on the host if it reads the logits for them or for sampling another
// text.
TEST(GenerationBatch, TopTokensMatchOnHostAndDevice) {
  for (const std::string dtype : {"bfloat16", "float64"}) {
    Rank rank(2);
    Alone alone;
    Transformer model(rank.stream, base_config(dtype, 4), 8, alone);
    auto requests = requests_of();
    for (GenerationRequest& request : requests)
      request.options.sampler.temperature = 0, request.prompt_logprobs = false, request.top_logprobs = -1;
    const auto chosen_there = generate(rank.stream, model, requests);
    for (GenerationRequest& request : requests) request.top_logprobs = 3;
    const auto chosen_here = generate(rank.stream, model, requests);
    for (GenerationRequest& request : requests) request.top_logprobs = 0;
    requests.push_back(request_of({4, 2}, 9, 1.5, 1));
    const auto beside_another = generate(rank.stream, model, requests);
    for (size_t i = 0; i < chosen_there.size(); ++i) {
      const Tokens text = text_of(requests[i], chosen_there[i]);
      EXPECT_EQ(text_of(requests[i], chosen_here[i]), text) << "request " << i << ", " << dtype;
      EXPECT_EQ(text_of(requests[i], beside_another[i]), text) << "request " << i << ", " << dtype;
    }
  }
}

// A prompt with more tokens than are scored at once.
TEST(GenerationBatch, ScoresLongPromptsLikeTraining) {
  Rank rank(2);
  Alone alone;
  Transformer model(rank.stream, base_config("float32"), 8, alone);
  Tokens prompt;
  for (int32_t i = 0; i < 600; ++i) prompt.push_back((i * i * 7 + i / 50) % 50);
  const GenerationRequest request = request_of(prompt, 0, 0, 0);
  EXPECT_EQ(logprobs_of(generate(rank.stream, model, std::span(&request, 1))[0]),
            trained_logprobs(rank, model, prompt));
}

}  // namespace
}  // namespace witan
