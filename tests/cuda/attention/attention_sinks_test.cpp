// Attention sinks on the GPU against the CPU: alone, and after attention by our own kernels and by cuDNN.
#include <array>
#include <cmath>

#include "support/cuda_rank.h"
#include "witan/kernels/attention/attention.h"
#include "witan/ops/attention/attention.h"

namespace witan {
namespace {

using testing::values;

// No rows; one row; heads that are not whole packs; more rows than blocks have.
constexpr std::array<int64_t, 4> kSinkSizes[] = {
    {0, 8, 2, 8}, {1, 1, 1, 1}, {2, 37, 3, 5}, {2, 130, 4, 64}, {1, 600, 2, 128}};

class SinksOnGpu : public testing::CudaTest {};

TEST_F(SinksOnGpu, AgreeWithTheCpuAndRepeat) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64})
    for (const auto& [B, S, H, hd] : kSinkSizes) {
      SCOPED_TRACE(cat(dtype, " [", B, ", ", S, ", ", H, ", ", hd, "]"));
      const Shape shape{B, S, H, hd};
      const DType wide = accumulator(dtype);
      const Tensor y = host.normal(shape, dtype, "y"), lse = host.normal({B, H, S}, wide, "lse", 3),
                   dy = host.normal(shape, dtype, "dy"), sinks = host.normal({H}, dtype, "sinks", 3);
      if (lse.elements() > 2)  // a query without keys
        dispatch_floating(wide, [&]<class A>() { lse.data<A>()[2] = A(-std::numeric_limits<float>::infinity()); });
      const Tensor y_gpu = to_gpu(y), lse_gpu = to_gpu(lse), dy_gpu = to_gpu(dy), sinks_gpu = to_gpu(sinks);
      kernels::attention_sinks_forward(host.stream, y, lse, sinks);
      kernels::attention_sinks_forward(gpu(), y_gpu, lse_gpu, sinks_gpu);
      const double allowed = tolerance(dtype), of_sums = 100 * tolerance(wide);
      EXPECT_TRUE(agree(y_gpu, y, allowed, allowed)) << "y";
      EXPECT_TRUE(agree(lse_gpu, lse, of_sums, of_sums)) << "lse";
      for (const DType gradient : {DType::f32, dtype}) {
        const Tensor dsinks = host.poisoned({H}, gradient), dsinks_gpu = poisoned({H}, gradient),
                     again = poisoned({H}, gradient), y_same = to_gpu(y), lse_same = to_gpu(lse);
        for (const Write write : {Write::overwrite, Write::accumulate}) {
          kernels::attention_sinks_backward(host.stream, dsinks, write, dy, y, lse, sinks);
          kernels::attention_sinks_backward(gpu(), dsinks_gpu, write, dy_gpu, y_same, lse_same, sinks_gpu);
          kernels::attention_sinks_backward(gpu(), again, write, dy_gpu, y_same, lse_same, sinks_gpu);
          const double most = std::max(of_sums, tolerance(gradient)) * 10;
          EXPECT_TRUE(agree(dsinks_gpu, dsinks, most, most)) << "dsinks " << gradient;
          EXPECT_EQ(values(to_host(again)), values(to_host(dsinks_gpu)));
        }
      }
    }
}

// cuDNN, if available, takes the second of these sizes and dtypes.
TEST_F(SinksOnGpu, AttentionWithThemAgreesWithTheCpu) {
  for (const DType dtype : {DType::f64, DType::bf16, DType::f16})
    for (const int64_t window : {0, 33}) {
      const ops::AttentionArgs args{.scale = 0.125, .window = window};
      const Shape q{2, 256, 8, 64}, k{2, 256, 2, 64};
      const std::vector<Tensor> inputs = {host.normal(q, dtype, "q"), host.normal(k, dtype, "k"),
                                          host.normal(k, dtype, "v"), host.normal({8}, dtype, "sinks", 2)};
      const Tensor dy = host.normal(q, dtype, "dy");
      const auto run = [&](Stream& stream, const std::vector<Tensor>& of, const Tensor& seed) {
        Tape tape(stream);
        std::vector<Var> in;
        for (const Tensor& input : of) in.push_back(tape.input(input));
        const Var y = ops::attention(tape, in[0], in[1], in[2], {}, args, in[3]);
        tape.backward({{y, seed}});
        std::vector<Tensor> all = {y.value()};
        for (const Var& input : in) all.push_back(tape.gradient(input));
        return all;
      };
      std::vector<Tensor> on_device;
      for (const Tensor& input : inputs) on_device.push_back(to_gpu(input));
      const auto expected = run(host.stream, inputs, dy), got = run(gpu(), on_device, to_gpu(dy));
      for (size_t i = 0; i < expected.size(); ++i) {
        double largest = 0;
        for (const double value : values(expected[i])) largest = std::max(largest, std::abs(value));
        const double allowed = dtype == DType::f64 ? 1e-12 : 2e-2;
        EXPECT_TRUE(agree(got[i], expected[i], allowed * largest, allowed)) << dtype << ", tensor " << i;
      }
    }
}

}  // namespace
}  // namespace witan
