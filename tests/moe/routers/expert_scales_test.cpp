// Learned factors of experts and the norm of a router's input (Gemma 4).
#include "witan/moe/routers/expert_scales.h"

#include <cmath>

#include "support/gradcheck.h"
#include "support/message_of.h"
#include "support/module.h"
#include "witan/base/error.h"
#include "witan/moe/routers/router.h"

namespace witan {
namespace {

using test::message_of;
using testing::close;
using testing::gradcheck;
using testing::Rank;
using testing::values;

// An expert that no token names, one that several name, and ids of dropped assignments.
TEST(ExpertScales, GradientsMatchDifferences) {
  Rank rank;
  const Tensor ids = rank.tensor<int32_t>({4, 2}, {0, 3, 3, -1, 0, 1, -1, -1});
  gradcheck(rank, "expert_scales",
            [&](Tape& tape, const std::vector<Var>& in) {
              return std::vector{ops::scale_by_expert(tape, in[0], ids, in[1])};
            },
            {rank.normal({4, 2}, DType::f64, "weights"), rank.normal({5}, DType::f64, "scale")});
}

TEST(ExpertScales, MultiplyTheWeightsOfTheirExperts) {
  Rank rank;
  Tape tape(rank.stream);
  const Var y = ops::scale_by_expert(tape, tape.constant(rank.tensor<double>({2, 2}, {1, 2, 3, 4})),
                                     rank.tensor<int32_t>({2, 2}, {2, 0, -1, 1}),
                                     tape.constant(rank.tensor<double>({3}, {10, 100, -1})));
  EXPECT_EQ(values(y.value()), (std::vector<double>{-1, 20, 0, 400}));
  const Var none =
      ops::scale_by_expert(tape, tape.constant(rank.stream.empty({0, 2}, DType::f64)),
                           rank.stream.empty({0, 2}, DType::i32), tape.constant(rank.tensor<double>({3}, {1, 2, 3})));
  EXPECT_EQ(none.shape(), Shape({0, 2}));
}

TEST(ExpertScales, ErrorsNameWrongShapes) {
  Rank rank;
  Tape tape(rank.stream);
  const Var weights = tape.input(rank.normal({2, 2}, DType::f64, "w")),
            scale = tape.input(rank.normal({3}, DType::f64, "s"));
  const Tensor ids = rank.tensor<int32_t>({2, 2}, {0, 1, 2, 0});
  EXPECT_EQ(message_of<ShapeError>([&] { ops::scale_by_expert(tape, scale, ids, scale); }),
            "expert_scales: weights must be [T, K], floating and contiguous, got float64 [3]");
  EXPECT_EQ(message_of<ShapeError>([&] { ops::scale_by_expert(tape, weights, ids.reshape({4}), scale); }),
            "expert_scales: ids must be int32 [2, 2], got int32 [4]");
  EXPECT_EQ(message_of<ShapeError>([&] { ops::scale_by_expert(tape, weights, ids, weights); }),
            "expert_scales: scale must be float64 [E], got float64 [2, 2]");
}

// The choice and the weights are those of softmax((x / rms(x) * factor) W^T / sqrt(D)) over the chosen, times a factor.
TEST(ExpertScales, RoutersNormaliseTheirInput) {
  constexpr int64_t kTokens = 6, kWidth = 4, kExperts = 5;
  Rank rank;
  MoeConfig config;
  config.num_experts = kExperts;
  config.moe_router_topk = 2;
  config.moe_router_input_norm = config.moe_router_expert_scale = true;
  NormConfig norm;
  norm.norm_epsilon = 1e-3;
  norm.apply_layernorm_1p = true;  // not of the router's own norm
  const auto router = make_router({.stream = rank.stream, .dtype = DType::f64, .init_std = 1, .path = "router"}, config,
                                  kWidth, nullptr, norm);
  std::map<std::string, std::vector<double>> of;
  for (Parameter* parameter : router->parameters()) {
    if (parameter->name() != "router.weight") {
      const auto begins = values(parameter->value());
      EXPECT_EQ(begins, std::vector<double>(begins.size(), 1)) << parameter->name();
      rank.stream.copy(parameter->value(), rank.normal(parameter->value().shape(), DType::f64, parameter->name()));
    }
    of[parameter->name()] = values(parameter->value());
  }
  ASSERT_EQ(of.size(), 3U);
  const Tensor x = rank.normal({kTokens, kWidth}, DType::f64, "x");
  const auto in = values(x);
  Tape tape(rank.stream);
  const Routing routing = router->forward(tape, tape.constant(x));
  const auto ids = routing.ids.to_vector<int32_t>();
  const auto weights = values(routing.weights.value());
  for (size_t t = 0; t < kTokens; ++t) {
    double squares = 0;
    for (size_t d = 0; d < kWidth; ++d) squares += in[t * kWidth + d] * in[t * kWidth + d];
    const double r = 1 / std::sqrt(squares / kWidth + 1e-3);
    std::vector<double> logits(kExperts);
    for (size_t e = 0; e < kExperts; ++e)
      for (size_t d = 0; d < kWidth; ++d)
        logits[e] += in[t * kWidth + d] * r * of["router.input_norm.weight"][d] * of["router.weight"][e * kWidth + d] /
                     std::sqrt(kWidth);
    const auto a = static_cast<size_t>(ids[2 * t]), b = static_cast<size_t>(ids[2 * t + 1]);
    for (size_t e = 0; e < kExperts; ++e)
      EXPECT_LE(e == a || e == b ? -INFINITY : logits[e], std::min(logits[a], logits[b]));
    const double share = 1 / (1 + std::exp(logits[b] - logits[a]));
    EXPECT_NEAR(weights[2 * t], share * of["router.expert_scale"][a], 1e-12);
    EXPECT_NEAR(weights[2 * t + 1], (1 - share) * of["router.expert_scale"][b], 1e-12);
  }
}

}  // namespace
}  // namespace witan
