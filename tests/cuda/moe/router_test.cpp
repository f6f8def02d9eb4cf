#include <limits>

#include "support/cuda_rank.h"
#include "witan/kernels/common/step_report.h"
#include "witan/kernels/moe/dispatch.h"
#include "witan/kernels/moe/selection.h"
#include "witan/kernels/pointwise/elementwise.h"

namespace witan {
namespace {

using kernels::Scores;
using testing::values;

constexpr Scores kAllScores[] = {Scores::softmax_of_chosen, Scores::softmax, Scores::sigmoid, Scores::sqrtsoftplus};

class RouterOnGpu : public testing::CudaTest {
 protected:
  static kernels::RouterOutputs outputs(int64_t T, int64_t E, int64_t K, DType A,
                                        const std::function<Tensor(const Shape&, DType)>& make) {
    return {make({T, K}, DType::i32), make({T, K}, A), make({T, E}, A), make({T}, A),
            make({E}, DType::i64),    make({1}, A),    make({1}, A),    make({1}, A)};
  }
  kernels::RouterOutputs on_host(const Tensor& logits, int64_t K, Scores scores) {
    auto out = outputs(logits.size(0), logits.size(1), K, logits.dtype(),
                       [&](const Shape& shape, DType dtype) { return host.stream.empty(shape, dtype); });
    out.logits = logits;
    kernels::router_forward(host.stream, out, logits, scores);
    return out;
  }
  kernels::RouterOutputs on_gpu(const Tensor& logits, int64_t K, Scores scores) {
    auto out = outputs(logits.size(0), logits.size(1), K, logits.dtype(),
                       [&](const Shape& shape, DType dtype) { return poisoned(shape, dtype); });
    out.logits = to_gpu(logits);
    kernels::router_forward(gpu(), out, out.logits, scores);
    return out;
  }
  void expect_same_choice(const kernels::RouterOutputs& gpu_out, const kernels::RouterOutputs& cpu_out) {
    EXPECT_EQ(to_host(gpu_out.ids).to_vector<int32_t>(), cpu_out.ids.to_vector<int32_t>());
    EXPECT_EQ(to_host(gpu_out.counts).to_vector<int64_t>(), cpu_out.counts.to_vector<int64_t>());
  }
  void expect_agreement(const Tensor& logits, int64_t K, Scores scores) {
    SCOPED_TRACE(cat(logits.dtype(), " ", logits.shape(), " K=", K, " scores ", static_cast<int>(scores)));
    const auto expected = on_host(logits, K, scores), out = on_gpu(logits, K, scores);
    expect_same_choice(out, expected);
    const double most = tolerance(logits.dtype());
    EXPECT_TRUE(agree(out.weights, expected.weights, most / 10, most));
    EXPECT_TRUE(agree(out.probs, expected.probs, most / 10, most));
    EXPECT_TRUE(agree(out.lse, expected.lse, most, most));
    EXPECT_TRUE(agree(out.balance, expected.balance, 0, most));
    EXPECT_TRUE(agree(out.z, expected.z, 0, most));
    EXPECT_TRUE(agree(out.entropy, expected.entropy, most, most));

    const auto again = on_gpu(logits, K, scores);
    EXPECT_EQ(values(to_host(again.probs)), values(to_host(out.probs)));
    EXPECT_EQ(values(to_host(again.balance)), values(to_host(out.balance)));
    EXPECT_EQ(values(to_host(again.z)), values(to_host(out.z)));
    EXPECT_EQ(values(to_host(again.entropy)), values(to_host(out.entropy)));
  }
};

// The router's own choice must get the same bits, another choice the CPU's weights.
TEST_F(RouterOnGpu, WeighsGivenExpertsAsTheCpuDoes) {
  for (const DType dtype : {DType::f32, DType::f64})
    for (const Scores scores : kAllScores)
      for (const auto& [T, E, K] : std::vector<std::array<int64_t, 3>>{
               {0, 4, 2}, {1, 1, 1}, {33, 8, 2}, {301, 64, 1}, {129, 128, 8}, {65, 300, 40}}) {
        SCOPED_TRACE(cat(dtype, " T=", T, " E=", E, " K=", K, " scores ", static_cast<int>(scores)));
        const Tensor logits = host.normal({T, E}, dtype, "logits", 3);
        auto expected = on_host(logits, K, scores), out = on_gpu(logits, K, scores);
        const std::vector<double> own = values(to_host(out.weights));
        kernels::weigh_chosen(gpu(), out, out.logits, scores);
        EXPECT_EQ(values(to_host(out.weights)), own);
        for (int32_t& id : expected.ids.span<int32_t>()) id = static_cast<int32_t>((id + 1) % E);
        out.ids = to_gpu(expected.ids);
        kernels::weigh_chosen(host.stream, expected, logits, scores);
        kernels::weigh_chosen(gpu(), out, out.logits, scores);
        EXPECT_TRUE(agree(out.weights, expected.weights, tolerance(dtype) / 10, tolerance(dtype)));
      }
}

// Every number of experts per lane, and numbers of tokens that fill blocks or do not.
TEST_F(RouterOnGpu, AgreesWithTheCpu) {
  for (const DType dtype : {DType::f32, DType::f64})
    for (const Scores scores : kAllScores)
      for (const auto& [T, E, K] : std::vector<std::array<int64_t, 3>>{{1, 1, 1},
                                                                       {5, 3, 3},
                                                                       {33, 8, 2},
                                                                       {301, 64, 1},
                                                                       {129, 60, 7},
                                                                       {9001, 64, 8},
                                                                       {77, 128, 6},
                                                                       {513, 256, 8},
                                                                       {40, 257, 33},
                                                                       {19, 1000, 64},
                                                                       {4099, 200, 40}})
        expect_agreement(host.normal({T, E}, dtype, "logits", 3), K, scores);
}

TEST_F(RouterOnGpu, TheLowerOfEqualExpertsWins) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    const Tensor logits = host.normal({200, 100}, dtype, "logits");
    dispatch_floating(dtype, [&]<class A>() {  // few distinct values, among them zeros of both signs
      for (A& logit : logits.span<A>()) logit = A(std::trunc(static_cast<double>(logit)));
    });
    for (const Scores scores : kAllScores) expect_agreement(logits, 64, scores);
  }
}

