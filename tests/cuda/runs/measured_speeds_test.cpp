// The speeds that `witan doctor --gpu` measures for plans, on the GPU.
#include <gtest/gtest.h>

#include "support/cuda_rank.h"
#include "witan/planner/speeds/cluster.h"
#include "witan/planner/speeds/gpu_speeds.h"

namespace witan {
namespace {

using MeasuredSpeedsTest = testing::CudaTest;

MeasuredSizes few_sizes() {
  MeasuredSizes sizes;
  sizes.sides = {128, 1024};
  sizes.keys = {256, 1024};
  sizes.group_rows = {64, 512};
  sizes.tokens = 4096;
  return sizes;
}

// Calls are captured, and libraries' setup is done before, so that the times are those of kernels alone.
TEST_F(MeasuredSpeedsTest, AreKernelTimes) {
  ThreadPool pool(1);
  Stream stream({Device::Kind::cuda, 0}, Arena::reserve_on_gpu(0, int64_t{1} << 30), pool);
  const GpuSpeeds speeds = measure_speeds(stream, typical_speeds(find_gpu("h100"), 2), DType::bf16, few_sizes());
  ASSERT_TRUE(speeds.valid());
  EXPECT_EQ(speeds.products.values.size(), 8U);
  EXPECT_GT(speeds.products.of({1024, 1024, 1024}), speeds.products.of({128, 128, 128}));
  EXPECT_GT(speeds.attention_forward.of({1024}), speeds.attention_forward.of({256}));
  EXPECT_GT(speeds.grouped.of({512}), speeds.grouped.of({64}));
  EXPECT_LT(speeds.kernels.at("gemm").call, 20e-6);
  EXPECT_LT(speeds.kernels.at("").call, 20e-6);
  EXPECT_GT(speeds.kernels.at("").bytes, 1e11);
}

}  // namespace
}  // namespace witan
