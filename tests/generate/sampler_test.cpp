#include "witan/generate/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <vector>

#include "support/message_of.h"
#include "witan/base/error.h"

namespace witan {
namespace {

using test::message_of;

constexpr float kInf = std::numeric_limits<float>::infinity();

// Logits whose softmax is proportional to `weights`.
std::vector<float> logits_of(const std::vector<double>& weights) {
  std::vector<float> logits;
  for (const double weight : weights) logits.push_back(static_cast<float>(std::log(weight)));
  return logits;
}

// Counts how often each token is drawn at positions 0 to draws-1.
std::map<int32_t, double> frequencies(const SamplerOptions& options, const std::vector<float>& logits,
                                      int64_t draws = 20000) {
  const Sampler sampler(options);
  std::map<int32_t, double> out;
  for (int64_t position = 0; position < draws; ++position)
    out[sampler.next(logits, position)] += 1 / static_cast<double>(draws);
  return out;
}

// Expects each count within five standard deviations, and nothing else drawn.
void expect_distribution(const std::map<int32_t, double>& got, const std::map<int32_t, double>& expected,
                         int64_t draws = 20000) {
  for (const auto& [id, p] : expected) {
    ASSERT_TRUE(got.contains(id)) << "token " << id << " was never drawn";
    EXPECT_NEAR(got.at(id), p, 5 * std::sqrt(p * (1 - p) / static_cast<double>(draws))) << "token " << id;
  }
  EXPECT_EQ(got.size(), expected.size()) << "an excluded token was drawn";
}

std::set<int32_t> drawn(const SamplerOptions& options, const std::vector<float>& logits) {
  std::set<int32_t> out;
  for (const auto& [id, share] : frequencies(options, logits, 2000)) out.insert(id);
  return out;
}

TEST(Sampler, DrawsByProbability) {
  const auto logits = logits_of({1, 4, 2, 3});
  expect_distribution(frequencies({}, logits), {{0, 0.1}, {1, 0.4}, {2, 0.2}, {3, 0.3}});
  expect_distribution(frequencies({.temperature = 0.5}, logits),
                      {{0, 1 / 30.}, {1, 16 / 30.}, {2, 4 / 30.}, {3, 9 / 30.}});
  expect_distribution(frequencies({.temperature = 2}, logits_of({1, 16, 4})), {{0, 1 / 7.}, {1, 4 / 7.}, {2, 2 / 7.}});
}

TEST(Sampler, IgnoresConstantsAddedToLogits) {
  auto logits = logits_of({1, 4, 2, 3});
  const Sampler sampler({.seed = 3});
  std::vector<int32_t> before, after;
  for (int64_t position = 0; position < 100; ++position) before.push_back(sampler.next(logits, position));
  for (float& logit : logits) logit += 4096;  // exp(4096) would overflow
  for (int64_t position = 0; position < 100; ++position) after.push_back(sampler.next(logits, position));
  EXPECT_EQ(before, after);
}

TEST(Sampler, TopKKeepsTheMostLikely) {
  const auto logits = logits_of({1, 4, 2, 3});
  expect_distribution(frequencies({.top_k = 2}, logits), {{1, 4 / 7.}, {3, 3 / 7.}});
  EXPECT_EQ(drawn({.top_k = 1}, logits), (std::set<int32_t>{1}));
  EXPECT_EQ(drawn({.top_k = 4}, logits), (std::set<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(drawn({.top_k = 1000}, logits), (std::set<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(drawn({.top_k = 3}, logits_of({2, 1, 1, 1, 1})), (std::set<int32_t>{0, 1, 2}));  // ties: lower ids first
}

TEST(Sampler, TopPKeepsTheSmallestSetThatReachesIt) {
  const auto logits = logits_of({1, 4, 2, 3});  // by rank: 0.4, 0.3, 0.2, 0.1
  EXPECT_EQ(drawn({.top_p = 0.001}, logits), (std::set<int32_t>{1}));
  EXPECT_EQ(drawn({.top_p = 0.39}, logits), (std::set<int32_t>{1}));
  EXPECT_EQ(drawn({.top_p = 0.41}, logits), (std::set<int32_t>{1, 3}));
  EXPECT_EQ(drawn({.top_p = 0.69}, logits), (std::set<int32_t>{1, 3}));
  EXPECT_EQ(drawn({.top_p = 0.71}, logits), (std::set<int32_t>{1, 2, 3}));
  EXPECT_EQ(drawn({.top_p = 0.91}, logits), (std::set<int32_t>{0, 1, 2, 3}));
  expect_distribution(frequencies({.top_p = 0.5}, logits), {{1, 4 / 7.}, {3, 3 / 7.}});
  // Exactly reached: four equal probabilities are exact in binary.
  EXPECT_EQ(drawn({.top_p = 0.5}, {1, 1, 1, 1}), (std::set<int32_t>{0, 1}));
  // Temperature comes first: at 0.5 the shares are 16/30, 9/30, ...
  EXPECT_EQ(drawn({.temperature = 0.5, .top_p = 0.5}, logits), (std::set<int32_t>{1}));
}

TEST(Sampler, TopPAppliesToTheResultOfTopK) {
  const auto logits = logits_of({1, 4, 2, 3});  // after top-2: 4/7 = 0.571, 3/7
  EXPECT_EQ(drawn({.top_k = 2, .top_p = 0.56}, logits), (std::set<int32_t>{1}));
  EXPECT_EQ(drawn({.top_k = 2, .top_p = 0.58}, logits), (std::set<int32_t>{1, 3}));
}

TEST(Sampler, MinPKeepsTokensNearTheMostLikely) {
  const auto logits = logits_of({1, 4, 2, 3});  // relative to the most likely: 1/4, 1, 1/2, 3/4
  EXPECT_EQ(drawn({.min_p = 0.24}, logits), (std::set<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(drawn({.min_p = 0.26}, logits), (std::set<int32_t>{1, 2, 3}));
  EXPECT_EQ(drawn({.min_p = 0.74}, logits), (std::set<int32_t>{1, 3}));
  EXPECT_EQ(drawn({.min_p = 0.76}, logits), (std::set<int32_t>{1}));
  EXPECT_EQ(drawn({.min_p = 1}, {0, 1, 1, -kInf}), (std::set<int32_t>{1, 2}));  // reached exactly
  expect_distribution(frequencies({.min_p = 0.6}, logits), {{1, 4 / 7.}, {3, 3 / 7.}});
  // Temperature comes first: at 0.5 the ratios are 1/16, 1, 1/4, 9/16.
  EXPECT_EQ(drawn({.temperature = 0.5, .min_p = 0.26}, logits), (std::set<int32_t>{1, 3}));
  // min-p applies to what top-k and top-p leave.
  EXPECT_EQ(drawn({.top_k = 3, .min_p = 0.01}, logits), (std::set<int32_t>{1, 2, 3}));
  EXPECT_EQ(drawn({.top_p = 0.5, .min_p = 0.01}, logits), (std::set<int32_t>{1, 3}));
  EXPECT_THROW(Sampler({.min_p = 1.5}), ConfigError);
  EXPECT_THROW(Sampler({.min_p = -0.5}), ConfigError);
}

TEST(Sampler, GreedyTakesTheFirstOfTheLargest) {
  const Sampler greedy({.temperature = 0, .top_k = 3, .top_p = 0.5});
  EXPECT_EQ(greedy.next(std::vector{1.0F, 3.0F, 2.0F, 3.0F}, 0), 1);
  EXPECT_EQ(greedy.next(std::vector{-5.0F}, 12), 0);
  EXPECT_EQ(greedy.next(std::vector{-kInf, -1e30F}, 0), 1);
  EXPECT_EQ(Sampler({.temperature = 1e-300}).next(std::vector{1.0F, 3.0F, 2.0F}, 0), 1);
}

TEST(Sampler, NeverDrawsMinusInfinity) {
  EXPECT_EQ(drawn({}, {-kInf, 0, -kInf, 0}), (std::set<int32_t>{1, 3}));
  EXPECT_EQ(drawn({.top_k = 4}, {-kInf, 0, -kInf, 0}), (std::set<int32_t>{1, 3}));
  EXPECT_EQ(drawn({}, {-1e9F, 0, -1e9F}), (std::set<int32_t>{1}));  // a probability of zero is not drawn either
}

TEST(Sampler, IsAPureFunctionOfSeedPositionAndLogits) {
  const std::vector<float> logits(1000, 0.0F);
  const Sampler a({.seed = 1}), again({.seed = 1}), b({.seed = 2});
  std::vector<int32_t> forwards, backwards, other;
  for (int64_t position = 0; position < 50; ++position) forwards.push_back(a.next(logits, position));
  for (int64_t position = 50; position-- > 0;) backwards.insert(backwards.begin(), again.next(logits, position));
  for (int64_t position = 0; position < 50; ++position) other.push_back(b.next(logits, position));
  EXPECT_EQ(forwards, backwards);
  EXPECT_NE(forwards, other);
  EXPECT_GT(std::set<int32_t>(forwards.begin(), forwards.end()).size(), 40U);  // positions differ from each other
}

// The tokens of an earlier implementation, which added weights in float64.
TEST(Sampler, DrawsTheTokensOfFloat64Weights) {
  std::vector<float> logits;
  for (int v = 0; v < 1000; ++v) logits.push_back(static_cast<float>(v * 7919 % 1000) / 128.0F);
  const std::vector<std::pair<SamplerOptions, std::vector<int32_t>>> cases = {
      {{.seed = 1}, {852, 556, 642, 334, 460, 321, 741, 470}},
      {{.temperature = 0.7, .top_k = 40, .seed = 2}, {309, 889, 593, 926, 889, 815, 383, 605}},
      {{.top_p = 0.9, .seed = 3}, {62, 593, 396, 509, 275, 284, 828, 494}},
      {{.min_p = 0.05, .seed = 4}, {779, 805, 136, 348, 321, 483, 212, 605}},
      {{.temperature = 1.3, .top_k = 100, .top_p = 0.8, .min_p = 0.2, .seed = 5},
       {939, 494, 926, 408, 420, 778, 852, 642}}};
  for (const auto& [options, tokens] : cases)
    for (size_t position = 0; position < tokens.size(); ++position)
      EXPECT_EQ(Sampler(options).next(logits, static_cast<int64_t>(position)), tokens[position])
          << "seed " << options.seed << ", position " << position;
}

TEST(Sampler, ErrorsNameBadLogits) {
  const Sampler sampler({});
  const auto message = [&](const std::vector<float>& logits) {
    return message_of<DivergedError>([&] { sampler.next(logits, 0); });
  };
  EXPECT_EQ(message({0, std::nanf(""), 1}),
            "sampling: the logit of token 1 is nan: the model's weights or activations are no longer finite; "
            "use an earlier checkpoint");
  EXPECT_TRUE(message({0, 1, kInf}).starts_with("sampling: the logit of token 2 is inf"));
  EXPECT_EQ(message({-kInf, -kInf}), "sampling: none of the 2 tokens has a finite logit, so there is none to choose");
  EXPECT_EQ(message({}), "sampling: none of the 0 tokens has a finite logit, so there is none to choose");
  EXPECT_THROW(Sampler({.temperature = 0}).next(std::vector{0.0F, std::nanf("")}, 0), DivergedError);
}

TEST(Sampler, ErrorsNameBadOptions) {
  const auto message = [](const SamplerOptions& options) {
    return message_of<ConfigError>([&] { Sampler sampler(options); });
  };
  EXPECT_EQ(message({.temperature = -1}), "temperature must be 0 (greedy) or a positive number, got -1");
  EXPECT_EQ(message({.temperature = std::nan("")}), "temperature must be 0 (greedy) or a positive number, got nan");
  EXPECT_EQ(message({.temperature = HUGE_VAL}), "temperature must be 0 (greedy) or a positive number, got inf");
  EXPECT_EQ(message({.top_k = -1}), "top_k must be 0 (all tokens) or a positive number of tokens, got -1");
  EXPECT_EQ(message({.top_p = 0}), "top_p must be above 0 and at most 1 (all tokens), got 0");
  EXPECT_EQ(message({.top_p = 1.5}), "top_p must be above 0 and at most 1 (all tokens), got 1.5");
  EXPECT_EQ(message({.top_p = std::nan("")}), "top_p must be above 0 and at most 1 (all tokens), got nan");
}

TEST(Sampler, AppliesTheRepetitionPenalty) {
  const Sampler sampler({.repetition_penalty = 2});
  EXPECT_EQ(sampler.changed(std::vector<float>{4, -4, 0, 4}, {{0, 1, 2, 9}, {}}), (std::vector<float>{2, -8, 0, 4}));
  for (const double penalty : {0.0, -1.0, static_cast<double>(kInf)})
    EXPECT_THROW(Sampler({.repetition_penalty = penalty}), ConfigError) << penalty;
}

// OpenAI's rule for generated tokens: logit - count * frequency_penalty - (count > 0) * presence_penalty.
TEST(Sampler, AppliesFrequencyAndPresencePenalties) {
  const std::vector<float> logits = {4, -4, 1, 2};
  const SeenTokens seen{{0, 1, 2, 3, 9}, {{1, 1}, {2, 3}, {9, 1}}};
  EXPECT_EQ(Sampler({.presence_penalty = 0.5}).changed(logits, seen), (std::vector<float>{4, -4.5, 0.5, 2}));
  EXPECT_EQ(Sampler({.frequency_penalty = 0.25}).changed(logits, seen), (std::vector<float>{4, -4.25, 0.25, 2}));
  EXPECT_EQ(Sampler({.presence_penalty = -1, .frequency_penalty = -2}).changed(logits, seen),
            (std::vector<float>{4, -1, 8, 2}));
  EXPECT_EQ(Sampler({.repetition_penalty = 2, .presence_penalty = 1}).changed(logits, seen),
            (std::vector<float>{2, -9, -0.5, 1}))
      << "the repetition penalty is the first";
}

TEST(Sampler, AddsBiases) {
  const Sampler sampler({.logit_bias = {{0, -100}, {2, 0.5}, {7, 1}}});
  EXPECT_EQ(sampler.changed(std::vector<float>{4, -4, 1}, {}), (std::vector<float>{-96, -4, 1.5}));
  EXPECT_TRUE(sampler.changes_logits());
  EXPECT_FALSE(Sampler({.temperature = 2, .top_k = 3}).changes_logits());
}

TEST(Sampler, RefusesNonFinitePenaltiesAndBiases) {
  const auto message = [](const SamplerOptions& options) {
    return message_of<ConfigError>([&] { Sampler sampler(options); });
  };
  EXPECT_EQ(message({.presence_penalty = std::nan("")}), "presence_penalty must be a number (0: none), got nan");
  EXPECT_EQ(message({.frequency_penalty = HUGE_VAL}), "frequency_penalty must be a number (0: none), got inf");
  EXPECT_EQ(message({.logit_bias = {{3, HUGE_VAL}}}), "logit_bias of token 3 must be a number, got inf");
}

// More tokens than are sorted at first, in random order.
TEST(Sampler, TopPOfALargeVocabularyKeepsTheSmallestSet) {
  std::vector<double> weights;
  for (int64_t id = 0; id < 5000; ++id) weights.push_back(1 + static_cast<double>(id * 7919 % 5000));
  const auto logits = logits_of(weights);
  for (const double p : {0.01, 0.3, 0.9}) {
    double sum = 0, least = 5000;
    for (; sum < p * 5000 * 5001 / 2 - 0.5; --least) sum += least;
    double smallest = 5000;
    for (const auto& [id, share] : frequencies({.top_p = p}, logits, 300))
      smallest = std::min(smallest, weights[static_cast<size_t>(id)]);
    EXPECT_GE(smallest, least) << p;
    EXPECT_LT(smallest, least + 200) << p << ": tokens near the edge are drawn too";
  }
}

}  // namespace
}  // namespace witan
