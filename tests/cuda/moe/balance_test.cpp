#include "support/cuda_rank.h"
#include "support/routing.h"
#include "witan/kernels/moe/router.h"

namespace witan {
namespace {

using testing::values;

class BalanceOnGpu : public testing::CudaTest {};

TEST_F(BalanceOnGpu, LossesAndGradientsAgreeWithTheCpu) {
  for (const DType dtype : {DType::f32, DType::f64})
    for (const auto& [B, E, tokens] : std::vector<std::array<int64_t, 3>>{
             {1, 1, 5}, {1, 8, 64}, {7, 33, 301}, {70, 257, 4096}, {2, 1000, 8}, {1, 4, 0}}) {
      SCOPED_TRACE(cat(dtype, " B=", B, " E=", E, " tokens=", tokens));
      const Tensor sums = host.normal({B * E + kernels::kTokenSums}, dtype, "sums"),
                   counts = host.stream.empty({E}, DType::i64), loss = host.poisoned({1}, dtype),
                   dloss = host.normal({1}, dtype, "dloss"), dprobs = host.poisoned({E}, dtype);
      for (int64_t e = 0; e < E; ++e) counts.data<int64_t>()[e] = tokens > 0 ? e * 7919 % 13 + (e == 0) : 0;
      const Tensor gpu_loss = poisoned({1}, dtype), gpu_dprobs = poisoned({E}, dtype), gpu_counts = to_gpu(counts);
      kernels::balance_loss(host.stream, loss, sums, counts, {tokens});
      kernels::balance_loss(gpu(), gpu_loss, to_gpu(sums), gpu_counts, {tokens});
      EXPECT_TRUE(agree(gpu_loss, loss, tolerance(dtype), tolerance(dtype)));
      for (const Write write : {Write::overwrite, Write::accumulate}) {
        kernels::balance_backward(host.stream, dprobs, dloss, counts, {tokens}, write);
        kernels::balance_backward(gpu(), gpu_dprobs, to_gpu(dloss), gpu_counts, {tokens}, write);
        EXPECT_TRUE(agree(gpu_dprobs, dprobs, 0, tolerance(dtype)));
      }
    }
}

// The router's backward adds further losses' gradient with respect to the probabilities.
TEST_F(BalanceOnGpu, FurtherLossesReachTheRouter) {
  for (const DType dtype : {DType::f32, DType::f64})
    for (const kernels::Scores scores :
         {kernels::Scores::softmax_of_chosen, kernels::Scores::softmax, kernels::Scores::sigmoid})
      for (const auto& [T, E, K] : std::vector<std::array<int64_t, 3>>{{3, 4, 1}, {101, 64, 8}, {33, 257, 33}}) {
        SCOPED_TRACE(cat(dtype, " T=", T, " E=", E, " K=", K));
        kernels::RouterOutputs out = testing::poisoned_outputs(host, T, E, K, dtype);
        out.logits = host.normal({T, E}, dtype, "logits", 2);
        kernels::router_forward(host.stream, out, out.logits, scores);
        const Tensor dbalance = host.normal({1}, dtype, "dbalance"), dprobs = host.normal({E}, dtype, "dprobs"),
                     dlogits = host.poisoned({T, E}, dtype), found = poisoned({T, E}, dtype);
        kernels::router_backward(host.stream, dlogits, {{}, dbalance, {}, dprobs}, out, scores);
        kernels::router_backward(gpu(), found, {{}, to_gpu(dbalance), {}, to_gpu(dprobs)},
                                 {to_gpu(out.ids),
                                  to_gpu(out.weights),
                                  to_gpu(out.probs),
                                  to_gpu(out.lse),
                                  to_gpu(out.counts),
                                  {},
                                  {},
                                  {},
                                  to_gpu(out.logits)},
                                 scores);
        EXPECT_TRUE(agree(found, dlogits, tolerance(dtype) / 10, tolerance(dtype)));
      }
}

}  // namespace
}  // namespace witan
