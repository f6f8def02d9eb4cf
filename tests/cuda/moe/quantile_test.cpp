#include <limits>

#include "support/cuda_rank.h"
#include "support/routing.h"
#include "witan/kernels/common/step_report.h"
#include "witan/kernels/moe/selection.h"

namespace witan {
namespace {

using testing::values;

class QuantilesOnGpu : public testing::CudaTest {};

// Each value takes one addition and one subtraction, so that the bits are the same in both dtypes.
TEST_F(QuantilesOnGpu, ChoiceAndQuantilesMatchTheCpu) {
  for (const DType dtype : {DType::f32, DType::f64})
    for (const auto& [T, E, K] : std::vector<std::array<int64_t, 3>>{
             {1, 2, 1}, {33, 8, 2}, {301, 64, 8}, {5000, 8, 2}, {77, 200, 6}, {40, 257, 33}, {19, 1000, 63}}) {
      SCOPED_TRACE(cat(dtype, " T=", T, " E=", E, " K=", K));
      const Tensor logits = host.normal({T, E}, dtype, "logits", 2), bias = host.normal({E}, DType::f32, "bias"),
                   ids = host.stream.empty({T, K}, DType::i32), margins = host.poisoned({1, E, T}, dtype),
                   sums = host.stream.empty({E + 1}, DType::i64);
      const Tensor gpu_ids = poisoned({T, K}, DType::i32), gpu_margins = poisoned({1, E, T}, dtype),
                   gpu_sums = poisoned({E + 1}, DType::i64);
      kernels::choose_by_quantiles(host.stream, ids, margins, logits, bias);
      kernels::choose_by_quantiles(gpu(), gpu_ids, gpu_margins, to_gpu(logits), to_gpu(bias));
      EXPECT_EQ(to_host(gpu_ids).to_vector<int32_t>(), ids.to_vector<int32_t>());
      EXPECT_EQ(values(to_host(gpu_margins)), values(margins));
      kernels::quantile_sums(host.stream, sums, margins, K);
      kernels::quantile_sums(gpu(), gpu_sums, gpu_margins, K);
      EXPECT_EQ(to_host(gpu_sums).to_vector<int64_t>(), sums.to_vector<int64_t>());
      const Tensor without = poisoned({T, K}, DType::i32);
      kernels::choose_by_quantiles(gpu(), without, Tensor(), to_gpu(logits), to_gpu(bias));
      EXPECT_EQ(to_host(without).to_vector<int32_t>(), ids.to_vector<int32_t>());
    }
}

TEST_F(QuantilesOnGpu, PartsTiesAndExtremesMatchTheCpu) {
  const auto infinity = std::numeric_limits<float>::infinity();
  const Tensor extreme = host.tensor<float>({1, 3, 4}, {infinity, infinity, 1, 2, -infinity, -1e30F, -0.0F, 0.0F,  //
                                                        NAN, NAN, NAN, 5}),
               tied = host.tensor<float>({2, 2, 3}, {1, 1, 1, 0, 2, 0, 1, 1, 1, 2, 0, 2});
  for (const Tensor& margins :
       {extreme, tied, host.normal({3, 5, 700}, DType::f32, "parts"), host.stream.empty({2, 4, 0}, DType::f32)})
    for (const int64_t K : {1, 2}) {
      if (K >= margins.size(1)) continue;
      const int64_t E = margins.size(1);
      const Tensor sums = host.stream.empty({E + 1}, DType::i64), gpu_sums = poisoned({E + 1}, DType::i64);
      kernels::quantile_sums(host.stream, sums, margins, K);
      kernels::quantile_sums(gpu(), gpu_sums, to_gpu(margins), K);
      EXPECT_EQ(to_host(gpu_sums).to_vector<int64_t>(), sums.to_vector<int64_t>());
    }
}

TEST_F(QuantilesOnGpu, BiasesMatchTheCpu) {
  for (const int64_t E : {1, 8, 257, 1000}) {
    const Tensor bias = host.normal({E}, DType::f32, "bias"), sums = host.stream.empty({E + 1}, DType::i64),
                 step = host.stream.zeros({kernels::kStepValues}, DType::f64), gpu_bias = to_gpu(bias);
    for (int64_t e = 0; e < E; ++e) sums.data<int64_t>()[e] = (e * 7919 % 13 - 6) * (int64_t{1} << 31) + e;
    for (const auto& [skip, micro_batches] : std::vector<std::pair<double, int64_t>>{{1, 3}, {0, 0}, {0, 3}}) {
      step.data<double>()[kernels::step_value::skip] = skip;
      sums.data<int64_t>()[E] = micro_batches;
      kernels::update_quantile_bias(host.stream, bias, sums, step);
      kernels::update_quantile_bias(gpu(), gpu_bias, to_gpu(sums), to_gpu(step));
      EXPECT_TRUE(agree(gpu_bias, bias, 1e-7, 1e-6));
    }
  }
}

TEST_F(QuantilesOnGpu, WeightsOfAGivenChoiceMatchTheCpu) {
  for (const DType dtype : {DType::f32, DType::f64})
    for (const kernels::Scores scores :
         {kernels::Scores::softmax_of_chosen, kernels::Scores::softmax, kernels::Scores::sigmoid})
      for (const auto& [T, E, K] :
           std::vector<std::array<int64_t, 3>>{{1, 2, 1}, {33, 8, 2}, {301, 64, 8}, {40, 257, 33}}) {
        SCOPED_TRACE(cat(dtype, " T=", T, " E=", E, " K=", K));
        const kernels::RouterOutputs out = testing::poisoned_outputs(host, T, E, K, dtype);
        const Tensor logits = host.normal({T, E}, dtype, "logits", 2), bias = host.normal({E}, DType::f32, "bias");
        kernels::router_forward(host.stream, out, logits, scores);
        kernels::choose_by_quantiles(host.stream, out.ids, Tensor(), logits, bias);
        kernels::weigh_chosen(host.stream, out, logits, scores);
        const Tensor weights = poisoned({T, K}, dtype);
        kernels::weigh_chosen(gpu(), {to_gpu(out.ids), weights, to_gpu(out.probs), {}, {}, {}, {}, {}}, to_gpu(logits),
                              scores);
        EXPECT_TRUE(agree(weights, out.weights, tolerance(dtype) / 10, tolerance(dtype)));
      }
}

}  // namespace
}  // namespace witan
