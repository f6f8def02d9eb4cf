#include <gtest/gtest.h>

#include "support/rank.h"
#include "witan/planner/speeds/gpu_speeds.h"

namespace witan {
namespace {

using testing::Rank;

// The sizes are small enough for a CPU, which can measure the same calls as a GPU.
MeasuredSizes small_sizes() {
  MeasuredSizes sizes;
  sizes.sides = {16, 64, 256};
  sizes.keys = {16, 64};
  sizes.group_rows = {8, 32};
  sizes.tokens = 64;
  sizes.most_flops = 2.0 * 256 * 256 * 64;
  sizes.seconds = 1e-4;
  return sizes;
}

TEST(GpuMeasure, MeasuresEveryTable) {
  Rank rank;
  GpuSpeeds typical;
  typical.kernels = {{"", {3e-6, 0, 1e12}}, {"gemm", {1e-9, 0, 1e12}}, {"adamw_all", {2e-6, 0, 2e12}}};
  typical.exchanges = {{"", {1e-5, 0, 1e11}}};
  typical.beside = 0.5;
  const GpuSpeeds speeds = measure_speeds(rank.stream, typical, DType::f32, small_sizes());
  ASSERT_TRUE(speeds.valid());
  EXPECT_EQ(speeds.products.values.size(), 27U);
  EXPECT_EQ(speeds.attention_forward.values.size(), 2U);
  EXPECT_EQ(speeds.attention_backward.values.size(), 2U);
  EXPECT_EQ(speeds.grouped.values.size(), 2U);
  EXPECT_EQ(speeds.exchanges, typical.exchanges) << "one rank has none";
  EXPECT_EQ(speeds.beside, 0.5);
  EXPECT_NEAR(speeds.kernels.at("adamw_all").bytes, 2 * speeds.kernels.at("").bytes, 1)
      << "unmeasured kernels scale the measured memory rate by their typical ratio";
  const double largest = speeds.products.of({256, 256, 256});
  EXPECT_NEAR(largest, speeds.product_flops, 1e-6 * largest) << "too large to measure: as fast as the fastest";
  const CallKind product{.name = "gemm", .shape = {64, 256, 16, 1}};
  const double flops = 2.0 * 64 * 256 * 16;
  EXPECT_NEAR(speeds.kernel_seconds(product, {3 * flops, 1e3, 0, 3}),
              3 * (speeds.kernels.at("gemm").call + flops / speeds.products.of({64, 256, 16})), 1e-12);
}

}  // namespace
}  // namespace witan