// NaNs are chosen as on the CPU, wherever they are, and so are infinities.
TEST_F(RouterOnGpu, NonFiniteLogitsAreChosenAsOnTheCpu) {
  const double strange[] = {std::nan(""), std::numeric_limits<double>::infinity(),
                            -std::numeric_limits<double>::infinity()};
  for (const DType dtype : {DType::f32, DType::f64}) {
    const int64_t T = 300, E = 70;
    const Tensor logits = host.normal({T, E}, dtype, "logits");
    const Philox rng(5, 5);
    dispatch_floating(dtype, [&]<class A>() {
      for (int64_t i = 0; i < T * E; ++i) {
        const int64_t often = i / E % 5;  // out of ten, by row
        if (static_cast<int64_t>(rng.below(5, static_cast<uint64_t>(i))) < often || i % E < i / E % 4)
          logits.data<A>()[i] = A(strange[(i / E + i / 7) % 3]);
      }
      for (int64_t e = 0; e < E; ++e) logits.data<A>()[e] = A(std::nan(""));
    });
    for (const int64_t K : {1, 8, 64}) {
      const auto expected = on_host(logits, K, Scores::softmax), out = on_gpu(logits, K, Scores::softmax);
      expect_same_choice(out, expected);
      const auto weights = values(to_host(out.weights)), on_cpu = values(expected.weights);
      for (size_t i = 0; i < weights.size(); ++i) ASSERT_EQ(std::isnan(weights[i]), std::isnan(on_cpu[i])) << i;
    }
  }
}

