#include "witan/kernels/moe/selection.h"

#include "support/cuda_rank.h"
#include "support/dropout.h"
#include "support/routing.h"
#include "witan/kernels/pointwise/dropout.h"

namespace witan {
namespace {

using kernels::Scores;
using kernels::Selection;
using testing::values;

constexpr Scores kAllScores[] = {Scores::softmax_of_chosen, Scores::softmax, Scores::sigmoid, Scores::sqrtsoftplus};

class SelectionOnGpu : public testing::CudaTest {
 protected:
  // `on_device`: the same selection, with its inputs on the GPU.
  void expect_agreement(int64_t T, int64_t E, int64_t K, DType dtype, const kernels::Scoring& scoring,
                        const Selection& selection, const Selection& on_device) {
    SCOPED_TRACE(cat(dtype, " T=", T, " E=", E, " K=", K, " scores ", static_cast<int>(scoring.scores), " keys ",
                     static_cast<int>(selection.keys)));
    const Tensor logits = host.normal({T, E}, dtype, "logits", 2);
    kernels::RouterOutputs out = testing::poisoned_outputs(host, T, E, K, dtype);
    kernels::router_forward(host.stream, out, logits, scoring);
    kernels::RouterOutputs gpu_out;
    gpu_out.ids = poisoned({T, K}, DType::i32);
    gpu_out.weights = poisoned({T, K}, dtype);
    gpu_out.probs = to_gpu(out.probs);
    kernels::select_experts(host.stream, out, logits, scoring, selection);
    kernels::select_experts(gpu(), gpu_out, to_gpu(logits), scoring, on_device);
    // Keys that round differently may choose another expert: in float64 none of these, and in float32 few.
    const auto found = to_host(gpu_out.ids).to_vector<int32_t>(), expected = out.ids.to_vector<int32_t>();
    int64_t others = 0;
    for (size_t i = 0; i < expected.size(); ++i) others += found[i] != expected[i];
    EXPECT_LE(others, dtype == DType::f64 || selection.random.on() ? 0 : T * K / 50);
    if (others == 0) {
      EXPECT_TRUE(agree(gpu_out.weights, out.weights, tolerance(dtype) / 10, tolerance(dtype)));
    }
  }
};

TEST_F(SelectionOnGpu, BiasesAndGroupsChooseAsOnTheCpu) {
  struct Case {
    int64_t T, E, K, groups, group_topk, group_score_topk;
  };
  for (const DType dtype : {DType::f32, DType::f64})
    for (const Scores scores : kAllScores)
      for (const auto& [T, E, K, groups, group_topk, best] : std::vector<Case>{{0, 8, 2, 1, 1, 1},
                                                                               {1, 1, 1, 1, 1, 1},
                                                                               {33, 8, 1, 4, 2, 1},
                                                                               {301, 64, 8, 8, 4, 2},
                                                                               {77, 200, 6, 4, 3, 2},
                                                                               {513, 256, 8, 8, 4, 2},
                                                                               {40, 257, 33, 1, 1, 1},
                                                                               {19, 1000, 64, 100, 40, 3}})
        for (const bool biased : {false, true}) {
          Selection selection{.keys = scores, .groups = groups, .group_topk = group_topk, .group_score_topk = best};
          if (biased) selection.bias = host.normal({E}, DType::f32, "bias", 0.3);
          Selection on_device = selection;
          on_device.bias = to_gpu(selection.bias);
          expect_agreement(T, E, K, dtype, {scores, true, 1.5}, selection, on_device);
        }
}

// Sinkhorn's choice is based on the logits, whatever determines the weights.
TEST_F(SelectionOnGpu, LogitsWithABiasOfTheirDtypeChooseAsOnTheCpu) {
  for (const DType dtype : {DType::f32, DType::f64})
    for (const Scores scores : kAllScores) {
      const Selection selection{.keys = Scores::softmax_of_chosen, .bias = host.normal({70}, dtype, "bias")};
      expect_agreement(200, 70, 4, dtype, scores, selection, {.keys = selection.keys, .bias = to_gpu(selection.bias)});
    }
}

TEST_F(SelectionOnGpu, RandomKeysMatchTheCpu) {
  for (const DType dtype : {DType::f32, DType::f64})
    for (const auto& [T, E, K] : std::vector<std::array<int64_t, 3>>{{40, 3, 2}, {300, 64, 8}, {96, 257, 5}})
      for (const int which : {0, 1, 2, 3, 4, 5}) {
        kernels::RandomKeys random{.where = testing::dropout_of(host, 0)};
        if (which == 1) random.skew = 0.4;
        if (which == 4) random.exponent = 0.7;
        if (which == 5) random = {.where = random.where, .skew = 0.5, .hot = 1, .exponent = 16};
        if (which == 2)
          random.where.part = {.length = T / 4, .whole = T, .runs = {.first = 1, .split = 3, .second = T / 2}};
        if (which == 3) {
          std::vector<int32_t> tokens;
          for (int64_t t = 0; t < T; ++t) tokens.push_back(static_cast<int32_t>(t * 7919 % 1000));
          random.ids = host.stream.empty({T}, DType::i32);
          host.stream.write(random.ids, tokens.data());
          random.where.step = {};
        }
        kernels::RandomKeys on_device = random;
        on_device.where.step = to_gpu(random.where.step);
        on_device.ids = to_gpu(random.ids);
        for (const Scores scores : kAllScores)
          expect_agreement(T, E, K, dtype, scores, {.random = random}, {.random = on_device});
      }
}

TEST_F(SelectionOnGpu, SinkhornAgreesWithTheCpuAndRepeatsItsBits) {
  for (const DType dtype : {DType::f32, DType::f64})
    for (const auto& [T, E] : std::vector<std::array<int64_t, 2>>{{0, 5}, {1, 1}, {33, 8}, {4001, 64}, {700, 1000}})
      for (const int64_t iterations : {1, 2, 30}) {
        SCOPED_TRACE(cat(dtype, " T=", T, " E=", E, " iterations ", iterations));
        const Tensor logits = host.normal({T, E}, dtype, "logits", 2), bias = host.poisoned({E}, dtype);
        const Tensor on_gpu = poisoned({E}, dtype), again = poisoned({E}, dtype);
        // At a tolerance, float32 may stop an iteration earlier or later, and is then off by about as much.
        const double most = iterations == 30 ? 1e-5 : 0;
        kernels::sinkhorn_bias(host.stream, bias, logits, iterations, most);
        kernels::sinkhorn_bias(gpu(), on_gpu, to_gpu(logits), iterations, most);
        kernels::sinkhorn_bias(gpu(), again, to_gpu(logits), iterations, most);
        EXPECT_TRUE(agree(on_gpu, bias, dtype == DType::f64 ? 1e-12 : 1e-3, 0));
        EXPECT_EQ(values(to_host(again)), values(to_host(on_gpu)));
      }
}

TEST_F(SelectionOnGpu, JitterMatchesTheCpu) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64})
    for (const auto& [length, added] : {std::pair{0, false}, {99, false}, {0, true}, {99, true}}) {
      auto where = testing::dropout_of(host, 0);
      if (length > 0) where.part = {.length = length, .whole = 250, .runs = {.first = 17, .split = 30, .second = 101}};
      const Tensor x = host.normal({7, 99}, dtype, "x"), y = host.poisoned({7, 99}, dtype);
      const Tensor on_gpu = poisoned({7, 99}, dtype);
      kernels::jitter(host.stream, y, x, where, {0.25, added});
      where.step = to_gpu(where.step);
      kernels::jitter(gpu(), on_gpu, to_gpu(x), where, {0.25, added});
      EXPECT_TRUE(agree(on_gpu, y, 0, size_of(dtype) == 2 ? 1e-2 : tolerance(dtype)));
    }
}

}  // namespace
}  // namespace witan
