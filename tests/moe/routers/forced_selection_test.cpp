// Choices of experts that scores do not make: forced loads, hashes of tokens, and tables.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "moe/routers/selection_support.h"
#include "support/message_of.h"
#include "witan/comm/context.h"
#include "witan/moe/routers/router.h"

namespace witan {
namespace {

using testing::config_of;
using testing::randomness_of;
using testing::Rank;
using testing::route;
using testing::values;

TEST(ForcedSelection, ChoicesHaveTheirLoadAndChangeEveryStep) {
  Rank rank;
  const int64_t T = 4000, E = 10, K = 2;
  const Tensor logits = rank.normal({T, E}, DType::f32, "logits", 3);
  MoeConfig config = config_of(E, K, {{"moe_router_selection", "uniform"}});
  const auto of = [&](const Randomness& randomness, const std::string& path = "router") {
    return route(rank, config, logits, {}, {{}, randomness}, 1, path).ids;
  };
  const Randomness randomness = randomness_of(rank);
  const std::vector<int32_t> ids = of(randomness);
  std::vector<int> load(static_cast<size_t>(E));
  for (const int32_t id : ids) ++load[static_cast<size_t>(id)];
  for (const int count : load) EXPECT_NEAR(count, T * K / E, 5 * std::sqrt(double(T * K) / double(E)));
  for (size_t i = 0; i < ids.size(); i += 2) ASSERT_NE(ids[i], ids[i + 1]);
  EXPECT_EQ(of(randomness), ids);
  EXPECT_NE(of(randomness_of(rank, 8)), ids);
  EXPECT_NE(of(randomness_of(rank, 7, 4)), ids);
  EXPECT_NE(of(randomness, "other"), ids);
  EXPECT_NE(of({}), ids) << "without a step nothing is forced";

  config.moe_router_selection = "skew";
  config.moe_router_skew = 0.6;
  int first = 0;
  const std::vector<int32_t> skewed = of(randomness);
  for (size_t i = 0; i < skewed.size(); i += 2) first += skewed[i] == 0 && skewed[i + 1] == 1;
  EXPECT_NEAR(first, 0.6 * double(T), 5 * std::sqrt(0.24 * double(T))) << "and 1 of 90 of the others";
}

// The load of each expert over the mean, with forced choices.
std::vector<double> forced_loads(int64_t E, int64_t K, std::map<std::string, std::string> keys) {
  if (K == 1) keys["moe_router_pre_softmax"] = "true";
  Rank rank;
  const int64_t T = 20'000;
  const Tensor logits = rank.normal({T, E}, DType::f32, "logits");
  const auto ids = route(rank, config_of(E, K, keys), logits, {}, {{}, randomness_of(rank)}, 1).ids;
  std::vector<double> loads(static_cast<size_t>(E));
  for (size_t i = 0; i < ids.size(); ++i) {
    loads[static_cast<size_t>(ids[i])] += static_cast<double>(E) / static_cast<double>(T * K);
    for (size_t j = i / static_cast<size_t>(K) * static_cast<size_t>(K); j < i; ++j) EXPECT_NE(ids[i], ids[j]);
  }
  return loads;
}

TEST(ForcedSelection, ZipfsBusiestExpertHasTheRequestedLoad) {
  for (const auto& [E, K] : std::vector<std::pair<int64_t, int64_t>>{{16, 1}, {64, 8}, {40, 3}})
    for (const double imbalance : {1.0, 2.0, 4.0, 8.0}) {
      const std::vector<double> loads =
          forced_loads(E, K, {{"moe_router_selection", "zipf"}, {"moe_router_imbalance", cat(imbalance)}});
      EXPECT_NEAR(loads[0], imbalance, 0.08 * imbalance) << E << " " << K;
      if (imbalance != 2) continue;
      for (size_t e = 7; e < loads.size(); e += 4) EXPECT_LT(loads[e], loads[(e - 3) / 4]) << e;
    }
}

TEST(ForcedSelection, HotSendsEveryTokenToOneExpert) {
  for (const int64_t K : {1, 4}) {
    const std::vector<double> loads = forced_loads(16, K, {{"moe_router_selection", "hot"}});
    EXPECT_NEAR(loads[0], 16.0 / static_cast<double>(K), 1e-9);
    for (size_t e = 1; e < loads.size(); ++e)
      EXPECT_NEAR(loads[e], 16.0 / 15 * static_cast<double>(K - 1) / static_cast<double>(K), 0.1);
  }
}

// A token makes the same choice wherever it is routed.
TEST(ForcedSelection, ChoicesOfPartsMatchTheWhole) {
  Rank rank;
  const int64_t B = 3, S = 8, E = 6, K = 2, ranks = 2;
  const Tensor logits = rank.normal({B * S, E}, DType::f64, "logits");
  const MoeConfig config = config_of(E, K, {{"moe_router_selection", "uniform"}});
  Randomness randomness = randomness_of(rank);
  randomness.sequence_length = S;
  const std::vector<int32_t> whole = route(rank, config, logits, {}, {{}, randomness}, B).ids;
  for (int part = 0; part < ranks; ++part) {
    randomness.positions = context_positions(S, ranks, part);
    const Tensor own = logits.narrow(0, 0, B * S / ranks);
    const std::vector<int32_t> ids = route(rank, config, own, {}, {{}, randomness}, B).ids;
    for (int64_t t = 0; t < B * S / ranks; ++t)
      for (int64_t k = 0; k < K; ++k) {
        const int64_t token = t / (S / ranks) * S + randomness.positions.at(t % (S / ranks));
        EXPECT_EQ(ids[static_cast<size_t>(t * K + k)], whole[static_cast<size_t>(token * K + k)]);
      }
  }
}

// For any number of experts the target is 4 times the mean, or the largest possible load.
TEST(ForcedSelection, ZipfHasADefaultForAnyNumberOfExperts) {
  for (const auto& [E, K, imbalance] :
       std::vector<std::tuple<int64_t, int64_t, double>>{{4, 2, 2}, {4, 4, 1}, {6, 4, 1.5}, {8, 2, 4}, {64, 2, 4}}) {
    const MoeConfig config = config_of(E, K, {{"moe_router_selection", "zipf"}});
    config.validate(2);
    EXPECT_EQ(config.zipf_imbalance(), imbalance) << E << " " << K;
    const auto loads = forced_loads(E, K, {{"moe_router_selection", "zipf"}});
    EXPECT_NEAR(loads[0], imbalance, 0.08 * imbalance) << E << " " << K;
  }
}

// With K = 1, an expert's share is that of its rate.
double largest_share(int64_t E, double exponent) {
  double rates = 0;
  for (int64_t e = 0; e < E; ++e) rates += std::pow(static_cast<double>(e + 1), -exponent);
  return 1 / rates;
}

TEST(Zipf, BusiestExpertHasItsLoadWithTopOne) {
  for (const int64_t E : {4, 64, 256})
    for (const double imbalance : {1.0, 1.5, 2.0, 3.5}) {
      const double exponent = zipf_exponent(E, 1, imbalance);
      EXPECT_NEAR(largest_share(E, exponent) * static_cast<double>(E), imbalance, 0.005 * imbalance) << E;
    }
}

TEST(Zipf, ExponentsCoverAllLoads) {
  EXPECT_LT(zipf_exponent(64, 8, 1), 1e-3);
  EXPECT_LT(zipf_exponent(8, 8, 1), 17) << "each token has every expert: any law does";
  EXPECT_LE(zipf_exponent(64, 8, 8), 16) << "every token chooses expert 0";
  EXPECT_GT(zipf_exponent(64, 8, 6), zipf_exponent(64, 8, 4));
}

TEST(HashSelection, DependsOnTokenIdAndLayer) {
  Rank rank;
  const int64_t T = 600, E = 16, K = 2;
  std::vector<int32_t> tokens;
  for (int64_t t = 0; t < T; ++t) tokens.push_back(static_cast<int32_t>(t * 37 % 200));
  Tensor ids = rank.stream.empty({T}, DType::i32);
  rank.stream.write(ids, tokens.data());
  const MoeConfig config = config_of(E, K, {{"moe_router_selection", "hash"}});
  const auto of = [&](const char* logits, const std::string& path) {
    return route(rank, config, rank.normal({T, E}, DType::f64, logits), {}, {ids, {}}, 1, path).ids;
  };
  const std::vector<int32_t> found = of("some", "layers.0.moe.router");
  EXPECT_EQ(of("others", "layers.0.moe.router"), found);
  EXPECT_NE(of("some", "layers.1.moe.router"), found);
  std::map<int32_t, std::vector<int32_t>> by_token;
  std::set<int32_t> used;
  for (size_t t = 0; t < tokens.size(); ++t) {
    const std::vector<int32_t> pair = {found[2 * t], found[2 * t + 1]};
    EXPECT_EQ(by_token.try_emplace(tokens[t], pair).first->second, pair);
    EXPECT_NE(pair[0], pair[1]);
    used.insert(pair.begin(), pair.end());
  }
  EXPECT_EQ(used.size(), 16u);
  EXPECT_NE(test::message_of<ShapeError>([&] {
              route(rank, config, rank.normal({T, E}, DType::f64, "some"));
            }).find("needs the id of each of 600 tokens"),
            std::string::npos);
}

// A table that the router draws from its path and the seed, and that scores weigh.
TEST(TableOfExperts, ChoosesByTheTokenAndWeighsByScores) {
  Rank rank;
  constexpr int64_t V = 11, E = 6, K = 3, D = 4, T = 9;
  MoeConfig config = config_of(E, K,
                               {{"moe_router_score_function", "sqrtsoftplus"},
                                {"moe_router_enable_expert_bias", "true"},
                                {"moe_n_hash_layers", "1"}});
  config.validate(2);
  config = config.with_table(V);
  Builder builder{.stream = rank.stream};
  builder.dtype = DType::f64;
  builder.seed = 5;
  const auto router = make_router(builder / "layers.0.moe.router", config, D, nullptr),
             other = make_router(builder / "layers.1.moe.router", config, D, nullptr);
  const auto table_of = [](const Router& of) {
    const auto buffers = of.buffers();
    const auto found =
        std::ranges::find_if(buffers, [](const Buffer* one) { return one->name().ends_with("token_experts"); });
    return values((*found)->value());
  };
  const auto table = table_of(*router);
  EXPECT_NE(table, table_of(*other));
  for (size_t token = 0; token < V; ++token) {
    const std::set<double> of(table.begin() + static_cast<int64_t>(token) * K,
                              table.begin() + static_cast<int64_t>(token + 1) * K);
    EXPECT_EQ(of.size(), static_cast<size_t>(K)) << "an expert twice";
    EXPECT_TRUE(*of.begin() >= 0 && *of.rbegin() < E);
  }
  const std::vector<int32_t> tokens = {0, 10, 3, 3, 7, 1, 2, 9, 5};
  const Tensor x = rank.normal({1, T, D}, DType::f64, "x"), ids = rank.tensor(Shape{1, T}, tokens);
  Tape tape(rank.stream, Tape::Mode::off);
  const Routing routing = router->forward(tape, tape.constant(x), Dropping::by_capacity, {ids, {}});
  const auto found = routing.ids.to_vector<int32_t>();
  const auto weights = values(routing.weights.value()), in = values(x),
             w = values(router->parameters().front()->value());
  for (size_t t = 0; t < T; ++t) {
    std::vector<double> scores;
    for (size_t k = 0; k < K; ++k) {
      const auto expert = static_cast<size_t>(found[t * K + k]);
      EXPECT_EQ(static_cast<double>(expert), table[static_cast<size_t>(tokens[t]) * K + k]);
      double logit = 0;
      for (size_t d = 0; d < D; ++d) logit += in[t * D + d] * w[expert * D + d];
      scores.push_back(std::sqrt(std::log1p(std::exp(logit))));
    }
    for (size_t k = 0; k < K; ++k)
      EXPECT_NEAR(weights[t * K + k], scores[k] / (scores[0] + scores[1] + scores[2]), 1e-12);
  }
}

TEST(TableOfExperts, NeedsAChoiceByScoresInOtherLayers) {
  for (const auto& [key, value] : std::map<std::string, std::string>{
           {"moe_router_selection", "hash"}, {"moe_router_load_balancing_type", "quantile_balancing"}})
    EXPECT_EQ(test::message_of<ConfigError>([&] {
                config_of(8, 2, {{"moe_n_hash_layers", "1"}, {key, value}}).validate(2);
              }),
              "moe_n_hash_layers = 1 chooses experts by a table in the first layers, and by scores in others: set "
              "moe_router_selection = \"topk\", without quantile_balancing");
}
}  // namespace
}  // namespace witan
