#include "witan/moe/routers/router.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "support/gradcheck.h"
#include "support/message_of.h"
#include "support/module.h"
#include "support/thread_world.h"
#include "witan/comm/context.h"
#include "witan/moe/routers/balance.h"
#include "witan/moe/routers/capacity.h"

namespace witan {
namespace {

using kernels::Scores;
using testing::close;
using testing::gradcheck;
using testing::Rank;
using testing::values;

// Logits that are at least `gap` apart, so that a difference quotient never changes a choice.
Tensor distinct_logits(Rank& rank, int64_t T, int64_t E, double gap) {
  Tensor logits = rank.normal({T, E}, DType::f64, "order");
  const int64_t middle = E / 2;
  for (int64_t t = 0; t < T; ++t) {
    std::vector<int64_t> order(static_cast<size_t>(E));
    for (int64_t e = 0; e < E; ++e) order[static_cast<size_t>(e)] = e;
    double* row = logits.data<double>() + t * E;
    std::ranges::sort(order, {}, [&](int64_t e) { return row[e]; });
    for (int64_t i = 0; i < E; ++i) row[order[static_cast<size_t>(i)]] = gap * static_cast<double>(i - middle);
  }
  return logits;
}

TEST(Route, GradientsMatchDifferences) {
  Rank rank;
  for (const Scores scores : {Scores::softmax_of_chosen, Scores::softmax})
    for (const auto& [T, E, K] : std::vector<std::array<int64_t, 3>>{{5, 4, 2}, {3, 6, 1}, {4, 3, 3}, {2, 1, 1}}) {
      gradcheck(rank, "router",
                [K = K, scores](Tape& tape, const std::vector<Var>& in) {
                  const Routing routing = ops::route(tape, in[0], {K, scores});
                  return std::vector{routing.weights, routing.record.loss(kBalanceLoss), routing.record.loss(kZLoss)};
                },
                {distinct_logits(rank, T, E, 0.3)});
    }
}

// Only one output is used at a time, so that the other gradients are undefined.
TEST(Route, EveryOutputHasItsOwnGradient) {
  Rank rank;
  for (const Scores scores : {Scores::softmax_of_chosen, Scores::softmax})
    for (const size_t which : {0, 1, 2})
      gradcheck(rank, "router",
                [which, scores](Tape& tape, const std::vector<Var>& in) {
                  const Routing routing = ops::route(tape, in[0], {2, scores});
                  return std::vector{std::array{routing.weights, routing.record.loss(kBalanceLoss),
                                                routing.record.loss(kZLoss)}[which]};
                },
                {distinct_logits(rank, 3, 5, 0.3)});
}

TEST(Route, GradientsOfSequencesMatchDifferences) {
  Rank rank;
  for (const Scores scores : {Scores::softmax_of_chosen, Scores::softmax})
    for (const auto& [B, S, E, K] : std::vector<std::array<int64_t, 4>>{{2, 3, 4, 2}, {3, 2, 5, 1}, {4, 1, 3, 2}})
      gradcheck(rank, "router",
                [K = K, B = B, scores](Tape& tape, const std::vector<Var>& in) {
                  const Routing routing = ops::route(tape, in[0], {K, scores}, nullptr, B);
                  return std::vector{routing.weights, routing.record.loss(kBalanceLoss), routing.record.loss(kZLoss)};
                },
                {distinct_logits(rank, B * S, E, 0.3)});
}

// Equation 17 of DeepSeek-V3, divided by the number of experts and computed literally: for each sequence sum_e f_e P_e,
// with f_e the share of its tokens that chose e, times E / K, and P_e the mean probability.
double balance_of_sequences(const std::vector<double>& logits, size_t B, size_t S, size_t E, size_t K) {
  double sum = 0;
  for (size_t b = 0; b < B; ++b) {
    std::vector<double> f(E), P(E);
    for (size_t t = b * S; t < (b + 1) * S; ++t) {
      double all = 0;
      for (size_t e = 0; e < E; ++e) all += std::exp(logits[t * E + e]);
      for (size_t e = 0; e < E; ++e) {
        size_t better = 0;
        for (size_t other = 0; other < E; ++other) better += logits[t * E + other] > logits[t * E + e];
        if (better < K) f[e] += double(E) / double(K * S);
        P[e] += std::exp(logits[t * E + e]) / all / double(S);
      }
    }
    for (size_t e = 0; e < E; ++e) sum += f[e] * P[e];
  }
  return sum / double(B);
}

TEST(Route, SequencesAreBalancedSeparatelyOverAnyRanks) {
  Rank rank;
  const int64_t B = 3, S = 12, E = 5, K = 2;
  const auto logits = values(rank.normal({B * S, E}, DType::f64, "logits", 2));
  const double expected = balance_of_sequences(logits, B, S, E, K);
  Tape tape(rank.stream);
  const Var x = tape.input(rank.tensor<double>({B * S, E}, logits));
  const Routing whole = ops::route(tape, x, {K, Scores::softmax_of_chosen}, nullptr, B);
  EXPECT_NEAR(whole.record.loss(kBalanceLoss).value().data<double>()[0], expected, 1e-13);
  const double together =
      ops::route(tape, x, {K, Scores::softmax_of_chosen}).record.loss(kBalanceLoss).value().data<double>()[0];
  EXPECT_GT(std::abs(together - expected), 1e-3)
      << "the load of all sequences together should differ: the test is vacuous";
  tape.backward({{whole.record.loss(kBalanceLoss), {}}, {whole.record.loss(kZLoss), {}}});
  const auto gradient = values(tape.gradient(x));

  for (const int ranks : {2, 3})
    testing::on_ranks(ranks, [&](testing::ThreadRank& part) {
      const auto group = part.everyone("context");
      const int64_t own = S / ranks;
      std::vector<double> of_part, expected_gradient;  // the own-th part of every sequence
      for (int64_t b = 0; b < B; ++b) {
        const int64_t begin = (b * S + part.rank * own) * E, end = begin + own * E;
        of_part.insert(of_part.end(), logits.begin() + begin, logits.begin() + end);
        expected_gradient.insert(expected_gradient.end(), gradient.begin() + begin, gradient.begin() + end);
      }
      Tape on(part.stream);
      const Var mine = on.input(part.tensor<double>({B * own, E}, of_part));
      const Routing routing = ops::route(on, mine, {K, Scores::softmax_of_chosen}, group.get(), B);
      EXPECT_NEAR(routing.record.loss(kBalanceLoss).value().data<double>()[0], expected, 1e-13);
      EXPECT_NEAR(routing.record.loss(kZLoss).value().data<double>()[0],
                  whole.record.loss(kZLoss).value().data<double>()[0], 1e-13);
      EXPECT_EQ(routing.counts.to_vector<int64_t>(), whole.counts.to_vector<int64_t>());
      on.backward({{routing.record.loss(kBalanceLoss), {}}, {routing.record.loss(kZLoss), {}}});
      EXPECT_TRUE(close(values(on.gradient(mine)), expected_gradient, 1e-14, 1e-12));
    });
}

TEST(Route, SoftmaxAfterTheChoiceNormalisesWeights) {
  Rank rank;
  Tape tape(rank.stream);
  const Var logits = tape.constant(rank.normal({50, 8}, DType::f32, "logits"));
  const auto after = values(ops::route(tape, logits, {3, Scores::softmax_of_chosen}).weights.value()),
             before = values(ops::route(tape, logits, {3, Scores::softmax}).weights.value());
  for (size_t t = 0; t < 50; ++t) {
    EXPECT_NEAR(after[3 * t] + after[3 * t + 1] + after[3 * t + 2], 1, 1e-6);
    EXPECT_LT(before[3 * t] + before[3 * t + 1] + before[3 * t + 2], 1);
    EXPECT_NEAR(before[3 * t] / before[3 * t + 2], after[3 * t] / after[3 * t + 2], 1e-4) << "the ratios are the same";
  }
}

TEST(Route, ErrorsNameWrongShapes) {
  Rank rank;
  Tape tape(rank.stream);
  const auto route = [&](const Shape& shape, DType dtype, int64_t topk) {
    return test::message_of<ShapeError>([&] {
      ops::route(tape, tape.input(rank.normal(shape, dtype, "logits")), {topk, Scores::softmax_of_chosen});
    });
  };
  EXPECT_EQ(route({2, 4}, DType::f32, 5), "route: logits must be [T, E] with E >= 5, got [2, 4]");
  EXPECT_EQ(route({8}, DType::f32, 1), "route: logits must be [T, E] with E >= 1, got [8]");
  EXPECT_NE(route({2, 4}, DType::f32, 0), "");
  EXPECT_EQ(route({2, 4}, DType::bf16, 2), "route: logits must be float32 or float64, got bfloat16");
  const Var five = tape.input(rank.normal({5, 4}, DType::f32, "logits"));
  EXPECT_EQ(test::message_of<ShapeError>([&] {
              ops::route(tape, five, {2, Scores::softmax_of_chosen}, nullptr, 2);
            }),
            "route: the 5 tokens are not those of 2 sequences of one length");
}

// The rows of the residual stream are sequences. Generation has no loss.
TEST(Router, CanBalanceRowsSeparately) {
  Rank rank;
  Tape tape(rank.stream);
  const int64_t B = 4, S = 6, D = 16;
  const Tensor x = rank.normal({B, S, D}, DType::f64, "x");
  const auto balance = [&](const char* type, const Tensor& of, Dropping dropping = Dropping::by_capacity) {
    MoeConfig config;
    set_field(config.fields(), "moe_router_load_balancing_type", type, "test");
    const auto router =
        make_router({.stream = rank.stream, .dtype = DType::f64, .init_std = 1, .path = "router"}, config, D);
    return router->forward(tape, tape.constant(of), dropping).record.loss(kBalanceLoss).value().data<double>()[0];
  };
  double mean = 0;
  for (int64_t b = 0; b < B; ++b) mean += balance("aux_loss", x.narrow(0, b, 1)) / double(B);
  EXPECT_NEAR(balance("seq_aux_loss", x), mean, 1e-13);
  EXPECT_GT(std::abs(balance("aux_loss", x) - mean), 1e-3);
  EXPECT_EQ(balance("seq_aux_loss", x, Dropping::never), balance("aux_loss", x));
  EXPECT_EQ(balance("seq_aux_loss", x.reshape({B * S, D})), balance("aux_loss", x)) << "rows without sequences are one";
}

TEST(Router, CapacityDropsOnlyAssignments) {
  Rank rank;
  Tape tape(rank.stream);
  const Var x = tape.constant(rank.normal({40, 16}, DType::f64, "x"));
  MoeConfig config;
  const auto route = [&](double factor, const std::string& policy) {
    config.moe_expert_capacity_factor = factor;
    config.moe_token_drop_policy = policy;
    const auto router =
        make_router({.stream = rank.stream, .dtype = DType::f64, .init_std = 1, .path = "router"}, config, 16);
    return router->forward(tape, x);
  };
  const Routing all = route(0, "probs");
  EXPECT_EQ(all.capacity, 40);
  EXPECT_EQ(all.kept.to_vector<int64_t>(), all.counts.to_vector<int64_t>());
  const auto ids = all.ids.to_vector<int32_t>();
  const auto weights = values(all.weights.value());
  for (const std::string policy : {"probs", "position"}) {
    const Routing some = route(0.7, policy);
    EXPECT_EQ(some.capacity, 7);
    EXPECT_EQ(some.counts.to_vector<int64_t>(), all.counts.to_vector<int64_t>()) << "the load is that of the router";
    EXPECT_EQ(values(some.weights.value()), weights);
    EXPECT_EQ(values(some.record.loss(kBalanceLoss).value()), values(all.record.loss(kBalanceLoss).value()));
    const auto kept = some.ids.to_vector<int32_t>();
    int64_t dropped = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      if (kept[i] == ids[i]) continue;
      ++dropped;
      EXPECT_EQ(kept[i], -1);
      int better = 0;  // kept assignments of the same expert with a higher priority
      for (size_t j = 0; j < ids.size(); ++j)
        if (ids[j] == ids[i] && kept[j] >= 0) better += policy == "probs" ? weights[j] >= weights[i] : j < i;
      EXPECT_EQ(better, 7) << policy;
    }
    EXPECT_GT(dropped, 0);
    const auto counts = some.kept.to_vector<int64_t>();
    EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), int64_t{0}), 80 - dropped);
  }
}

