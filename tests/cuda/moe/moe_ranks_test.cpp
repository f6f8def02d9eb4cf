// An MoE layer whose experts are divided among GPUs with peer memory, against the same ranks on the CPU.
#include <algorithm>

#include "support/gpu_world.h"
#include "witan/moe/layer/moe.h"

namespace witan {
namespace {

using testing::GpuPeerGroup;
using testing::GpuRank;
using testing::on_gpus;
using testing::values;

constexpr int64_t T = 24, D = 64, F = 48;
constexpr int64_t kShared = 80;  // hidden units of shared experts

// A rank's results of a forward and a backward pass.
struct Seen {
  Tensor y, dx;
  std::vector<Tensor> gradients;  // of the parameters
};

class Layer {
 public:
  Layer(Stream& stream, Group& group, DType dtype, const MoeConfig& config = {})
      : stream_(stream),
        moe_({.stream = stream,
              .dtype = dtype,
              .expert_ranks = group.size(),
              .expert_rank = group.rank(),
              .path = "moe"},
             config, mlp(), D, group) {
    for (Parameter* parameter : moe_.parameters())
      parameter->bind_gradient(stream.zeros(parameter->value().shape(), accumulator(dtype), MemoryTag::gradients));
  }
  // Copies the parameters of another layer, which is on the host.
  void copy_from(Layer& host) {
    const auto from = host.moe_.parameters(), to = moe_.parameters();
    for (size_t i = 0; i < to.size(); ++i) stream_.write(to[i]->value(), from[i]->value().raw());
  }
  void use_side(Stream* side) { moe_.attach({.expert_side = side}); }
  Seen run(const Tensor& x, const Tensor& dy) {
    for (Parameter* parameter : moe_.parameters()) parameter->clear_gradient();
    Tape tape(stream_);
    const Var in = tape.input(x);
    const MoeOutput out = moe_.forward(tape, in, false);
    tape.backward({{out.y, dy}});
    Seen seen{out.y.value(), tape.gradient(in), {}};
    for (Parameter* parameter : moe_.parameters()) seen.gradients.push_back(parameter->gradient());
    return seen;
  }

 private:
  static MlpConfig mlp() {
    MlpConfig config;
    config.ffn_hidden_size = F;
    return config;
  }
  Stream& stream_;
  Moe moe_;
};

class MoeOnGpus : public ::testing::TestWithParam<std::tuple<int, DType>> {
 protected:
  void SetUp() override {
    if (cuda::devices() == 0) GTEST_SKIP() << cuda::why_none();
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, MoeOnGpus,
                         ::testing::Combine(::testing::Values(2, 4), ::testing::Values(DType::f32, DType::bf16)));

TEST_P(MoeOnGpus, AgreesWithTheCpu) {
  const auto [ranks, dtype] = GetParam();
  const double tolerance = dtype == DType::bf16 ? 2e-2 : 1e-5;  // of the largest element
  on_gpus(ranks, [&, dtype = dtype](GpuRank& rank) {
    const auto threads = rank.everyone("expert");
    GpuPeerGroup gpus(rank, "experts on GPUs");
    ASSERT_NE(gpus.peers(), nullptr) << "these GPUs do not reach each other's memory";
    Layer host(rank.stream, *threads, dtype), device(rank.gpu, gpus, dtype);
    device.copy_from(host);
    const Tensor x = rank.own_normal({T, D}, dtype, "x"), dy = rank.own_normal({T, D}, dtype, "dy");
    const Seen expected = host.run(x, dy), seen = device.run(rank.to_gpu(x), rank.to_gpu(dy));
    const auto agree = [&](const Tensor& gpu, const Tensor& cpu, const std::string& what) {
      const auto want = values(cpu);
      double largest = 0;
      for (const double value : want) largest = std::max(largest, std::abs(value));
      EXPECT_TRUE(testing::close(values(rank.to_host(gpu)), want, tolerance * largest, 0)) << what;
    };
    agree(seen.y, expected.y, "output");
    agree(seen.dx, expected.dx, "gradient of the input");
    for (size_t i = 0; i < expected.gradients.size(); ++i)
      agree(seen.gradients[i], expected.gradients[i], cat("gradient of parameter ", i));
  });
}

// On a side stream, rows travel while shared experts compute on the main one: the bits must be the same in every
// repetition, whichever stream waits for the other.
TEST_P(MoeOnGpus, SharedExpertsMayComputeWhileRowsTravel) {
  const auto [ranks, dtype] = GetParam();
  on_gpus(ranks, [&, dtype = dtype](GpuRank& rank) {
    GpuPeerGroup gpus(rank, "experts on GPUs");
    ASSERT_NE(gpus.peers(), nullptr) << "these GPUs do not reach each other's memory";
    MoeConfig config;
    config.moe_shared_expert_intermediate_size = kShared;
    config.moe_shared_expert_gate = true;
    Layer layer(rank.gpu, gpus, dtype, config);
    const Tensor x = rank.to_gpu(rank.own_normal({T, D}, dtype, "x")),
                 dy = rank.to_gpu(rank.own_normal({T, D}, dtype, "dy"));
    const auto seen = [&] {
      const Seen one = layer.run(x, dy);
      std::vector<std::vector<double>> all = {values(rank.to_host(one.y)), values(rank.to_host(one.dx))};
      for (const Tensor& gradient : one.gradients) all.push_back(values(rank.to_host(gradient)));
      return all;
    };
    const auto one_by_one = seen();
    Stream side(rank.gpu, 512);
    layer.use_side(&side);
    for (int time = 0; time < 20; ++time) EXPECT_EQ(seen(), one_by_one) << "time " << time;
    rank.gpu.wait();
  });
}

}  // namespace
}  // namespace witan
