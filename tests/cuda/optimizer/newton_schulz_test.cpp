// Iterations on a GPU, compared with float64 iterations on the CPU from the same bfloat16 values.
#include "witan/optim/newton_schulz.h"

#include <cmath>

#include "support/cuda_rank.h"

namespace witan {
namespace {

using testing::values;

class NewtonSchulzOnGpu : public testing::CudaTest {
 protected:
  // Rows of size 1 / (1 + i)^power, mixed by rotations of pairs; columns instead, if they are fewer.
  Tensor matrices(const Shape& shape, double power) {
    const Tensor x = host.normal(shape, DType::bf16, "x");
    const int64_t n = shape[0], rows = shape[1], columns = shape[2];
    for (int64_t i = 0; i < n; ++i)
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < columns; ++c) {
          bf16& at = x.data<bf16>()[(i * rows + r) * columns + c];
          at = bf16(at * static_cast<float>(std::pow(1.0 + static_cast<double>(std::min(r, c)), -power)));
        }
    return x;
  }
  Tensor as(const Tensor& x, DType dtype) {
    const Tensor out = host.stream.empty(x.shape(), dtype);
    dispatch_floating(dtype, [&]<class T>() {
      for (int64_t i = 0; i < x.elements(); ++i) out.data<T>()[i] = T(static_cast<float>(x.data<bf16>()[i]));
    });
    return out;
  }
  static double distance(const std::vector<double>& from, const std::vector<double>& to) {
    double squares = 0, all = 0;
    for (size_t i = 0; i < from.size(); ++i) {
      squares += (from[i] - to[i]) * (from[i] - to[i]);
      all += to[i] * to[i];
    }
    return std::sqrt(squares / all);
  }
  // Distances from the iteration in float64: of the GPU's result, and of the CPU's in bfloat16, rounded as in the
  // original.
  std::pair<double, double> distances(const Tensor& x, const NewtonSchulz& iteration) {
    const auto exact = values(orthogonalize(host.stream, as(x, DType::f64), iteration));
    const auto on_gpu = values(to_host(orthogonalize(gpu(), to_gpu(x), iteration)));
    const auto rounded = values(orthogonalize(host.stream, as(x, DType::bf16), iteration));
    return {distance(on_gpu, exact), distance(rounded, exact)};
  }
};

// Workspaces are full of NaN, which is below no limit. Sizes: one tile, several, whole and partial ones, of the small
// side and of the large one, wide and tall; every number of steps, since runs end after some of them.
TEST_F(NewtonSchulzOnGpu, IsAsAccurateAsIterationsOnTheMatrix) {
  for (const auto& [n, rows, columns] : {std::tuple{3, 8, 8},
                                         {5, 64, 200},
                                         {2, 128, 512},
                                         {2, 512, 128},
                                         {3, 136, 200},
                                         {2, 264, 1000},
                                         {2, 1000, 264},
                                         {1, 768, 1040}})
    for (int64_t steps = 1; steps <= 5; ++steps) {
      SCOPED_TRACE(cat(n, " ", rows, " ", columns, " ", steps));
      const auto [on_gpu, rounded] = distances(matrices({n, rows, columns}, 0), NewtonSchulz::of("quintic", steps));
      EXPECT_LE(on_gpu, 1.5 * rounded + 2e-3);
    }
}

// The experts of the MoE reference, and singular values over many orders of magnitude: iterations on float16 Gram
// matrices must be more accurate than the original's bfloat16 iterations on the matrix. The bfloat16 Gram matrices of
// other GPUs lose more: 1.6 times as much was measured with code for sm_80.
TEST_F(NewtonSchulzOnGpu, IsAccurateOnIllConditionedMatrices) {
  const bool in_float16 = kernels::has_hopper_gram(gpu());
  for (const Shape& shape : {Shape{1, 512, 1792}, {1, 1792, 512}, {2, 256, 896}})
    for (const char* type : {"quintic", "polar_express"})
      for (const double power : {0.0, 0.5, 1.0, 2.0, 4.0}) {
        SCOPED_TRACE(cat(shape, " ", type, " ", power));
        const auto [on_gpu, rounded] = distances(matrices(shape, power), NewtonSchulz::of(type, 5));
        EXPECT_LE(on_gpu, in_float16 ? rounded : 1.75 * rounded);
      }
}

TEST_F(NewtonSchulzOnGpu, HasTheSameBitsInEveryBatchAndCall) {
  const NewtonSchulz quintic = NewtonSchulz::of("quintic", 5);
  for (const auto& [rows, columns] : {std::pair{512, 1792}, {1792, 512}, {128, 512}}) {
    const Tensor x = matrices({47, rows, columns}, 0.5);
    const auto all = values(to_host(orthogonalize(gpu(), to_gpu(x), quintic)));
    EXPECT_EQ(values(to_host(orthogonalize(gpu(), to_gpu(x), quintic))), all);
    const int64_t elements = int64_t{rows} * columns;
    for (const int64_t count : {1, 5}) {
      const Tensor some = host.stream.empty({count, rows, columns}, DType::bf16);
      host.stream.copy(some, x.narrow(0, 3, count));
      const auto begin = all.begin() + 3 * elements;
      EXPECT_EQ(values(to_host(orthogonalize(gpu(), to_gpu(some), quintic))),
                std::vector<double>(begin, begin + count * elements));
    }
  }
}

TEST_F(NewtonSchulzOnGpu, ZerosStayZeros) {
  const Tensor x = gpu().zeros({2, 256, 512}, DType::bf16);
  for (const double value : values(to_host(orthogonalize(gpu(), x, NewtonSchulz::of("quintic", 5)))))
    ASSERT_EQ(value, 0);
}

// Float32 and float64 iterate on Gram matrices with cuBLASLt's products.
TEST_F(NewtonSchulzOnGpu, WideDtypesAgreeWithTheCpu) {
  for (const auto& [dtype, most] : {std::pair{DType::f32, 1e-2}, {DType::f64, 1e-9}})
    for (const auto& [rows, columns] : {std::pair{40, 200}, {200, 40}, {40, 50}}) {
      const Tensor x = matrices({3, rows, columns}, 1);
      const auto exact = values(orthogonalize(host.stream, as(x, DType::f64), NewtonSchulz::of("quintic", 5)));
      const Tensor on_gpu = to_gpu(as(x, dtype));
      EXPECT_LT(distance(values(to_host(orthogonalize(gpu(), on_gpu, NewtonSchulz::of("quintic", 5)))), exact), most)
          << dtype << " " << rows;
    }
}

}  // namespace
}  // namespace witan
