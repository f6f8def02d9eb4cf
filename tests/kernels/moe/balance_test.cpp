#include <numeric>

#include "support/rank.h"
#include "witan/kernels/moe/router.h"

namespace witan {
namespace {

using testing::close;
using testing::Rank;
using testing::values;

// E / (T N) sum_e n_e P_e computed literally; the sums are over B sequences, whose probabilities are added.
TEST(BalanceLoss, FollowsItsDefinition) {
  Rank rank;
  for (const DType dtype : {DType::f32, DType::f64})
    for (const auto& [B, E] : std::vector<std::array<int64_t, 2>>{{1, 1}, {1, 5}, {3, 8}, {7, 33}}) {
      const int64_t tokens = 40;
      const Tensor sums = rank.normal({B * E + kernels::kTokenSums}, dtype, "sums"), loss = rank.poisoned({1}, dtype);
      std::vector<int64_t> counts(static_cast<size_t>(E));
      for (int64_t e = 0; e < E; ++e)
        counts[static_cast<size_t>(e)] = e == 1 ? 0 : e * e + 3;  // expert 1 gets no token
      const auto all = static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
      const Tensor of_experts = rank.tensor<int64_t>({E}, counts);
      kernels::balance_loss(rank.stream, loss, sums, of_experts, {tokens});
      const std::vector<double> of = values(sums);
      double expected = 0;
      std::vector<double> gradient(counts.size());
      for (size_t e = 0; e < counts.size(); ++e) {
        double mass = 0;
        for (size_t b = 0; b < static_cast<size_t>(B); ++b) mass += of[b * counts.size() + e];
        const double share = static_cast<double>(counts[e]) / all;
        expected += static_cast<double>(E) * share * mass / tokens;
        gradient[e] = static_cast<double>(E) * share / tokens;
      }
      const double tolerance = dtype == DType::f64 ? 1e-13 : 1e-5;
      EXPECT_TRUE(close(values(loss), {expected}, tolerance, tolerance));

      const Tensor dprobs = rank.poisoned({E}, dtype);
      const Tensor dloss = rank.stream.empty({1}, dtype);
      dispatch_floating(dtype, [&]<class A>() { dloss.data<A>()[0] = A(2.0F); });
      kernels::balance_backward(rank.stream, dprobs, dloss, of_experts, {tokens}, Write::overwrite);
      kernels::balance_backward(rank.stream, dprobs, dloss, of_experts, {tokens}, Write::accumulate);
      for (double& value : gradient) value *= 4;
      EXPECT_TRUE(close(values(dprobs), gradient, tolerance, tolerance));
    }
}

TEST(BalanceLoss, IsZeroWithoutTokens) {
  Rank rank;
  const Tensor sums = rank.stream.zeros({4 + kernels::kTokenSums}, DType::f64), loss = rank.poisoned({1}, DType::f64),
               dprobs = rank.poisoned({4}, DType::f64), counts = rank.tensor<int64_t>({4}, {0, 0, 0, 0});
  kernels::balance_loss(rank.stream, loss, sums, counts, {0});
  kernels::balance_backward(rank.stream, dprobs, loss, counts, {0}, Write::overwrite);
  EXPECT_EQ(values(loss), std::vector<double>{0});
  EXPECT_EQ(values(dprobs), std::vector<double>(4));
}

}  // namespace
}  // namespace witan
