// Routers that are given their tokens' experts (route replay), and report the experts that they use.
#include <numeric>

#include "support/gradcheck.h"
#include "support/message_of.h"
#include "support/module.h"
#include "witan/moe/routers/balance.h"
#include "witan/moe/routers/router.h"

namespace witan {
namespace {

using testing::close;
using testing::gradcheck;
using testing::Rank;
using testing::values;

constexpr int64_t kTokens = 6, kWidth = 4, kExperts = 5, kTopk = 2;

// Replays `ids` if they are defined, and records the reported routes.
struct Tap : RouteAccess {
  Tensor recorded(int64_t router) override {
    asked.push_back(router);
    return ids;
  }
  void record(Stream&, int64_t, const Tensor& told_ids, const Tensor& told_weights) override {
    found_ids.push_back(told_ids.to_vector<int32_t>());
    found_weights.push_back(values(told_weights));
  }
  Tensor ids;
  std::vector<int64_t> asked;
  std::vector<std::vector<int32_t>> found_ids;
  std::vector<std::vector<double>> found_weights;
};

struct Routed {
  explicit Routed(const MoeConfig& moe) : config(moe) {
    config.num_experts = kExperts;
    config.moe_router_topk = kTopk;
    router = make_router({.stream = rank.stream, .dtype = DType::f64, .init_std = 1, .path = "router"}, config, kWidth);
    testing::bind_gradients(rank.stream, *router);
    router->attach({.routes = &tap, .router = 3});
    x = rank.normal({kTokens, kWidth}, DType::f64, "x");
  }
  Routing route() {
    Tape tape(rank.stream);
    return router->forward(tape, tape.constant(x));
  }

  Rank rank;
  MoeConfig config;
  Tap tap;
  std::unique_ptr<Router> router;
  Tensor x;
};

std::vector<int32_t> others(std::vector<int32_t> ids) {
  for (int32_t& id : ids) id = static_cast<int32_t>((id + 2) % kExperts);
  return ids;
}

std::vector<MoeConfig> kinds_of_routers() {
  MoeConfig softmax, pre_softmax, sigmoid, biased, sequences;
  pre_softmax.moe_router_pre_softmax = true;
  sigmoid.moe_router_score_function = biased.moe_router_score_function = "sigmoid";
  biased.moe_router_enable_expert_bias = true;
  sequences.moe_router_load_balancing_type = "seq_aux_loss";
  return {softmax, pre_softmax, sigmoid, biased, sequences};
}

TEST(Routes, ReplayingTheRoutersChoiceChangesNothing) {
  for (const MoeConfig& moe : kinds_of_routers()) {
    Routed one(moe);
    const Routing own = one.route();
    EXPECT_EQ(one.tap.asked, (std::vector<int64_t>{3}));
    EXPECT_EQ(one.tap.found_ids.at(0), own.ids.to_vector<int32_t>());
    EXPECT_EQ(one.tap.found_weights.at(0), values(own.weights.value()));
    one.tap.ids = own.ids;
    const Routing again = one.route();
    EXPECT_EQ(again.ids.to_vector<int32_t>(), own.ids.to_vector<int32_t>());
    EXPECT_EQ(again.counts.to_vector<int64_t>(), own.counts.to_vector<int64_t>());
    EXPECT_EQ(values(again.weights.value()), values(own.weights.value()));
    for (const char* loss : {kBalanceLoss, kZLoss})
      EXPECT_TRUE(close(again.record.value(loss), own.record.value(loss), 0, 1e-14)) << loss;
  }
}

TEST(Routes, ReplaysOtherExperts) {
  for (const MoeConfig& moe : kinds_of_routers()) {
    Routed one(moe);
    const std::vector<int32_t> given = others(one.route().ids.to_vector<int32_t>());
    one.tap.ids = one.rank.tensor<int32_t>({kTokens, kTopk}, given);
    const Routing routing = one.route();
    EXPECT_EQ(routing.ids.to_vector<int32_t>(), given);
    std::vector<int64_t> counts(kExperts);
    for (const int32_t id : given) ++counts[static_cast<size_t>(id)];
    EXPECT_EQ(routing.counts.to_vector<int64_t>(), counts);
    EXPECT_EQ(one.tap.found_ids.back(), given);
    if (moe.moe_router_pre_softmax) continue;
    const std::vector<double> weights = values(routing.weights.value());
    for (size_t t = 0; t < weights.size(); t += kTopk) EXPECT_NEAR(weights[t] + weights[t + 1], 1, 1e-14);
  }
}

// The router's gradient passes through the weights of the given experts, and through a loss that balances their load.
TEST(Routes, GradientsOfGivenExpertsMatchDifferences) {
  for (const MoeConfig& moe : kinds_of_routers()) {
    Routed one(moe);
    const std::vector<int32_t> given = others(one.route().ids.to_vector<int32_t>());
    one.tap.ids = one.rank.tensor<int32_t>({kTokens, kTopk}, given);
    const bool biased = moe.moe_router_enable_expert_bias;  // then the loss balances a choice, which may change
    gradcheck(one.rank, "router",
              [&](Tape& tape, const std::vector<Var>& in) {
                const Routing routing = one.router->forward(tape, in[0]);
                std::vector<Var> out = {routing.weights, routing.record.loss(kZLoss)};
                if (!biased) out.push_back(routing.record.loss(kBalanceLoss));
                return out;
              },
              {one.x});
  }
}

TEST(Routes, RefusesAnotherNumberOfTokens) {
  Routed one(MoeConfig{});
  one.tap.ids = one.rank.tensor<int32_t>({1, kTopk}, {0, 1});
  EXPECT_EQ(test::message_of<ShapeError>([&] { one.route(); }),
            "route: recorded ids are [1, 2], the router chooses [6, 2]");
}

}  // namespace
}  // namespace witan
