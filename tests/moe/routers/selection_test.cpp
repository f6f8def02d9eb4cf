// Selections of experts by the configuration's keys, compared with Megatron-Core (tests/golden/moe/make_golden.py) and
// with plain loops written from the papers, and properties that must hold for each.
#include "witan/moe/routers/selection.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "support/dropout.h"
#include "support/gradcheck.h"
#include "support/message_of.h"
#include "support/temp_folder.h"
#include "support/thread_world.h"
#include "witan/base/files/file.h"
#include "witan/base/json.h"
#include "witan/comm/context.h"
#include "witan/moe/routers/balance.h"
#include "witan/moe/routers/router.h"

namespace witan {
namespace {

using testing::close;
using testing::gradcheck;
using testing::Rank;
using testing::values;

MoeConfig config_of(int64_t experts, int64_t topk, const std::map<std::string, std::string>& settings = {}) {
  MoeConfig config;
  config.num_experts = experts;
  config.moe_router_topk = topk;
  for (const auto& [key, value] : settings) set_field(config.fields(), key, value, "test");
  return config;
}

Randomness randomness_of(Rank& rank, int64_t iteration = 7, int64_t micro_batch = 3) {
  const kernels::Dropout drawn = testing::dropout_of(rank, 0.5, iteration, micro_batch);
  return {.seed = drawn.seed, .step = drawn.step, .micro_batch = micro_batch};
}

struct Routed {
  std::vector<double> weights;  // [T, K]
  std::vector<int32_t> ids;
};

// Routes logits [T, E] of B sequences with the configuration's router at `path`.
Routed route(Rank& rank, const MoeConfig& config, const Tensor& logits, const Tensor& bias = {},
             const TokenSource& source = {}, int64_t B = 1, const std::string& path = "router") {
  config.validate(2);
  Tape tape(rank.stream);
  const ExpertSelection selection(config, path);
  const auto choice = selection.choice(rank.stream, {logits, B, source, Dropping::by_capacity, nullptr}, bias);
  const Routing routing = ops::route(tape, tape.input(logits), {config.moe_router_topk, config.scoring(), choice});
  return {values(routing.weights.value()), routing.ids.to_vector<int32_t>()};
}

std::vector<double> dense(const Routed& routed, int64_t T, int64_t E) {
  std::vector<double> all(static_cast<size_t>(T * E));
  const size_t K = routed.ids.size() / static_cast<size_t>(T);
  for (size_t i = 0; i < routed.ids.size(); ++i)
    all[i / K * static_cast<size_t>(E) + static_cast<size_t>(routed.ids[i])] += routed.weights[i];
  return all;
}

std::vector<int> chosen(const std::vector<double>& dense_weights) {
  std::vector<int> all;
  for (const double weight : dense_weights) all.push_back(weight != 0);
  return all;
}

class MegatronRouting : public ::testing::Test {
 protected:
  MegatronRouting()
      : golden(parse_json(read_file(fs::path(WITAN_SOURCE_DIR) / "tests/golden/moe/megatron_routing.json"), "golden")),
        T(golden["tokens"]),
        E(golden["experts"]),
        logits(rank.tensor<double>({T, E}, golden["logits"].get<std::vector<double>>())) {}

  // Megatron-Core computes softmax and sigmoid in float32.
  void expect(const Json& expected, const Routed& found) const {
    const std::vector<double> weights = dense(found, T, E);
    EXPECT_TRUE(close(weights, expected["weights"].get<std::vector<double>>(), 1e-6, 1e-6));
    EXPECT_EQ(chosen(weights), expected["chosen"].get<std::vector<int>>());
  }

