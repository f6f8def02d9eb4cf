// Routers' GPU kernels with padding rows, against the CPU's, which tests/kernels compares with plain loops.
#include <algorithm>

#include "support/cuda_rank.h"
#include "support/dropout.h"
#include "support/routing.h"
#include "witan/kernels/moe/capacity.h"
#include "witan/kernels/moe/dispatch.h"
#include "witan/kernels/moe/router.h"
#include "witan/kernels/moe/selection.h"

namespace witan {
namespace {

using kernels::Scores;
using testing::values;

constexpr Scores kAllScores[] = {Scores::softmax_of_chosen, Scores::softmax, Scores::sigmoid, Scores::sqrtsoftplus};
// T rows of B sequences, E experts, K of them for each token.
const std::vector<std::array<int64_t, 4>> kSizes = {{1, 1, 1, 1},      {66, 2, 33, 2},    {602, 7, 64, 8},
                                                    {5000, 5, 128, 6}, {42, 21, 257, 33}, {70, 70, 8, 2}};

class PaddingOnGpu : public testing::CudaTest {
 protected:
  // The last rows of each sequence are padding, and all rows of every third sequence.
  Tensor padded_ids(int64_t T, int64_t B) {
    std::vector<int32_t> ids;
    const int64_t length = T / B;
    for (int64_t t = 0; t < T; ++t) {
      const int64_t b = t / length, real = b % 3 == 1 ? 0 : std::max<int64_t>(length - b % 5 - length / 4, 1);
      ids.push_back(t % length < real ? static_cast<int32_t>(t % 2) : -1);
    }
    return host.tensor<int32_t>({T}, ids);
  }

