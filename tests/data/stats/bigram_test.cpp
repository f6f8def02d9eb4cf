#include "witan/data/stats/bigram.h"

#include <chrono>
#include <cmath>

#include "data/data_support.h"
#include "witan/base/error.h"
#include "witan/base/numbers/rng.h"

namespace witan {
namespace {

using Ints = std::vector<int32_t>;

// Computed by hand. Bigrams of 0 1 0 1 0 2 1 with V = 4: (0,1) x2, (1,0) x2, (0,2) x1, (2,1) x1: n1 = 2, n2 = 2, D =
// 1/3. Predecessors: N(.0) = 1, N(.1) = 2, N(.2) = 1, N(.3) = 0, N(..) = 4: n1 = 2, n2 = 1, D' = 1/2; three words have
// one.
TEST(Bigram, AgreesWithAHandCountedExample) {
  BigramModel model(4);
  model.count(Ints{0, 1, 0, 1, 0, 2, 1});
  model.finish();
  EXPECT_EQ(model.distinct_bigrams(), 4);
  const double uniform = 0.5 * 3 / 4 / 4;
  const double q[4] = {0.5 / 4 + uniform, 1.5 / 4 + uniform, 0.5 / 4 + uniform, uniform};
  for (int32_t w = 0; w < 4; ++w) EXPECT_NEAR(model.probability({}, w), q[w], 1e-15);
  const double d = 1.0 / 3, backoff = d * 2 / 3;  // two followers of 0, seen three times
  EXPECT_NEAR(model.probability(0, 1), (2 - d) / 3 + backoff * q[1], 1e-15);
  EXPECT_NEAR(model.probability(0, 2), (1 - d) / 3 + backoff * q[2], 1e-15);
  EXPECT_NEAR(model.probability(0, 3), backoff * q[3], 1e-15);
  EXPECT_NEAR(model.probability(3, 1), q[1], 1e-15);  // 3 does not occur
}

TEST(Bigram, ProbabilitiesSumToOne) {
  const Philox random(1, 2);
  for (const int64_t length : {0, 1, 2, 3, 10, 1000}) {
    BigramModel model(30);
    Ints tokens;
    for (int64_t i = 0; i < length; ++i) {
      const double u = random.uniform(static_cast<uint64_t>(i));
      tokens.push_back(static_cast<int32_t>(u * u * 29));
    }
    model.count(tokens);
    model.finish();
    for (int32_t v = -1; v < 30; ++v) {
      double sum = 0;
      for (int32_t w = 0; w < 30; ++w) {
        const double p = model.probability(v < 0 ? std::nullopt : std::optional(v), w);
        EXPECT_GT(p, 0);
        sum += p;
      }
      EXPECT_NEAR(sum, 1, 1e-12) << length << " " << v;
    }
  }
}

TEST(Bigram, SeparatesDocuments) {
  const MemoryDataset documents({{1, 2}, {}, {3}});
  const BigramModel apart = count_bigrams(documents, 10, {}), ended = count_bigrams(documents, 10, 9);
  EXPECT_EQ(apart.distinct_bigrams(), 1);  // 1 2
  EXPECT_EQ(ended.distinct_bigrams(), 3);  // 9 1, 1 2, 9 3
}

TEST(Bigram, ScoresEveryTokenAndByte) {
  const MemoryDataset train({{1, 2, 1, 2, 1, 9}}), held_out({{1, 2, 9}, {5, 9}});
  const BigramModel model = count_bigrams(train, 10, 9);
  const BigramScore score = score_bigrams(model, held_out, 9, [](int32_t token) { return token == 9 ? 0 : 3; });
  EXPECT_EQ(score.tokens, 5);
  EXPECT_EQ(score.bytes, 9);
  const double bits = -std::log2(model.probability(9, 1) * model.probability(1, 2) * model.probability(2, 9) *
                                 model.probability(9, 5) * model.probability(5, 9));
  EXPECT_NEAR(score.bits, bits, 1e-12);
  EXPECT_NEAR(score.bits_per_byte(), bits / 9, 1e-12);
  EXPECT_NEAR(score.bits_per_token(), bits / 5, 1e-12);
}

TEST(Bigram, LearnsAChainOfKnownEntropy) {
  // Each token has two equally likely followers: one bit.
  const Philox random(3, 4);
  Ints tokens{0};
  for (uint64_t i = 0; i < 200'000; ++i)
    tokens.push_back((tokens.back() * 2 + static_cast<int32_t>(random.bits(i) & 1)) % 64);
  const MemoryDataset train({Ints(tokens.begin(), tokens.begin() + 150'000)}),
      held_out({Ints(tokens.begin() + 150'000, tokens.end())});
  const BigramScore score = score_bigrams(count_bigrams(train, 64, {}), held_out, {}, [](int32_t) { return 1; });
  EXPECT_NEAR(score.bits_per_byte(), 1, 0.01);
}

TEST(Bigram, RefusesIdsOutsideTheVocabulary) {
  BigramModel model(4);
  EXPECT_THROW(model.count(Ints{4}), DataError);
  model.finish();
  const auto five = MemoryDataset::counting({5});
  const std::string place = cat(five->name(), ": token id 4 is outside the vocabulary of 4: the file is damaged");
  const auto names_the_data = [&](const std::string& message) { return message.starts_with(place); };
  for (const std::string& message :
       {test::message_of<DataError>([&] { score_bigrams(model, *five, {}, [](int32_t) { return 1; }); }),
        test::message_of<DataError>([&] { count_bigrams(*five, 4, {}); })})
    EXPECT_PRED1(names_the_data, message);
}

TEST(Bigram, SamplesTokensAcrossALargeDataset) {
  std::vector<std::vector<int32_t>> documents;
  for (int32_t d = 0; d < 400; ++d) documents.emplace_back(10, d / 100);
  const MemoryDataset dataset(documents);
  const BigramModel part = count_bigrams(dataset, 5, std::nullopt, 400);
  for (int32_t token = 0; token < 4; ++token)
    EXPECT_GT(part.probability(token, token), 0.5) << "documents of every quarter are among them";
  EXPECT_EQ(count_bigrams(dataset, 5, std::nullopt, 4000).probability(1, 1),
            count_bigrams(dataset, 5, std::nullopt).probability(1, 1));
}

}  // namespace
}  // namespace witan