  Rank rank;
  Json golden;
  int64_t T, E;
  Tensor logits;
};

TEST_F(MegatronRouting, TopkRoutingWithScoreFunctionMatches) {
  ASSERT_EQ(golden["topk_routing_with_score_function"].size(), 10u);
  for (const Json& expected : golden["topk_routing_with_score_function"]) {
    SCOPED_TRACE(expected["name"]);
    MoeConfig config = config_of(E, expected["topk"], {{"moe_router_score_function", expected["score_function"]}});
    config.moe_router_pre_softmax = expected.value("use_pre_softmax", false);
    config.moe_router_topk_scaling_factor = expected.value("scaling_factor", 1.0);
    config.moe_router_num_groups = expected.value("num_groups", 0);
    config.moe_router_group_topk = expected.value("group_topk", 0);
    const auto bias = expected["bias"].get<std::vector<float>>();
    config.moe_router_enable_expert_bias = !bias.empty();
    expect(expected, route(rank, config, logits, bias.empty() ? Tensor() : rank.tensor<float>({E}, bias)));
  }
}

TEST_F(MegatronRouting, SinkhornMatches) {
  ASSERT_EQ(golden["sinkhorn"].size(), 2u);
  for (const Json& expected : golden["sinkhorn"]) {
    const int64_t K = expected["topk"];
    MoeConfig config = config_of(E, K, {{"moe_router_selection", "sinkhorn"}});
    config.moe_router_score_function = K == 1 ? "sigmoid" : "softmax";
    config.moe_router_pre_softmax = true;
    expect(expected, route(rank, config, logits));
  }
  // u c v of its factors; each row sums to 1 / T
  const Tensor bias = rank.poisoned({E}, DType::f64);
  kernels::sinkhorn_bias(rank.stream, bias, logits, 100, 1e-4);
  std::vector<double> normalised;
  for (int64_t t = 0; t < T; ++t) {
    double sum = 0;
    for (int64_t e = 0; e < E; ++e) sum += std::exp(logits.data<double>()[t * E + e] + bias.data<double>()[e]);
    for (int64_t e = 0; e < E; ++e)
      normalised.push_back(std::exp(logits.data<double>()[t * E + e] + bias.data<double>()[e]) / sum / double(T));
  }
  // Megatron-Core's rows use the factors before the last.
  EXPECT_TRUE(close(normalised, golden["sinkhorn"][0]["normalised"].get<std::vector<double>>(), 1e-4, 1e-3));
}

TEST(Selection, GradientsMatchDifferencesForEveryScoreAndWeight) {
  Rank rank;
  for (const std::string score : {"softmax", "sigmoid", "sqrtsoftplus"})
    for (const bool before : {false, true})
      for (const std::string norm : {"auto", "true", "false"})
        for (const int64_t K : {1, 3}) {
          MoeConfig config = config_of(6, K, {{"moe_router_score_function", score}});
          config.moe_router_pre_softmax = before;
          config.moe_router_norm_topk_prob = norm;
          config.moe_router_topk_scaling_factor = 2.5;
          if ((score != "softmax" && before) || (K == 1 && norm == "true")) continue;
          if (score == "softmax" && !before && (norm == "false" || K == 1)) continue;
          SCOPED_TRACE(cat(score, before ? " before, " : ", ", norm, ", ", K));
          config.validate(2);
          const int64_t T = 4, E = 6;
          Tensor logits = rank.normal({T, E}, DType::f64, "jitter", 0.01);
          for (int64_t i = 0; i < T * E; ++i)
            logits.data<double>()[i] += 0.4 * static_cast<double>((i * 5 + i / E) % E) - 0.8;
          gradcheck(
              rank, "router",
              [&](Tape& tape, const std::vector<Var>& in) {
                const Routing routing = ops::route(tape, in[0], {K, config.scoring()});
                return std::vector{routing.weights, routing.record.loss(kBalanceLoss), routing.record.loss(kZLoss)};
              },
              {logits});
        }
}

// Hugging Face's norm_topk_prob and routed_scaling_factor.
TEST(Selection, WeightsAreOptionallyNormalisedAndScaled) {
  Rank rank;
  const int64_t T = 9, E = 5, K = 2;
  const Tensor logits = rank.normal({T, E}, DType::f64, "logits", 2);
  const auto score = [&](const std::string& function, int64_t t, int32_t id) {
    const double* row = logits.data<double>() + t * E;
    const double x = row[id];
    if (function == "sigmoid") return 1 / (1 + std::exp(-x));
    if (function == "sqrtsoftplus") return std::sqrt(std::log(1 + std::exp(x)));
    double sum = 0;
    for (int64_t e = 0; e < E; ++e) sum += std::exp(row[e]);
    return std::exp(x) / sum;
  };
  for (const std::string function : {"softmax", "sigmoid", "sqrtsoftplus"})
    for (const std::string norm : {"true", "false"}) {
      MoeConfig config = config_of(E, K, {{"moe_router_score_function", function}});
      config.moe_router_pre_softmax = function == "softmax";
      config.moe_router_norm_topk_prob = norm;
      config.moe_router_topk_scaling_factor = 2.5;
      const Routed found = route(rank, config, logits);
      for (int64_t t = 0; t < T; ++t) {
        double sum = 0;
        for (int64_t k = 0; k < K; ++k) sum += score(function, t, found.ids[static_cast<size_t>(t * K + k)]);
        for (int64_t k = 0; k < K; ++k) {
          const auto at = static_cast<size_t>(t * K + k);
          EXPECT_NEAR(found.weights[at], 2.5 * score(function, t, found.ids[at]) / (norm == "true" ? sum : 1), 1e-12);
        }
      }
    }
}

// Two groups of four experts, which are ordered differently by their best expert and by their two best together.
TEST(Selection, GroupsAreComparedByTheirTopScores) {
  Rank rank;
  const Tensor logits = rank.tensor<double>({1, 8}, {3, -9, 0.5, 0, /**/ 2, 1.9, -9, 1});
  MoeConfig config = config_of(8, 2, {{"moe_router_score_function", "sigmoid"}});
  config.moe_router_num_groups = 2;
  config.moe_router_group_topk = 1;
  config.moe_router_group_score_topk = 1;  // DeepSeek-V2
  EXPECT_EQ(route(rank, config, logits).ids, (std::vector<int32_t>{0, 2}));
  config.moe_router_group_score_topk = 2;  // DeepSeek-V3
  EXPECT_EQ(route(rank, config, logits).ids, (std::vector<int32_t>{4, 5}));
  // The bias counts for groups too, but not for weights.
  config.moe_router_enable_expert_bias = true;
  const Routed biased = route(rank, config, logits, rank.tensor<float>({8}, {0, 0, 0, 1, 0, 0, 0, 0}));
  EXPECT_EQ(biased.ids, (std::vector<int32_t>{3, 0}));
  const double a = 1 / (1 + std::exp(-3.0)), b = 0.5;
  EXPECT_NEAR(biased.weights[1], a / (a + b), 1e-12);
}

TEST(Selection, ChoicesAreEquivariantUnderPermutations) {
  Rank rank;
  const int64_t T = 30, E = 8, K = 3;
  const Tensor logits = rank.normal({T, E}, DType::f64, "logits", 2), bias = rank.normal({E}, DType::f32, "bias", 0.2);
  const std::vector<int64_t> experts = {5, 4, 7, 6, 1, 0, 3, 2};  // neighbours remain in groups of two
  const auto moved_token = [&](int64_t t) { return (7 * t + 3) % T; };
  Tensor moved = rank.poisoned({T, E}, DType::f64), moved_bias = rank.poisoned({E}, DType::f32);
  for (int64_t e = 0; e < E; ++e) {
    moved_bias.data<float>()[e] = bias.data<float>()[experts[static_cast<size_t>(e)]];
    for (int64_t t = 0; t < T; ++t)
      moved.data<double>()[t * E + e] = logits.data<double>()[moved_token(t) * E + experts[static_cast<size_t>(e)]];
  }
  for (const std::map<std::string, std::string>& settings : std::vector<std::map<std::string, std::string>>{
           {},
           {{"moe_router_score_function", "sqrtsoftplus"}, {"moe_router_enable_expert_bias", "true"}},
           {{"moe_router_num_groups", "4"}, {"moe_router_group_topk", "2"}, {"moe_router_group_score_topk", "2"}},
           {{"moe_router_selection", "sinkhorn"}}}) {
    const MoeConfig config = config_of(E, K, settings);
    const bool biased = config.moe_router_enable_expert_bias;
    const Routed before = route(rank, config, logits, biased ? bias : Tensor()),
                 after = route(rank, config, moved, biased ? moved_bias : Tensor());
    for (int64_t t = 0; t < T; ++t)
      for (int64_t k = 0; k < K; ++k) {
        const auto at = static_cast<size_t>(t * K + k), from = static_cast<size_t>(moved_token(t) * K + k);
        EXPECT_EQ(experts[static_cast<size_t>(after.ids[at])], before.ids[from]);
        EXPECT_NEAR(after.weights[at], before.weights[from], 1e-12);
      }
  }
}

TEST(Selection, SinkhornBalancesSkewedLogits) {
  Rank rank;
  const int64_t T = 400, E = 8;
  Tensor logits = rank.normal({T, E}, DType::f64, "logits");
  for (int64_t t = 0; t < T; ++t) logits.data<double>()[t * E] += 4;
  const auto most = [&](const MoeConfig& config) {
    std::vector<int> load(static_cast<size_t>(E));
    for (const int32_t id : route(rank, config, logits).ids) ++load[static_cast<size_t>(id)];
    return std::ranges::max(load);
  };
  MoeConfig config = config_of(E, 1, {{"moe_router_pre_softmax", "true"}});
  EXPECT_GT(most(config), T * 9 / 10);
  config.moe_router_selection = "sinkhorn";
  EXPECT_LT(most(config), T / E * 3 / 2);
  // One iteration by hand: without a tolerance the bound ends it, and with a large one the first iteration.
  std::vector<double> expected;
  for (int64_t e = 0; e < E; ++e) {
    double sum = 0;
    for (int64_t t = 0; t < T; ++t) {
      double row = 0;
      for (int64_t other = 0; other < E; ++other) row += std::exp(logits.data<double>()[t * E + other]);
      sum += std::exp(logits.data<double>()[t * E + e]) / row / double(T);
    }
    expected.push_back(-std::log(sum * double(E)));
  }
  const auto bias = [&](int64_t iterations, double tolerance) {
    const Tensor found = rank.poisoned({E}, DType::f64);
    kernels::sinkhorn_bias(rank.stream, found, logits, iterations, tolerance);
    return values(found);
  };
  EXPECT_TRUE(close(bias(1, 0), expected, 1e-6, 0));
  EXPECT_EQ(bias(50, 1e9), bias(1, 0));
  EXPECT_NE(bias(50, 0), bias(1, 0));
}

TEST(Selection, SinkhornOfPartsMatchesTheWhole) {
  Rank rank;
  const int64_t B = 2, S = 8, E = 6;
  const Tensor logits = rank.normal({B * S, E}, DType::f64, "logits", 2);
  const MoeConfig config = config_of(E, 2, {{"moe_router_selection", "sinkhorn"}});
  const ExpertSelection selection(config, "router");
  const TokenSource source;
  const auto whole =
      values(selection.choice(rank.stream, {logits, B, source, Dropping::by_capacity, nullptr}, Tensor())->bias);
  testing::on_ranks(2, [&](testing::ThreadRank& part) {
    const auto group = part.everyone("context");
    const Tensor own =
        own_positions(part.stream, part.tensor<double>({B, S, E}, values(logits)), *group).reshape({B * S / 2, E});
    const auto choice = selection.choice(part.stream, {own, B, source, Dropping::by_capacity, group.get()}, Tensor());
    EXPECT_EQ(values(choice->bias), whole);
  });
  EXPECT_FALSE(selection.choice(rank.stream, {logits, B, source, Dropping::never, nullptr}, Tensor()))
      << "a text that is read must not depend on others";
}

TEST(Selection, ForcedChoicesHaveTheirLoadAndChangeEveryStep) {
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

TEST(Selection, ZipfsBusiestExpertHasTheRequestedLoad) {
  for (const auto& [E, K] : std::vector<std::pair<int64_t, int64_t>>{{16, 1}, {64, 8}, {40, 3}})
    for (const double imbalance : {1.0, 2.0, 4.0, 8.0}) {
      const std::vector<double> loads =
          forced_loads(E, K, {{"moe_router_selection", "zipf"}, {"moe_router_imbalance", cat(imbalance)}});
      EXPECT_NEAR(loads[0], imbalance, 0.08 * imbalance) << E << " " << K;
      if (imbalance != 2) continue;
      for (size_t e = 7; e < loads.size(); e += 4) EXPECT_LT(loads[e], loads[(e - 3) / 4]) << e;
    }
}

TEST(Selection, HotSelectionSendsEveryTokenToOneExpert) {
  for (const int64_t K : {1, 4}) {
    const std::vector<double> loads = forced_loads(16, K, {{"moe_router_selection", "hot"}});
    EXPECT_NEAR(loads[0], 16.0 / static_cast<double>(K), 1e-9);
    for (size_t e = 1; e < loads.size(); ++e)
      EXPECT_NEAR(loads[e], 16.0 / 15 * static_cast<double>(K - 1) / static_cast<double>(K), 0.1);
  }
}

// A token makes the same choice wherever it is routed.
TEST(Selection, ForcedChoicesOfPartsMatchTheWhole) {
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

TEST(Selection, HashDependsOnTokenIdAndLayer) {
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

// Zhou et al., computed literally: softmax over experts, and for each expert the tokens with the largest values.
TEST(Selection, ExpertsChooseTheirBestTokens) {
  Rank rank;
  const int64_t T = 24, D = 8, E = 4, K = 2, C = T * K / E;
  MoeConfig config = config_of(E, K, {{"moe_router_selection", "expert_choice"}});
  config.moe_router_pre_softmax = true;
  config.validate(2);
  const auto router =
      make_router({.stream = rank.stream, .dtype = DType::f64, .init_std = 1, .path = "router"}, config, D);
  const Tensor x = rank.normal({T, D}, DType::f64, "x");
  Tape tape(rank.stream);
  const Routing routing = router->forward(tape, tape.constant(x));
  ASSERT_EQ(routing.ids.shape(), (Shape{T, E}));
  EXPECT_EQ(routing.capacity, C);
  EXPECT_EQ(routing.counts.to_vector<int64_t>(), std::vector<int64_t>(4, C));
  EXPECT_EQ(routing.record.value(kExpertCounts).to_vector<int64_t>(), std::vector<int64_t>(4, C));
  const Tensor& w = router->parameters()[0]->value();
  std::vector<double> scores(static_cast<size_t>(T * E)), expected(static_cast<size_t>(T * E));
  for (int64_t t = 0; t < T; ++t) {
    double sum = 0;
    for (int64_t e = 0; e < E; ++e) {
      double logit = 0;
      for (int64_t d = 0; d < D; ++d) logit += x.data<double>()[t * D + d] * w.data<double>()[e * D + d];
      sum += scores[static_cast<size_t>(t * E + e)] = std::exp(logit);
    }
    for (int64_t e = 0; e < E; ++e) scores[static_cast<size_t>(t * E + e)] /= sum;
  }
  for (int64_t e = 0; e < E; ++e) {
    std::vector<int64_t> order(static_cast<size_t>(T));
    std::iota(order.begin(), order.end(), 0);
    std::ranges::sort(order, std::greater<>(), [&](int64_t t) { return scores[static_cast<size_t>(t * E + e)]; });
    for (int64_t i = 0; i < C; ++i) {
      const auto at = static_cast<size_t>(order[static_cast<size_t>(i)] * E + e);
      expected[at] = scores[at];
    }
  }
  Routed kept{values(routing.weights.value()), routing.ids.to_vector<int32_t>()};
  for (size_t i = 0; i < kept.ids.size(); ++i)
    if (kept.ids[i] < 0) kept.ids[i] = 0, kept.weights[i] = 0;
  EXPECT_TRUE(close(dense(kept, T, E), expected, 1e-12, 0));
  EXPECT_EQ(router->forward(tape, tape.constant(x), Dropping::never).ids.shape(), (Shape{T, K}));
}

TEST(Selection, LogitBiasIsLearnedAndNoiseOnlyInTraining) {
  Rank rank;
  const int64_t B = 2, S = 3, D = 8;
  MoeConfig config = config_of(4, 2, {{"moe_router_add_bias", "true"}});
  const auto router =
      make_router({.stream = rank.stream, .dtype = DType::f64, .init_std = 1, .path = "router"}, config, D);
  ASSERT_EQ(router->parameters().size(), 2u);
  EXPECT_EQ(router->parameters()[1]->name(), "router.bias");
  const Tensor x = rank.normal({B, S, D}, DType::f64, "x");
  Tape tape(rank.stream);
  const double bias[] = {0, 100, 0, 50};
  rank.stream.write(router->parameters()[1]->value(), bias);
  const auto ids = router->forward(tape, tape.constant(x)).ids.to_vector<int32_t>();
  for (size_t i = 0; i < ids.size(); i += 2) EXPECT_EQ((std::vector{ids[i], ids[i + 1]}), (std::vector{1, 3}));

  config.moe_router_add_bias = false;
  config.moe_input_jitter_eps = 0.5;
  const auto noisy =
      make_router({.stream = rank.stream, .dtype = DType::f64, .init_std = 1, .path = "router"}, config, D);
  const auto of = [&](const Randomness& randomness) {
    return values(noisy->forward(tape, tape.constant(x), Dropping::by_capacity, {{}, randomness}).weights.value());
  };
  EXPECT_EQ(of({}), of({}));
  EXPECT_NE(of(randomness_of(rank)), of({}));
  EXPECT_EQ(of(randomness_of(rank)), of(randomness_of(rank)));
  EXPECT_NE(of(randomness_of(rank)), of(randomness_of(rank, 8)));
}

// For any number of experts the target is 4 times the mean, or the largest possible load.
TEST(Selection, ZipfHasADefaultForAnyNumberOfExperts) {
  for (const auto& [E, K, imbalance] :
       std::vector<std::tuple<int64_t, int64_t, double>>{{4, 2, 2}, {4, 4, 1}, {6, 4, 1.5}, {8, 2, 4}, {64, 2, 4}}) {
    const MoeConfig config = config_of(E, K, {{"moe_router_selection", "zipf"}});
    config.validate(2);
    EXPECT_EQ(config.zipf_imbalance(), imbalance) << E << " " << K;
    const auto loads = forced_loads(E, K, {{"moe_router_selection", "zipf"}});
    EXPECT_NEAR(loads[0], imbalance, 0.08 * imbalance) << E << " " << K;
  }
}

TEST(Selection, ErrorsExplainImpossibleSettings) {
  const auto refusal = [](int64_t topk, const std::map<std::string, std::string>& settings) {
    return test::message_of<ConfigError>([&] { config_of(8, topk, settings).validate(2); });
  };
  const auto expect = [&](int64_t topk, const std::map<std::string, std::string>& settings, const std::string& why) {
    EXPECT_NE(refusal(topk, settings).find(why), std::string::npos) << refusal(topk, settings);
  };
  expect(1, {}, "moe_router_topk = 1 needs moe_router_pre_softmax = true");
  expect(1, {{"moe_router_norm_topk_prob", "true"}, {"moe_router_score_function", "sigmoid"}},
         "moe_router_norm_topk_prob = \"true\" needs moe_router_topk of at least 2");
  expect(2, {{"moe_router_norm_topk_prob", "false"}}, "a softmax over the chosen sums to 1 by itself");
  expect(2, {{"moe_router_topk_scaling_factor", "0"}}, "must be above 0");
  expect(2, {{"moe_input_jitter_eps", "1"}}, "must be below 1");
  expect(2, {{"moe_router_num_groups", "4"}}, "set both, or neither");
  expect(2, {{"moe_router_num_groups", "3"}, {"moe_router_group_topk", "1"}}, "is not divisible by");
  expect(2, {{"moe_router_num_groups", "4"}, {"moe_router_group_topk", "5"}}, "is more than moe_router_num_groups = 4");
  expect(5, {{"moe_router_num_groups", "4"}, {"moe_router_group_topk", "2"}}, "is more than the experts of");
  expect(2, {{"moe_router_num_groups", "4"}, {"moe_router_group_topk", "3"}}, "set moe_router_group_score_topk");
  expect(2, {{"moe_router_num_groups", "4"}, {"moe_router_group_topk", "2"}, {"moe_router_group_score_topk", "3"}},
         "is more than the 2 experts of a group");
  expect(2, {{"moe_router_selection", "hash"}, {"moe_router_num_groups", "4"}, {"moe_router_group_topk", "2"}},
         "does not choose by a token's scores alone");
  expect(2, {{"moe_router_selection", "skew"}, {"moe_router_skew", "1.5"}}, "is a share");
  expect(2, {{"moe_router_selection", "zipf"}, {"moe_router_imbalance", "5"}}, "no expert's load exceeds");
  expect(2, {{"moe_router_selection", "expert_choice"}, {"moe_token_drop_policy", "position"}},
         "experts choose by scores");
  expect(2, {{"moe_router_selection", "zipf"}, {"moe_router_imbalance", "0.5"}}, "set at least 1, or 0");
  config_of(8, 1, {{"moe_router_selection", "hash"}}).validate(2);  // a hash has nothing to learn
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