TEST_F(RouterOnGpu, LargeLogitsDoNotOverflow) {
  const Tensor logits = host.tensor<float>({1, 3}, {1e4F, -1e4F, 1e4F});
  const auto out = on_gpu(logits, 2, Scores::softmax_of_chosen);
  EXPECT_EQ(values(to_host(out.weights)), (std::vector<double>{0.5, 0.5}));
  EXPECT_EQ(values(to_host(out.probs)), (std::vector<double>{0.5, 0, 0.5}));
}

TEST_F(RouterOnGpu, LossesAndCountsAreZeroWithoutTokens) {
  const auto out = on_gpu(host.stream.empty({0, 40}, DType::f32), 2, Scores::softmax_of_chosen);
  EXPECT_EQ(to_host(out.counts).to_vector<int64_t>(), std::vector<int64_t>(40, 0));
  EXPECT_EQ(values(to_host(out.balance)), std::vector<double>{0});
  EXPECT_EQ(values(to_host(out.z)), std::vector<double>{0});
  kernels::router_backward(gpu(), gpu().empty({0, 40}, DType::f32), {out.weights, out.balance, out.z}, out,
                           Scores::softmax_of_chosen);
}

TEST_F(RouterOnGpu, GradientsAgreeWithTheCpu) {
  for (const DType dtype : {DType::f32, DType::f64})
    for (const Scores scores : kAllScores)
      for (const auto& [T, E, K] : std::vector<std::array<int64_t, 3>>{{1, 1, 1},
                                                                       {7, 5, 5},
                                                                       {301, 64, 1},
                                                                       {1003, 64, 8},
                                                                       {65, 128, 6},
                                                                       {50, 256, 8},
                                                                       {21, 500, 40},
                                                                       {9, 1000, 64}})
        for (const int present : {0, 1, 2, 4, 7}) {
          SCOPED_TRACE(cat(dtype, " T=", T, " E=", E, " K=", K, " gradients ", present));
          const Tensor logits = host.normal({T, E}, dtype, "logits", 2);
          const auto forward = on_host(logits, K, scores);
          const auto some = [&](int bit, const Shape& shape, const char* name) {
            return present & bit ? host.normal(shape, dtype, name) : Tensor();
          };
          const kernels::RouterGradients gradients{some(1, {T, K}, "dweights"), some(2, {1}, "dbalance"),
                                                   some(4, {1}, "dz")};
          const Tensor expected = host.poisoned({T, E}, dtype), dlogits = poisoned({T, E}, dtype);
          kernels::router_backward(host.stream, expected, gradients, forward, scores);
          kernels::router_backward(
              gpu(), dlogits, {to_gpu(gradients.weights), to_gpu(gradients.balance), to_gpu(gradients.z)},
              {to_gpu(forward.ids), to_gpu(forward.weights), to_gpu(forward.probs), to_gpu(forward.lse),
               to_gpu(forward.counts), Tensor(), Tensor(), Tensor(), to_gpu(forward.logits)},
              scores);
          EXPECT_TRUE(agree(dlogits, expected, tolerance(dtype) / 10, tolerance(dtype)));
        }
}

