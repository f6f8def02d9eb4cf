#include "witan/planner/speeds/cluster.h"

#include <gtest/gtest.h>

#include "support/message_of.h"
#include "witan/base/error.h"

namespace witan {
namespace {

using test::message_of;

// Hosts of 8 GPUs with links of 400 GB/s, of which collectives reach three quarters, and network adapters of 50 GB/s.
constexpr double kLink = 300e9, kNetwork = 50e9, kBytes = 1e9;
Cluster cluster() {
  return {find_gpu("h100"), 8, 400e9, kNetwork};
}

double seconds(const ParallelConfig& parallel, const char* group, const char* operation, int rank = 0) {
  const Cluster of = cluster();
  const Layout layout(parallel, static_cast<int>(parallel.ranks), 16);
  return LinkClock(of, layout, rank).seconds(group, operation, kBytes);
}

TEST(Cluster, ExchangesTakeTheRateOfTheirLinks) {
  ParallelConfig parallel{16, 16, 1};
  parallel.tensor_model_parallel_size = 8;
  parallel.expert_tensor_parallel_size = 1;
  parallel.sequence_parallel = parallel.use_distributed_optimizer = true;
  EXPECT_DOUBLE_EQ(seconds(parallel, "tensor", "all_gather"), kBytes / kLink) << "within a host";
  EXPECT_DOUBLE_EQ(seconds(parallel, "shard", "reduce_scatter_uneven"), kBytes / kNetwork) << "one rank of each host";
  // A ring uses all eight adapters of each host, so that the links limit it.
  EXPECT_DOUBLE_EQ(seconds(parallel, "shard x tensor", "all_gather"), kBytes / kLink);
  // 8 of the 15 other ranks are on the other host.
  EXPECT_DOUBLE_EQ(seconds(parallel, "expert", "all_to_all"), kBytes * 8 / 15 / kNetwork);
  parallel.tensor_model_parallel_size = parallel.expert_model_parallel_size = 1;
  parallel.pipeline_model_parallel_size = 2;
  EXPECT_DOUBLE_EQ(seconds(parallel, "pipeline", "send"), kBytes / kNetwork);
  EXPECT_DOUBLE_EQ(seconds(parallel, "embedding", "all_reduce"), kBytes / kNetwork);
  parallel.ranks = 8;
  EXPECT_DOUBLE_EQ(seconds(parallel, "pipeline", "send"), kBytes / kLink);
}

// The adapters of two ranks on a host are slower than a link.
TEST(Cluster, RingsUseTheAdaptersOfTheirRanks) {
  ParallelConfig parallel{16, 1, 1};
  parallel.tensor_model_parallel_size = 4;
  parallel.sequence_parallel = true;
  EXPECT_DOUBLE_EQ(seconds(parallel, "replicate", "all_reduce"), kBytes / (2 * kNetwork));
}

TEST(Cluster, CeilingsAreRatesThatKernelsReach) {
  const Ceilings c = cluster().ceilings({"bfloat16", 16, 1});
  EXPECT_DOUBLE_EQ(c.fma_flops, 16 * 0.8 * 989e12) << "for all ranks together";
  EXPECT_DOUBLE_EQ(c.copy_bytes, 0.9 * 3.35e12);
  EXPECT_DOUBLE_EQ(cluster().ceilings({"float32", 1, 1}).fma_flops, 0.8 * 67e12);
  const auto refused = message_of<ConfigError>([] { cluster().ceilings({"float64", 1, 1}); });
  EXPECT_NE(refused.find("the data sheet has no speed for dtype = float64; use float32 or bfloat16"),
            std::string::npos);
}

TEST(Cluster, FindsDevicesByName) {
  for (const auto& [device, model] : {std::pair("NVIDIA H200", "h200"),
                                      {"NVIDIA H100 80GB HBM3", "h100"},
                                      {"NVIDIA A100-SXM4-80GB", "a100"},
                                      {"NVIDIA A100-SXM4-40GB", "a100-40gb"},
                                      {"NVIDIA B200", "b200"}}) {
    ASSERT_NE(model_of_device(device), nullptr) << device;
    EXPECT_EQ(model_of_device(device)->name, model);
  }
  for (const char* other : {"NVIDIA GeForce RTX 4090", "NVIDIA RTX A1000", "NVIDIA GH200 480GB"})
    EXPECT_EQ(model_of_device(other), nullptr) << other;
  EXPECT_EQ(model_of_device(""), nullptr);
}

TEST(Cluster, FindsGpusByName) {
  EXPECT_EQ(find_gpu("h200").memory_bytes, 141e9);
  EXPECT_EQ(&find_gpu("A100-40GB"), &find_gpu("a100-40gb"));
  const auto refused = message_of<ConfigError>([] { find_gpu("h201"); });
  EXPECT_NE(refused.find("--gpu h201 is not known (did you mean h200?); there are a100-40gb, a100"), std::string::npos)
      << refused;
}

}  // namespace
}  // namespace witan
