#include "witan/planner/speeds/gpu_speeds.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "witan/planner/speeds/cluster.h"

namespace witan {
namespace {

constexpr double kFlops = 1e15, kProcessors = 128;

double seconds(int64_t m, int64_t n, int64_t k) {
  const CallShape shape{m, n, k, 1};
  return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) /
         tiled_rate(shape, kProcessors, kFlops);
}

TEST(GpuSpeeds, TilesFillWaves) {
  // 128 tiles of 128 x 256 make one wave; 64 of its steps are the fixed cost of a tile.
  EXPECT_NEAR(tiled_rate({2048, 2048, 4032, 1}, kProcessors, kFlops), kFlops * 4032 / 4096, 1);
  EXPECT_NEAR(seconds(2048, 2048 + 1, 4032), 2 * seconds(2048, 2048, 4032), 1e-9) << "one tile more is a second wave";
  EXPECT_NEAR(seconds(1, 1, 512), seconds(128, 256, 512), 1e-12) << "a partial tile costs a full one";
  // Four tiles with long sums are split over multiprocessors while each gets at least 1024 steps.
  EXPECT_NEAR(seconds(256, 512, 16384), seconds(2048, 2048, 1024), 1e-9);
}

TEST(GpuSpeeds, LargerProductsNeverTakeLess) {
  for (int64_t k = 64; k <= 8192; k *= 2)
    for (int64_t m = 1; m < 3000; m += 61) {
      EXPECT_LE(seconds(m, 512, k), seconds(m + 61, 512, k) * (1 + 1e-12)) << m << ", " << k;
      EXPECT_LE(seconds(512, m, k), seconds(512, m + 61, k) * (1 + 1e-12)) << m << ", " << k;
    }
  for (int64_t k = 64; k < 1024; k += 64) EXPECT_LE(seconds(4096, 4096, k), seconds(4096, 4096, k + 64));
}

TEST(GpuSpeeds, KernelsTakeTheirCallsAndTheirBound) {
  GpuSpeeds speeds;
  speeds.kernels = {{"", {1e-6, 0, 1e12}}, {"batched_gemm", {2e-6, 1e14, 1e12}}};
  EXPECT_NEAR(speeds.kernel_seconds({.name = "norm"}, {1e18, 2e9, 0, 10}), 1e-5 + 2e-3, 1e-12) << "FLOPs are free";
  EXPECT_NEAR(speeds.kernel_seconds({.name = "batched_gemm"}, {1e12, 2e9, 0, 1}), 2e-6 + 1e-2, 1e-12);
  EXPECT_NEAR(speeds.kernel_seconds({.name = "batched_gemm"}, {1e11, 2e9, 0, 1}), 2e-6 + 2e-3, 1e-12);
  EXPECT_EQ(speeds.kernel_seconds({.name = "push_rows"}, {0, 2e9, 0, 1}), 0) << "charged as an exchange";
}

TEST(GpuSpeeds, RatesDependOnShapes) {
  GpuSpeeds speeds;
  speeds.kernels = {{"", {0, 0, 1e12}}};
  speeds.attention_forward = {{{512, 2048}}, {100e12, 400e12}};
  speeds.attention_backward = {{{512}}, {50e12}};
  speeds.grouped = {{{16, 1024}}, {1e12, 4e12}};
  const auto attention = [&](const char* name, int64_t keys) {
    return speeds.kernel_seconds({.name = name, .shape = {2048, keys, 128, 32}}, {1e12, 1, 0, 1});
  };
  EXPECT_NEAR(attention("attention_forward", 512), 0.01, 1e-12);
  EXPECT_NEAR(attention("attention_forward", 1024), 0.005, 1e-12);
  EXPECT_NEAR(attention("attention_backward", 4096), 0.02, 1e-12);
  EXPECT_GE(attention("attention_backward:dropout", 4096), 2 * 0.02) << "own kernels, which are slower";
  EXPECT_NEAR(speeds.kernel_seconds({.name = "grouped_gemm_forward", .shape = {1024, 8, 8, 64}}, {1e12, 0, 0, 1}), 1,
              1e-9);
}

// A file may contain arbitrary values.
TEST(GpuSpeeds, RefuseInvalidSpeeds) {
  const GpuSpeeds good = typical_speeds(find_gpu("h100"), 2);
  EXPECT_TRUE(good.valid());
  GpuSpeeds bad = good;
  bad.products = {{{1}, {1}}, {1}};
  EXPECT_FALSE(bad.valid()) << "two axes";
  bad = good;
  bad.grouped.values.back() = 0;
  EXPECT_FALSE(bad.valid());
  for (const double value : {-1.0, std::nan("")}) {
    bad = good;
    bad.kernels["gemm"].call = value;
    EXPECT_FALSE(bad.valid());
    bad = good;
    bad.exchanges["send"].bytes = value;
    EXPECT_FALSE(bad.valid());
  }
}

// Unmeasured values come from the GPU model with the device's name, or are scaled from measured ones.
TEST(GpuSpeeds, LocalGpusAreOneHost) {
  Ceilings ceilings = Cluster{find_gpu("h200")}.ceilings({"bfloat16", 4, 1});
  ceilings.load.gpu = "NVIDIA H200";
  EXPECT_EQ(host_of(ceilings).gpu.name, "h200");
  EXPECT_EQ(host_of(ceilings).gpus_per_host, 4);
  ceilings.load.gpu = "NVIDIA Unheard Of";
  EXPECT_NEAR(host_of(ceilings).gpu.bf16_flops, find_gpu("h200").bf16_flops, 1e6);
  EXPECT_NEAR(host_of(ceilings).gpu.memory_bytes_s, find_gpu("h200").memory_bytes_s, 1e6);
  ceilings.speeds->beside = 0.125;
  EXPECT_EQ(speeds_of(ceilings).beside, 0.125) << "measured ones";
  ceilings.speeds.reset();
  EXPECT_EQ(speeds_of(ceilings), typical_speeds(host_of(ceilings).gpu, 2)) << "as in an older file";
}

}  // namespace