// Weights are scaled, and scores are not normalised.
TEST_F(RouterOnGpu, WeightsAndTheirGradientsAreScaledAsOnTheCpu) {
  const int64_t T = 203, E = 64, K = 6;
  for (const DType dtype : {DType::f32, DType::f64})
    for (const Scores scores : kAllScores)
      for (const bool normalised : {false, true}) {
        const kernels::Scoring scoring(scores, normalised, 2.5);
        SCOPED_TRACE(cat(dtype, " scores ", static_cast<int>(scores), normalised ? " normalised" : ""));
        const Tensor logits = host.normal({T, E}, dtype, "logits", 2),
                     dweights = host.normal({T, K}, dtype, "dweights");
        const auto make = [&](const Shape& shape, DType of) { return host.stream.empty(shape, of); };
        auto expected = outputs(T, E, K, dtype, make);
        auto out = outputs(T, E, K, dtype, [&](const Shape& shape, DType of) { return poisoned(shape, of); });
        expected.logits = logits;
        out.logits = to_gpu(logits);
        kernels::router_forward(host.stream, expected, logits, scoring);
        kernels::router_forward(gpu(), out, out.logits, scoring);
        EXPECT_TRUE(agree(out.weights, expected.weights, tolerance(dtype) / 10, tolerance(dtype)));
        const Tensor gradient = host.poisoned({T, E}, dtype), on_gpu = poisoned({T, E}, dtype);
        kernels::router_backward(host.stream, gradient, {dweights, Tensor(), Tensor()}, expected, scoring);
        kernels::router_backward(gpu(), on_gpu, {to_gpu(dweights), Tensor(), Tensor()}, out, scoring);
        EXPECT_TRUE(agree(on_gpu, gradient, tolerance(dtype), tolerance(dtype)));
      }
}

TEST_F(RouterOnGpu, BiasUpdatesMatchTheCpu) {
  for (const int64_t E : {1, 8, 257, 1000}) {
    const Tensor bias = host.normal({E}, DType::f32, "bias"), load = host.stream.empty({E}, DType::i64),
                 step = host.stream.zeros({kernels::kStepValues}, DType::f64), gpu_bias = to_gpu(bias);
    for (int64_t e = 0; e < E; ++e) load.data<int64_t>()[e] = e * 7919 % 13 + (int64_t{1} << 40);
    for (const double skip : {0.0, 1.0, 0.0}) {
      step.data<double>()[kernels::step_value::skip] = skip;
      kernels::update_expert_bias(host.stream, bias, load, step, 1e-3);
      kernels::update_expert_bias(gpu(), gpu_bias, to_gpu(load), to_gpu(step), 1e-3);
      EXPECT_EQ(values(to_host(gpu_bias)), values(bias));
    }
  }
}

// The losses of the whole from the sums of its parts, and the gradients that a part gets from them.
TEST_F(RouterOnGpu, PartsCombineToTheLossesAndGradientsOfTheWhole) {
  for (const DType dtype : {DType::f32, DType::f64})
    for (const auto& [T, E, K] :
         std::vector<std::array<int64_t, 3>>{{2, 1, 1}, {66, 33, 2}, {602, 64, 8}, {4002, 128, 6}, {42, 257, 33}}) {
      SCOPED_TRACE(cat(dtype, " T=", T, " E=", E, " K=", K));
      const Tensor logits = host.normal({T, E}, dtype, "logits", 2);
      const auto whole = on_host(logits, K, Scores::softmax_of_chosen);
      const Tensor total = host.stream.zeros({E + kernels::kTokenSums}, dtype),
                   dbalance = host.normal({1}, dtype, "dbalance"), dz = host.normal({1}, dtype, "dz"),
                   dlogits = host.poisoned({T, E}, dtype);
      kernels::router_backward(host.stream, dlogits, {Tensor(), dbalance, dz}, whole, Scores::softmax_of_chosen);
      for (const int64_t begin : {int64_t{0}, T / 2}) {
        auto part = on_gpu(logits.narrow(0, begin, T / 2), K, Scores::softmax_of_chosen);
        const Tensor sums = poisoned({E + kernels::kTokenSums}, dtype), gradient = poisoned({T / 2, E}, dtype);
        kernels::router_sums(gpu(), sums, part);
        kernels::add(host.stream, total, total, to_host(sums));
        part.counts = to_gpu(whole.counts);
        kernels::router_backward(gpu(), gradient, {Tensor(), to_gpu(dbalance), to_gpu(dz)}, part,
                                 Scores::softmax_of_chosen, 2);
        EXPECT_TRUE(agree(gradient, dlogits.narrow(0, begin, T / 2), tolerance(dtype) / 10, tolerance(dtype)));
      }
      const auto joined = on_gpu(logits, K, Scores::softmax_of_chosen);
      kernels::router_losses(gpu(), joined, {to_gpu(total), to_gpu(whole.counts), T, K});
      EXPECT_TRUE(agree(joined.balance, whole.balance, 0, tolerance(dtype)));
      EXPECT_TRUE(agree(joined.z, whole.z, 0, tolerance(dtype)));
      EXPECT_TRUE(agree(joined.entropy, whole.entropy, tolerance(dtype), tolerance(dtype)));
    }
}

