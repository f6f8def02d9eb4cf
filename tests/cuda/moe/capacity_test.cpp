#include "witan/kernels/moe/capacity.h"

#include "support/cuda_rank.h"

namespace witan {
namespace {

using kernels::Assignments;

class CapacityOnGpu : public testing::CudaTest {
 protected:
  void expect_like_cpu(const std::vector<int32_t>& ids, int64_t K, int64_t E, const Tensor& weights,
                       const kernels::Capacity& capacity) {
    const int64_t T = static_cast<int64_t>(ids.size()) / K;
    std::vector<int64_t> counts(static_cast<size_t>(E));
    for (const int32_t id : ids) ++counts[static_cast<size_t>(id)];
    const Assignments all{host.tensor<int32_t>({T, K}, ids), host.tensor<int64_t>({E}, counts)};
    const Assignments expected{host.stream.empty({T, K}, DType::i32), host.stream.empty({E}, DType::i64)};
    kernels::limit_to_capacity(host.stream, expected, host.stream.empty({T * K}, DType::i64), all, weights, capacity);
    const Assignments kept{gpu().zeros({T, K}, DType::i32), poisoned({E}, DType::i64)};
    kernels::limit_to_capacity(gpu(), kept, poisoned({T * K}, DType::i64), {to_gpu(all.ids), to_gpu(all.counts)},
                               to_gpu(weights), capacity);
    EXPECT_EQ(to_host(kept.ids).to_vector<int32_t>(), expected.ids.to_vector<int32_t>());
    EXPECT_EQ(to_host(kept.counts).to_vector<int64_t>(), expected.counts.to_vector<int64_t>());
  }
};

// Weights with few values, so that most decisions are ties, and with many.
TEST_F(CapacityOnGpu, KeepsWhatTheCpuKeeps) {
  for (const auto& [T, K, E] : std::vector<std::array<int64_t, 3>>{
           {0, 2, 4}, {1, 1, 1}, {60, 2, 3}, {5000, 4, 16}, {3000, 1, 1}, {900, 2, 300}})
    for (const uint64_t weights_of : {5, 1 << 20})
      for (const DType dtype : {DType::f32, DType::f64}) {
        const Philox rng(3, static_cast<uint64_t>(T));
        std::vector<int32_t> ids;
        const Tensor weights = host.stream.empty({T, K}, dtype);
        for (uint64_t i = 0; i < static_cast<uint64_t>(T * K); ++i) {
          const double u = rng.uniform(2 * i);
          ids.push_back(
              static_cast<int32_t>(u * u * static_cast<double>(E)));  // the first experts get most assignments
          const double weight = static_cast<double>(rng.below(weights_of, 2 * i + 1)) / static_cast<double>(weights_of);
          dispatch_floating(dtype, [&]<class A>() { weights.data<A>()[i] = A(weight); });
        }
        for (const int64_t per_expert : {int64_t{0}, int64_t{1}, T * K / (2 * E), T * K / E + 1, T * K})
          for (const auto policy : {DropPolicy::probs, DropPolicy::position}) {
            SCOPED_TRACE(cat(dtype, " T=", T, " K=", K, " E=", E, ", ", per_expert, " per expert"));
            expect_like_cpu(ids, K, E, weights, {per_expert, policy});
          }
      }
}

TEST_F(CapacityOnGpu, WeightsCompareAsFloat32AndNaNIsSmallest) {
  const double nan = std::nan("");
  const Tensor weights = host.tensor<double>({8, 1}, {0.3, nan, 0.3 + 1e-15, 0.0, -0.0, 0.3 + 1e-6, nan, 1});
  for (int64_t per_expert = 0; per_expert <= 8; ++per_expert)
    expect_like_cpu(std::vector<int32_t>(8, 0), 1, 1, weights, {per_expert, DropPolicy::probs});
}

}  // namespace
}  // namespace witan