namespace {

RateTable table() {
  return {{{1, 10, 1000}, {2, 8}}, {1, 4, 2, 16, 3, 64}};
}

TEST(RateTable, IsExactAtItsPoints) {
  const RateTable of = table();
  ASSERT_TRUE(of.valid());
  for (size_t i = 0; i < 3; ++i)
    for (size_t j = 0; j < 2; ++j)
      EXPECT_NEAR(of.of({of.axes[0][i], of.axes[1][j]}), of.values[2 * i + j], 1e-12 * of.values[2 * i + j]);
}

TEST(RateTable, InterpolatesLinearlyInLogarithms) {
  EXPECT_NEAR(table().of({1, 4}), 2, 1e-12) << "half-way from 2 to 8: the root of 1 * 4";
  EXPECT_NEAR(table().of({100, 8}), 32, 1e-12) << "half-way from 10 to 1000: the root of 16 * 64";
  EXPECT_NEAR(table().of({100, 4}), std::sqrt(32 * std::sqrt(6.0)), 1e-12);
}

TEST(RateTable, IsConstantOutsideItsRange) {
  EXPECT_NEAR(table().of({0.1, 2}), 1, 1e-12);
  EXPECT_NEAR(table().of({1e6, 1e6}), 64, 1e-12);
}

TEST(RateTable, RisesWithItsValues) {
  const RateTable of = table();
  for (double second = 1; second < 20; second *= 1.3)
    for (double first = 0.5; first < 3000; first *= 1.1)
      EXPECT_LE(of.of({first, second}), of.of({1.1 * first, second}) * (1 + 1e-12)) << first << ", " << second;
}

TEST(RateTable, RefusesInvalidTables) {
  EXPECT_FALSE(RateTable{}.valid());
  RateTable damaged = table();
  damaged.values.pop_back();
  EXPECT_FALSE(damaged.valid());
  for (const double value : {0.0, -1.0, std::numeric_limits<double>::infinity(), std::nan("")}) {
    damaged = table();
    damaged.values[3] = value;
    EXPECT_FALSE(damaged.valid()) << value;
    damaged = table();
    damaged.axes[1][0] = value;
    EXPECT_FALSE(damaged.valid()) << value;
  }
  damaged = table();
  std::swap(damaged.axes[0][0], damaged.axes[0][1]);
  EXPECT_FALSE(damaged.valid());
  damaged.axes.assign(20, std::vector<double>(1000, 1));
  EXPECT_FALSE(damaged.valid());
}

}  // namespace

}  // namespace witan