// Megatron-LM's definition, computed literally: its residual stream is [S, B, D], whose tokens are numbered s B + b. Of
// an expert's assignments the first are kept, or the most probable and among equal ones the first.
TEST(Router, CapacityFollowsMegatronsTokenOrder) {
  constexpr int64_t S = 7, D = 8, E = 3, K = 2;
  for (const int64_t B : {1, 2, 3})
    for (const std::string policy : {"probs", "position"})
      for (const bool ties : {false, true}) {
        SCOPED_TRACE(cat(B, " sequences, ", policy, ties ? ", all alike" : ""));
        Rank rank;
        Tape tape(rank.stream);
        const Var x =
            tape.constant(ties ? rank.stream.zeros({B, S, D}, DType::f64) : rank.normal({B, S, D}, DType::f64, "x"));
        MoeConfig config;
        config.num_experts = E;
        config.moe_router_topk = K;
        config.moe_token_drop_policy = policy;
        const auto route = [&](double factor) {
          config.moe_expert_capacity_factor = factor;
          const auto router =
              make_router({.stream = rank.stream, .dtype = DType::f64, .init_std = 1, .path = "router"}, config, D);
          return router->forward(tape, x);
        };
        const Routing all = route(0), some = route(0.5);
        const auto ids = all.ids.to_vector<int32_t>();
        const auto weights = values(all.weights.value());
        const auto capacity =
            static_cast<size_t>(std::ceil(static_cast<double>(B * S * K) / static_cast<double>(E) * 0.5));
        std::vector<int32_t> expected(ids.size(), -1);
        for (int32_t e = 0; e < E; ++e) {
          std::vector<size_t> mine;  // in Megatron-LM's order
          for (int64_t row = 0; row < S * B; ++row)
            for (int64_t k = 0; k < K; ++k)
              if (const auto i = static_cast<size_t>((row % B * S + row / B) * K + k); ids[i] == e) mine.push_back(i);
          if (policy == "probs")
            std::ranges::stable_sort(mine, std::greater{}, [&](size_t i) { return static_cast<float>(weights[i]); });
          for (size_t i = 0; i < std::min(mine.size(), capacity); ++i) expected[mine[i]] = e;
        }
        EXPECT_EQ(some.ids.to_vector<int32_t>(), expected);
        std::vector<int64_t> kept(E);
        for (const int32_t id : expected)
          if (id >= 0) ++kept[static_cast<size_t>(id)];
        EXPECT_EQ(some.kept.to_vector<int64_t>(), kept);
        EXPECT_NE(expected, ids) << "nothing is dropped: the test is vacuous";
      }
}

