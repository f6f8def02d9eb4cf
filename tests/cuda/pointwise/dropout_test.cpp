#include "support/dropout.h"

#include "support/cuda_rank.h"
#include "witan/kernels/pointwise/dropout.h"

namespace witan {
namespace {

using testing::CudaTest;

using DropoutTwin = CudaTest;

// The masks are equal, and so is the single product, so the bits must be the CPU's.
TEST_F(DropoutTwin, DropsWhatTheCpuDrops) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64})
    for (const int64_t n : {0, 1, 7, 1027, 8192, 100003})
      for (const double p : {0.1, 0.5, 0.9}) {
        kernels::Dropout how = testing::dropout_of(host, p), how_gpu = how;
        how_gpu.step = to_gpu(how.step);
        const Tensor x = host.normal({n + 1}, dtype, "x"), expected = host.poisoned({n}, dtype);
        const Tensor in = x.narrow(0, 0, n), all = to_gpu(x), y = poisoned({n}, dtype);
        kernels::dropout(host.stream, expected, in, how);
        kernels::dropout(gpu(), y, all.narrow(0, 0, n), how_gpu);
        EXPECT_TRUE(agree(y, expected, 0, 0)) << dtype << n << " " << p;
        kernels::dropout(gpu(), y, y, how_gpu);
        kernels::dropout(host.stream, expected, expected, how);
        EXPECT_TRUE(agree(y, expected, 0, 0)) << "in place " << dtype << n << " " << p;
        const Tensor shifted = all.narrow(0, 1, n);
        kernels::dropout(host.stream, expected, x.narrow(0, 1, n), how);
        kernels::dropout(gpu(), shifted, shifted, how_gpu);
        EXPECT_TRUE(agree(shifted, expected, 0, 0)) << "misaligned " << dtype << n << " " << p;
      }
}

// Rows of 12 words and of 1,028, with two runs of positions each, which begin anywhere.
TEST_F(DropoutTwin, PartsDropWhatTheCpuDrops) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64})
    for (const auto& [rows, length, runs] : {std::tuple<int64_t, int64_t, kernels::PositionRuns>{1, 12, {.first = 8}},
                                             {5, 12, {.first = 4, .split = 8, .second = 32}},
                                             {7, 1028, {.first = 0, .split = 512, .second = 3000}},
                                             {300, 1028, {.first = 1028, .split = 4, .second = 2064}}})
      for (const double p : {0.1, 0.9}) {
        kernels::Dropout how = testing::dropout_of(host, p);
        how.part = {.length = length, .whole = 4 * length, .runs = runs};
        kernels::Dropout how_gpu = how;
        how_gpu.step = to_gpu(how.step);
        const Tensor x = host.normal({rows, length}, dtype, "x"), expected = host.poisoned({rows, length}, dtype);
        const Tensor y = poisoned({rows, length}, dtype);
        kernels::dropout(host.stream, expected, x, how);
        kernels::dropout(gpu(), y, to_gpu(x), how_gpu);
        EXPECT_TRUE(agree(y, expected, 0, 0)) << dtype << " " << rows << " x " << length << " " << p;
      }
}

}  // namespace
}  // namespace witan
