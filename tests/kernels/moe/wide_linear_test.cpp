#include "support/rank.h"
#include "witan/kernels/moe/router.h"

namespace witan {
namespace {

using testing::close;
using testing::Rank;
using testing::values;

// sum_k a(m, k) b(k, n) in float64
template <class A, class B>
std::vector<double> product(int64_t M, int64_t N, int64_t K, const A& a, const B& b) {
  std::vector<double> out(static_cast<size_t>(M * N));
  for (int64_t m = 0; m < M; ++m)
    for (int64_t n = 0; n < N; ++n)
      for (int64_t k = 0; k < K; ++k) out[static_cast<size_t>(m * N + n)] += a(m, k) * b(k, n);
  return out;
}

constexpr int64_t T = 37, D = 24, E = 10;

struct Operands {
  Operands(Rank& rank, DType dtype)
      : x(rank.normal({T, D}, dtype, "x")),
        w(rank.normal({E, D}, accumulator(dtype), "w")),
        dy(rank.normal({T, E}, accumulator(dtype), "dy")) {}
  Tensor x, w, dy;
};
auto matrix(const Tensor& tensor) {
  return [columns = tensor.size(1), all = values(tensor)](int64_t i, int64_t j) {
    return all[static_cast<size_t>(i * columns + j)];
  };
}
auto transposed(const Tensor& tensor) {
  return [of = matrix(tensor)](int64_t i, int64_t j) { return of(j, i); };
}
double error_of(DType dtype) {
  return dtype == DType::f64 ? 1e-13 : dtype == DType::f32 ? 1e-5 : 1.0 / 250;
}

TEST(WideLinear, MultipliesInTheAccumulatorDtype) {
  Rank rank;
  for (const DType dtype : {DType::bf16, DType::f32, DType::f64}) {
    const Operands in(rank, dtype);
    const Tensor y = rank.poisoned({T, E}, accumulator(dtype)), dx = rank.poisoned({T, D}, dtype);
    kernels::wide_linear(rank.stream, y, in.x, in.w);
    const double wide = error_of(y.dtype()), narrow = error_of(dtype);
    EXPECT_TRUE(close(values(y), product(T, E, D, matrix(in.x), transposed(in.w)), wide, wide)) << dtype;
    kernels::wide_linear_backward_input(rank.stream, dx, Write::overwrite, in.dy, in.w);
    EXPECT_TRUE(close(values(dx), product(T, D, E, matrix(in.dy), matrix(in.w)), wide, narrow)) << dtype;
  }
}

TEST(WideLinear, GradientsOfTheWeightAreKeptInAnyDtype) {
  Rank rank;
  for (const DType dtype : {DType::bf16, DType::f32, DType::f64})
    for (const DType kept : {DType::bf16, accumulator(dtype)}) {
      const Operands in(rank, dtype);
      auto expected = product(E, D, T, transposed(in.dy), matrix(in.x));
      const Tensor dw = rank.poisoned({E, D}, kept), sum = rank.normal({E, D}, kept, "dw");
      const double wide = error_of(accumulator(dtype)), error = error_of(kept);
      kernels::wide_linear_backward_weight(rank.stream, dw, Write::overwrite, in.dy, in.x);
      EXPECT_TRUE(close(values(dw), expected, wide, error)) << dtype << " " << kept;
      const auto before = values(sum);
      for (size_t i = 0; i < expected.size(); ++i) expected[i] += before[i];
      kernels::wide_linear_backward_weight(rank.stream, sum, Write::accumulate, in.dy, in.x);
      EXPECT_TRUE(close(values(sum), expected, wide, error)) << dtype << " " << kept;
    }
}

// Only the CPU, and shapes that tensor cores do not support, need workspace in the arena.
TEST(WideLinear, NeedsNoWorkspaceOnTensorCores) {
  Rank rank;
  const auto workspace = [&](Device device, const Shape& of_x, int64_t experts) {
    Stream stream(device, Arena::meta(), rank.pool);
    const Tensor x = stream.empty(of_x, DType::bf16), w = stream.empty({experts, of_x[1]}, DType::f32),
                 y = stream.empty({of_x[0], experts}, DType::f32);
    kernels::wide_linear(stream, y, x, w);
    kernels::wide_linear_backward_input(stream, x, Write::overwrite, y, w);
    kernels::wide_linear_backward_weight(stream, w, Write::overwrite, y, x);
    EXPECT_EQ(stream.flops(), 3 * 2.0 * static_cast<double>(of_x.elements() * experts));
    return stream.arena().peak(MemoryTag::workspace);
  };
  const Device cpu{Device::Kind::meta}, gpu{.kind = Device::Kind::meta, .stands_for = Device::Kind::cuda};
  const int64_t scratch = workspace(gpu, {256, 64}, 8);
  EXPECT_EQ(workspace(gpu, {256, 60}, 8), scratch + 256 * 60 * 4);
  EXPECT_EQ(workspace(gpu, {256, 64}, 7), scratch + 256 * 64 * 4);
  EXPECT_GE(workspace(cpu, {256, 64}, 8), 256 * 64 * 4);
}

}  // namespace
}  // namespace witan