// The ranks of a context axis drop the assignments that a single rank drops.
TEST(Router, CapacityIsTheSameIfRanksDivideSequences) {
  constexpr int64_t B = 3, S = 8, E = 2;
  for (const auto policy : {DropPolicy::probs, DropPolicy::position}) {
    std::vector<int32_t> expected;
    {
      Rank rank;
      Tape tape(rank.stream, Tape::Mode::off);
      const Routing all =
          ops::route(tape, tape.constant(rank.normal({B * S, E}, DType::f64, "logits")), {1, Scores::softmax});
      expected = ops::limit_to_capacity(rank.stream, all, {5, policy}, nullptr, B).ids.to_vector<int32_t>();
    }
    testing::on_ranks(2, [&](testing::ThreadRank& rank) {
      const auto context = rank.everyone("context");
      const Tensor logits = rank.normal({B * S, E}, DType::f64, "logits");
      const Tensor own = own_positions(rank.stream, logits.reshape({B, S, E}), *context).reshape({B * S / 2, E});
      Tape tape(rank.stream, Tape::Mode::off);
      const Routing all = ops::route(tape, tape.constant(own), {1, Scores::softmax}, context.get());
      const Routing some = ops::limit_to_capacity(rank.stream, all, {5, policy}, context.get(), B);
      const Tensor found = gather_positions(rank.stream, some.ids.reshape({B, S / 2, 1}), *context);
      EXPECT_EQ(found.to_vector<int32_t>(), expected);
    });
  }
}

