// Prompts that begin with the tokens of an earlier text continue its states, with the bits of computing them again.
#include "generate/generation_support.h"

namespace witan {
namespace {

using testing::Alone;
using testing::architectures;
using testing::base_config;
using testing::gpt_oss_config;
using testing::logprobs_of;
using testing::Rank;
using testing::request_of;
using testing::SmallBatch;
using testing::text_of;

// A conversation: each prompt is the previous text and a little more.
GenerationRequest next_question(const GenerationRequest& request, const witan::Generation& answer, int32_t more) {
  GenerationRequest next = request;
  next.prompt = text_of(request, answer);
  for (int32_t i = 0; i < more; ++i) next.prompt.push_back((7 * i + more) % 50);
  return next;
}

witan::Generation finish(GenerationBatch& batch, const GenerationRequest& request) {
  const size_t number = batch.admit(request);
  while (!batch.idle()) batch.step();
  auto finished = batch.take_finished();
  EXPECT_EQ(finished.size(), 1u);
  EXPECT_EQ(finished.at(0).first, number);
  return std::move(finished.at(0).second);
}

// Texts are longer than windows and their ring buffers.
TEST(GenerationBatch, ReusedKeysAndValuesHaveTheBitsOfRecomputedOnes) {
  for (const auto& [name, config] : architectures("bfloat16")) {
    SCOPED_TRACE(name);
    Rank rank(2);
    Alone alone;
    Transformer model(rank.stream, config, 8, alone);
    GenerationBatch batch(rank.stream, model, {1, 90});
    GenerationRequest request = request_of({3, 17, 0, 40, 3}, 6, 1.5, 3);
    request.prompt_logprobs = false;
    int64_t known = 0;  // tokens of the prompt that the previous text had, except its last one, which was not read
    for (const int32_t more : {4, 11, 1, 20}) {
      const witan::Generation kept = finish(batch, request);
      const witan::Generation fresh = generate(rank.stream, model, std::span(&request, 1))[0];
      EXPECT_EQ(text_of(request, kept), text_of(request, fresh)) << request.prompt.size();
      EXPECT_EQ(logprobs_of(kept), logprobs_of(fresh)) << request.prompt.size();
      EXPECT_EQ(fresh.cached_prompt_tokens, 0);
      EXPECT_EQ(kept.cached_prompt_tokens, known);
      known = static_cast<int64_t>(text_of(request, kept).size()) - 1;
      request = next_question(request, kept, more);
    }
  }
}

TEST_F(SmallBatch, ReusesTheLongestPrefixOfAnyFreeRow) {
  GenerationBatch batch(rank_.stream, model_, {3, 60});
  std::vector<GenerationRequest> requests;
  for (const int32_t first : {1, 2, 3}) {
    GenerationRequest request = request_of({first, 9, 8, 7, 6, 5}, 3, 0, 0);
    request.prompt_logprobs = false;
    requests.push_back(request);
    batch.admit(request);
  }
  while (!batch.idle()) batch.step();
  batch.take_finished();
  EXPECT_EQ(finish(batch, requests[1]).cached_prompt_tokens, 5) << "the last token gives the first logits";
  GenerationRequest other = requests[2];
  other.prompt[4] = 30;
  EXPECT_EQ(finish(batch, other).cached_prompt_tokens, 4);
  other.prompt[2] = 31;
  EXPECT_EQ(finish(batch, other).cached_prompt_tokens, 0) << "too few tokens would be reused";
  GenerationRequest scored = requests[0];
  scored.prompt_logprobs = true;
  EXPECT_EQ(finish(batch, scored).cached_prompt_tokens, 0);
}

// A window's ring buffer no longer has the keys that a much shorter text would attend to.
TEST(GenerationBatch, RecomputesTextsRewoundBeyondTheWindow) {
  const ModelConfig config = gpt_oss_config("float32");
  Rank rank(2);
  Alone alone;
  Transformer model(rank.stream, config, 8, alone);
  GenerationBatch batch(rank.stream, model, {1, 90});
  GenerationRequest request = request_of({}, 5, 0, 0);
  request.prompt_logprobs = false;
  for (int32_t i = 0; i < 60; ++i) request.prompt.push_back(i * i % 50);
  finish(batch, request);
  request.options.max_tokens = 1;  // what follows a shorter text in the row still belongs to the longer one
  std::vector<int64_t> cached;
  for (const size_t length : {60, 56, 53, 40}) {
    request.prompt.resize(length);
    request.prompt.back() = 49;
    const witan::Generation kept = finish(batch, request);
    EXPECT_EQ(logprobs_of(kept), logprobs_of(generate(rank.stream, model, std::span(&request, 1))[0])) << length;
    cached.push_back(kept.cached_prompt_tokens);
  }
  EXPECT_GT(cached[0], 0);
  EXPECT_EQ(cached[3], 0);
}

// A recurrent state cannot be rewound: a text continues only from its end.
TEST(GenerationBatch, ReusesRecurrentStatesOnlyAtTheirEnd) {
  ModelConfig config = base_config("float32");
  testing::give_running_means(config, {1}, 20);
  Rank rank(2);
  Alone alone;
  Transformer model(rank.stream, config, 8, alone);
  GenerationBatch batch(rank.stream, model, {1, 40});
  GenerationRequest request = request_of({3, 17, 0, 40, 3, 9, 9, 1}, 1, 0, 0);
  request.prompt_logprobs = false;
  finish(batch, request);
  GenerationRequest longer = request, other = request;
  longer.prompt.push_back(5);
  EXPECT_EQ(finish(batch, longer).cached_prompt_tokens, 8);
  other.prompt.back() = 2;
  EXPECT_EQ(finish(batch, other).cached_prompt_tokens, 0) << "a model with only keys and values would keep 7";
}

}  // namespace
}  // namespace witan
