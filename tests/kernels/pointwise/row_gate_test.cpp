#include "support/rank.h"
#include "witan/kernels/pointwise/elementwise.h"

namespace witan {
namespace {

using testing::close;
using testing::Rank;
using testing::values;

TEST(RowGate, AgreesWithTheFormulaAndItsSlope) {
  for (const auto& [dtype, tolerance] :
       {std::pair{DType::f64, 1e-12}, std::pair{DType::f32, 2e-5}, std::pair{DType::bf16, 3e-2}})
    for (const auto& [T, D] : {std::pair<int64_t, int64_t>{0, 4}, {1, 1}, {5, 33}, {3, 256}}) {
      SCOPED_TRACE(cat(dtype, " [", T, ", ", D, "]"));
      Rank rank;
      const Tensor x = rank.normal({T, D}, dtype, "x"), gate = rank.normal({T}, dtype, "gate", 3),
                   dy = rank.normal({T, D}, dtype, "dy"), y = rank.poisoned({T, D}, dtype),
                   dx = rank.poisoned({T, D}, dtype), dgate = rank.poisoned({T}, dtype);
      kernels::row_gate_forward(rank.stream, y, x, gate);
      kernels::row_gate_backward(rank.stream, dx, dgate, dy, x, gate);
      const auto in = values(x), g = values(dy), of = values(gate);
      std::vector<double> expected, slope, of_gate(static_cast<size_t>(T));
      for (size_t i = 0; i < in.size(); ++i) {
        const size_t t = i / static_cast<size_t>(D);
        const double p = 1 / (1 + std::exp(-of[t]));
        expected.push_back(p * in[i]);
        slope.push_back(p * g[i]);
        of_gate[t] += p * (1 - p) * g[i] * in[i];
      }
      EXPECT_TRUE(close(values(y), expected, tolerance, tolerance));
      EXPECT_TRUE(close(values(dx), slope, tolerance, tolerance));
      EXPECT_TRUE(close(values(dgate), of_gate, tolerance * 10, tolerance));
    }
}

TEST(RowGate, HasTheSameBitsOnAnyNumberOfThreads) {
  const auto run = [](int threads) {
    Rank rank(threads);
    const Tensor x = rank.normal({70, 515}, DType::f32, "x"), dy = rank.normal({70, 515}, DType::f32, "dy"),
                 gate = rank.normal({70}, DType::f32, "gate"), dx = rank.poisoned(x.shape(), DType::f32),
                 dgate = rank.poisoned({70}, DType::f32);
    kernels::row_gate_backward(rank.stream, dx, dgate, dy, x, gate);
    auto all = values(dx);
    std::ranges::copy(values(dgate), std::back_inserter(all));
    return all;
  };
  EXPECT_EQ(run(1), run(3));
}

}  // namespace
}  // namespace witan