TEST(Router, ComputesInFloat32ForBfloat16Models) {
  Rank rank;
  const Builder builder{.stream = rank.stream, .dtype = DType::bf16, .path = "router"};
  MoeConfig config;
  const auto router = make_router(builder, config, 16);
  ASSERT_EQ(router->parameters().size(), 1U);
  const Parameter& weight = *router->parameters()[0];
  EXPECT_EQ(weight.name(), "router.weight");
  EXPECT_EQ(weight.value().dtype(), DType::f32);
  EXPECT_EQ(weight.global_shape(), Shape({8, 16}));
  EXPECT_FALSE(weight.spec().expert) << "the router is replicated";

  testing::bind_gradients(rank.stream, *router);
  Tape tape(rank.stream);
  const Var x = tape.input(rank.normal({7, 16}, DType::bf16, "x"));
  const Routing routing = router->forward(tape, x);
  EXPECT_EQ(routing.weights.dtype(), DType::f32);
  EXPECT_EQ(routing.record.loss(kBalanceLoss).dtype(), DType::f32);
  EXPECT_EQ(routing.ids.shape(), Shape({7, 2}));
  const auto counts = routing.counts.to_vector<int64_t>();
  EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), int64_t{0}), 14);
  tape.backward({{routing.weights, {}}, {routing.record.loss(kBalanceLoss), {}}, {routing.record.loss(kZLoss), {}}});
  EXPECT_EQ(tape.gradient(x).dtype(), DType::bf16);
  for (const double value : values(router->parameters()[0]->gradient())) EXPECT_TRUE(std::isfinite(value));
}