// Sequences that are balanced separately, whole and divided into two parts each.
TEST_F(RouterOnGpu, SequencesAreBalancedAsOnTheCpu) {
  for (const DType dtype : {DType::f32, DType::f64})
    for (const Scores scores : kAllScores)
      for (const auto& [B, S, E, K] : std::vector<std::array<int64_t, 4>>{
               {3, 2, 1, 1}, {2, 33, 33, 2}, {7, 86, 64, 8}, {5, 1000, 128, 6}, {21, 2, 257, 33}, {70, 1, 8, 2}}) {
        SCOPED_TRACE(cat(dtype, " B=", B, " S=", S, " E=", E, " K=", K));
        const int64_t T = B * S;
        const Tensor logits = host.normal({T, E}, dtype, "logits", 2);
        const auto on_cpu = on_host(logits, K, scores), out = on_gpu(logits, K, scores);
        const Tensor sums = host.poisoned({B * E + kernels::kTokenSums}, dtype),
                     counts = host.stream.empty({B, E}, DType::i64);
        kernels::router_sums(host.stream, sums, on_cpu);
        kernels::count_assignments(host.stream, counts, on_cpu.ids);
        const Tensor gpu_sums = poisoned({B * E + kernels::kTokenSums}, dtype),
                     gpu_counts = poisoned({B, E}, DType::i64);
        kernels::router_sums(gpu(), gpu_sums, out);
        kernels::count_assignments(gpu(), gpu_counts, out.ids);
        EXPECT_TRUE(agree(gpu_sums, sums, tolerance(dtype), tolerance(dtype)));
        EXPECT_EQ(to_host(gpu_counts).to_vector<int64_t>(), counts.to_vector<int64_t>());

        kernels::router_losses(gpu(), out, {gpu_sums, gpu_counts, T, K});
        kernels::router_losses(host.stream, on_cpu, {sums, counts, T, K});
        EXPECT_TRUE(agree(out.balance, on_cpu.balance, 0, tolerance(dtype)));
        EXPECT_TRUE(agree(out.z, on_cpu.z, 0, tolerance(dtype)));
        EXPECT_TRUE(agree(out.entropy, on_cpu.entropy, tolerance(dtype), tolerance(dtype)));

        for (const int parts : {1, 2}) {
          const Tensor dweights = host.normal({T, K}, dtype, "dweights"),
                       dbalance = host.normal({1}, dtype, "dbalance"), dz = host.normal({1}, dtype, "dz"),
                       expected = host.poisoned({T, E}, dtype), dlogits = poisoned({T, E}, dtype);
          auto host_saved = on_cpu, gpu_saved = out;
          host_saved.counts = counts;
          gpu_saved.counts = gpu_counts;
          kernels::router_backward(host.stream, expected, {dweights, dbalance, dz}, host_saved, scores, parts);
          kernels::router_backward(gpu(), dlogits, {to_gpu(dweights), to_gpu(dbalance), to_gpu(dz)}, gpu_saved, scores,
                                   parts);
          EXPECT_TRUE(agree(dlogits, expected, tolerance(dtype), tolerance(dtype)));
        }
      }
}

}  // namespace
}  // namespace witan