  struct Routed {
    kernels::RouterOutputs out;
    Tensor counts;  // [B, E]
  };
  Routed routed(Stream& s, const Tensor& logits, const Tensor& ids, int64_t B, int64_t K, Scores scores) {
    const int64_t T = logits.size(0), E = logits.size(1);
    const DType A = logits.dtype();
    const auto make = [&](const Shape& shape, DType dtype) {
      return s.is_cuda() ? poisoned(shape, dtype) : s.empty(shape, dtype);
    };
    Routed all{{make({T, K}, DType::i32), make({T, K}, A), make({T, E}, A), make({T}, A), make({E}, DType::i64),
                make({1}, A), make({1}, A), make({1}, A), logits, ids, make({1}, DType::i64)},
               make({B, E}, DType::i64)};
    kernels::router_forward(s, all.out, logits, scores);
    const Tensor sums = make({B * E + kernels::kTokenSums}, A);
    kernels::router_sums(s, sums, all.out);
    kernels::count_assignments(s, all.counts, all.out.ids);
    kernels::count_tokens(s, all.out.tokens, all.out.counts, K);
    kernels::router_losses(s, all.out, {sums, all.counts, T, K});
    return all;
  }
};

TEST_F(PaddingOnGpu, RoutesAndLossesAgreeWithTheCpu) {
  for (const DType dtype : {DType::f32, DType::f64})
    for (const Scores scores : kAllScores)
      for (const auto& [T, B, E, K] : kSizes) {
        SCOPED_TRACE(cat(dtype, " T=", T, " B=", B, " E=", E, " K=", K, " scores ", static_cast<int>(scores)));
        const double most = tolerance(dtype);
        const Tensor logits = host.normal({T, E}, dtype, "logits", 2), ids = padded_ids(T, B);
        auto [expected, counts] = routed(host.stream, logits, ids, B, K, scores);
        auto [found, gpu_counts] = routed(gpu(), to_gpu(logits), to_gpu(ids), B, K, scores);
        EXPECT_EQ(to_host(found.ids).to_vector<int32_t>(), expected.ids.to_vector<int32_t>());
        EXPECT_EQ(to_host(found.counts).to_vector<int64_t>(), expected.counts.to_vector<int64_t>());
        EXPECT_EQ(to_host(found.tokens).to_vector<int64_t>(), expected.tokens.to_vector<int64_t>());
        EXPECT_TRUE(agree(found.weights, expected.weights, most / 10, most));
        EXPECT_TRUE(agree(found.probs, expected.probs, most / 10, most));
        EXPECT_TRUE(agree(found.lse, expected.lse, most, most));
        EXPECT_TRUE(agree(found.balance, expected.balance, 0, most));
        EXPECT_TRUE(agree(found.z, expected.z, 0, most));
        EXPECT_TRUE(agree(found.entropy, expected.entropy, most, most));

        const Tensor dw = host.normal({T, K}, dtype, "dw"), one = host.normal({1}, dtype, "one"),
                     dprobs = host.normal({E}, dtype, "dprobs"), gradient = host.poisoned({T, E}, dtype),
                     gpu_gradient = poisoned({T, E}, dtype);
        expected.counts = counts;
        found.counts = gpu_counts;
        kernels::router_backward(host.stream, gradient, {dw, one, one, dprobs}, expected, scores);
        kernels::router_backward(gpu(), gpu_gradient, {to_gpu(dw), to_gpu(one), to_gpu(one), to_gpu(dprobs)}, found,
                                 scores);
        EXPECT_TRUE(agree(gpu_gradient, gradient, most, most));
        kernels::router_backward(host.stream, gradient, {{}, one, one, {}}, expected, scores);
        kernels::router_backward(gpu(), gpu_gradient, {{}, to_gpu(one), to_gpu(one), {}}, found, scores);
        EXPECT_TRUE(agree(gpu_gradient, gradient, most, most)) << "without weights";
      }
}

TEST_F(PaddingOnGpu, ChoosesAsTheCpuDoes) {
  for (const DType dtype : {DType::f32, DType::f64})
    for (const auto& [T, B, E, K] : kSizes) {
      SCOPED_TRACE(cat(dtype, " T=", T, " E=", E, " K=", K));
      const Tensor logits = host.normal({T, E}, dtype, "logits", 2), ids = padded_ids(T, B);
      const auto expected = routed(host.stream, logits, ids, B, K, Scores::softmax).out;
      const auto found = routed(gpu(), to_gpu(logits), to_gpu(ids), B, K, Scores::softmax).out;
      kernels::Selection drawn{.random = {.where = testing::dropout_of(host, 0)}}, on_device = drawn;
      on_device.random.where.step = to_gpu(drawn.random.where.step);
      kernels::select_experts(host.stream, expected, logits, Scores::softmax, drawn);
      kernels::select_experts(gpu(), found, to_gpu(logits), Scores::softmax, on_device);
      EXPECT_EQ(to_host(found.ids).to_vector<int32_t>(), expected.ids.to_vector<int32_t>());
      EXPECT_TRUE(agree(found.weights, expected.weights, tolerance(dtype) / 10, tolerance(dtype)));
      std::ranges::fill(expected.ids.span<int32_t>(), 0);
      gpu().write(found.ids, expected.ids.raw());
      kernels::weigh_chosen(host.stream, expected, logits, Scores::softmax);
      kernels::weigh_chosen(gpu(), found, to_gpu(logits), Scores::softmax);
      EXPECT_EQ(to_host(found.ids).to_vector<int32_t>(), expected.ids.to_vector<int32_t>());
      EXPECT_TRUE(agree(found.weights, expected.weights, tolerance(dtype) / 10, tolerance(dtype)));

      const Tensor bias = host.poisoned({E}, dtype), on_gpu = poisoned({E}, dtype);
      kernels::sinkhorn_bias(host.stream, bias, logits, 2, 0, ids);
      kernels::sinkhorn_bias(gpu(), on_gpu, to_gpu(logits), 2, 0, to_gpu(ids));
      EXPECT_TRUE(agree(on_gpu, bias, dtype == DType::f64 ? 1e-12 : 1e-3, 0));
    }
}

TEST_F(PaddingOnGpu, QuantilesAndCapacitiesMatchTheCpu) {
  for (const DType dtype : {DType::f32, DType::f64})
    for (const auto& [T, B, E, K] : kSizes) {
      SCOPED_TRACE(cat(dtype, " T=", T, " E=", E, " K=", K));
      const Tensor logits = host.normal({T, E}, dtype, "logits", 2), ids = padded_ids(T, B);
      const auto all = routed(host.stream, logits, ids, B, K, Scores::softmax).out;
      for (const double factor : {0.3, 1.0})
        for (const auto policy : {DropPolicy::probs, DropPolicy::position}) {
          const kernels::Capacity capacity{T, policy, factor, K, all.tokens};
          kernels::Capacity on_device = capacity;
          on_device.tokens = to_gpu(all.tokens);
          const kernels::Assignments kept{host.stream.empty({T, K}, DType::i32), host.stream.empty({E}, DType::i64)},
              found{to_gpu(all.ids), poisoned({E}, DType::i64)};
          host.stream.copy(kept.ids, all.ids);
          kernels::limit_to_capacity(host.stream, kept, host.stream.empty({T * K}, DType::i64), {all.ids, all.counts},
                                     all.weights, capacity);
          kernels::limit_to_capacity(gpu(), found, poisoned({T * K}, DType::i64), {to_gpu(all.ids), to_gpu(all.counts)},
                                     to_gpu(all.weights), on_device);
          EXPECT_EQ(to_host(found.ids).to_vector<int32_t>(), kept.ids.to_vector<int32_t>());
          EXPECT_EQ(to_host(found.counts).to_vector<int64_t>(), kept.counts.to_vector<int64_t>());
        }
      if (K >= E) continue;
      const Tensor bias = host.normal({E}, DType::f32, "bias"), chosen = host.stream.empty({T, K}, DType::i32),
                   margins = host.poisoned({1, E, T}, dtype), sums = host.stream.empty({E + 1}, DType::i64);
      const Tensor gpu_chosen = poisoned({T, K}, DType::i32), gpu_margins = poisoned({1, E, T}, dtype),
                   gpu_sums = poisoned({E + 1}, DType::i64);
      kernels::choose_by_quantiles(host.stream, chosen, margins, logits, bias, ids);
      kernels::choose_by_quantiles(gpu(), gpu_chosen, gpu_margins, to_gpu(logits), to_gpu(bias), to_gpu(ids));
      EXPECT_EQ(to_host(gpu_chosen).to_vector<int32_t>(), chosen.to_vector<int32_t>());
      EXPECT_EQ(values(to_host(gpu_margins)), values(margins));
      for (const Tensor& tokens : {all.tokens, host.tensor<int64_t>({1}, {0})}) {
        kernels::quantile_sums(host.stream, sums, margins, K, tokens);
        kernels::quantile_sums(gpu(), gpu_sums, gpu_margins, K, to_gpu(tokens));
        EXPECT_EQ(to_host(gpu_sums).to_vector<int64_t>(), sums.to_vector<int64_t>());
      }
    }
}

TEST_F(PaddingOnGpu, BalanceCountsOnlyTokens) {
  const int64_t E = 33;
  const Tensor sums = host.normal({E + kernels::kTokenSums}, DType::f64, "sums"),
               counts = host.tensor<int64_t>({E}, std::vector<int64_t>(E, 7)), loss = host.poisoned({1}, DType::f64),
               on_gpu = poisoned({1}, DType::f64), dprobs = host.poisoned({E}, DType::f64),
               gpu_dprobs = poisoned({E}, DType::f64);
  for (const int64_t tokens : {0, 5}) {
    const Tensor counted = host.tensor<int64_t>({1}, {tokens});
    kernels::balance_loss(host.stream, loss, sums, counts, {99, counted});
    kernels::balance_loss(gpu(), on_gpu, to_gpu(sums), to_gpu(counts), {99, to_gpu(counted)});
    EXPECT_TRUE(agree(on_gpu, loss, 1e-12, 1e-12));
    kernels::balance_backward(host.stream, dprobs, loss, counts, {99, counted}, Write::overwrite);
    kernels::balance_backward(gpu(), gpu_dprobs, to_gpu(loss), to_gpu(counts), {99, to_gpu(counted)}, Write::overwrite);
    EXPECT_TRUE(agree(gpu_dprobs, dprobs, 1e-12, 1e-12));
  }
}

}  // namespace
}  // namespace witan