// A capacity above the number of tokens of one context rank may still be below that of the micro-batch.
TEST(Router, CapacityMayExceedTheTokensOfOneRank) {
  testing::on_ranks(2, [](testing::ThreadRank& rank) {
    const auto context = rank.everyone("context");
    const Tensor logits = rank.stream.empty({8, 2}, DType::f64);  // 8 of 16 tokens, all of which choose expert 0
    for (int64_t t = 0; t < 8; ++t) {
      logits.data<double>()[2 * t] = 1;
      logits.data<double>()[2 * t + 1] = 0;
    }
    Tape tape(rank.stream, Tape::Mode::off);
    const Routing all = ops::route(tape, tape.constant(logits), {1, Scores::softmax_of_chosen}, context.get());
    const Routing some =
        ops::limit_to_capacity(rank.stream, all, {12, DropPolicy::position}, context.get(), /*sequences=*/1);
    // The first rank has chunks 0 and 3 of four, the other 1 and 2; the last chunk is dropped.
    EXPECT_EQ(some.kept.to_vector<int64_t>(), (std::vector<int64_t>{rank.rank == 0 ? 4 : 8, 0}));
    const Routing roomy = ops::limit_to_capacity(rank.stream, all, {16, DropPolicy::position}, context.get(), 1);
    EXPECT_EQ(roomy.kept.to_vector<int64_t>(), (std::vector<int64_t>{8, 0}));
  });
}

}  // namespace
}  // namespace witan
