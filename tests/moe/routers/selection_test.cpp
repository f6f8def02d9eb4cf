// Selections of experts by the configuration's keys, compared with Megatron-Core (tests/golden/moe/make_golden.py) and
// with plain loops written from the papers, and properties that must hold for each.
#include "witan/moe/routers/selection.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "moe/routers/selection_support.h"
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
using testing::config_of;
using testing::gradcheck;
using testing::randomness_of;
using testing::Rank;
using testing::route;
using testing::Routed;
using testing::values;

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

}  // namespace
}  // namespace witan
