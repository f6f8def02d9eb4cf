#include "support/rank.h"
#include "witan/kernels/grouped/grouped_gemm.h"

namespace witan {
namespace {

using testing::close;
using testing::Rank;
using testing::values;

double tolerance(DType dtype) {
  return dtype == DType::f64 ? 1e-12 : dtype == DType::f32 ? 5e-6 : 2e-2;
}

// Groups out of order, one of them empty, with rows between them that belong to no group.
struct Pool {
  explicit Pool(Rank& rank, int64_t rows)
      : begins{rows / 2, 0, 3, 3},
        counts{rows - rows / 2 - 1, 2, 0, 1},
        groups{rank.tensor<int64_t>({4}, begins), rank.tensor<int64_t>({4}, counts)} {}
  // The group of a row, or -1.
  int64_t of(int64_t t) const {
    for (size_t e = 0; e < 4; ++e)
      if (t >= begins[e] && t < begins[e] + counts[e]) return static_cast<int64_t>(e);
    return -1;
  }
  std::vector<int64_t> begins, counts;
  RowGroups groups;
};

struct Sizes {
  int64_t rows, N, first, M;
};

void check(DType dtype, const Sizes& sizes, bool weighted, Write write) {
  const auto [rows, N, first, M] = sizes;
  SCOPED_TRACE(cat(dtype, " [", rows, ", ", N, "], ", M, " columns from ", first, weighted ? " weighted" : ""));
  Rank rank;
  const Pool pool(rank, rows);
  const Tensor y = rank.normal({rows, N}, dtype, "y"), dy = rank.normal({rows, N}, dtype, "dy"),
               bias = rank.normal({4, M}, dtype, "bias"), db = rank.normal({4, M}, accumulator(dtype), "db"),
               ds = rank.normal({rows}, accumulator(dtype), "ds"),
               s = weighted ? rank.normal({rows}, accumulator(dtype), "s") : Tensor();
  auto expected = values(y), of_bias = values(db), of_scale = values(ds);
  const auto g = values(dy), b = values(bias), weight = weighted ? values(s) : std::vector<double>(g.size(), 1);
  if (write == Write::overwrite) std::ranges::fill(of_bias, 0);
  for (int64_t t = 0; t < rows; ++t) {
    const int64_t e = pool.of(t);
    if (e < 0) continue;
    of_scale[size_t(t)] = 0;
    for (int64_t j = 0; j < M; ++j) {
      const auto at = static_cast<size_t>(t * N + first + j), in = static_cast<size_t>(e * M + j);
      expected[at] += weight[size_t(t)] * b[in];
      of_bias[in] += weight[size_t(t)] * g[at];
      of_scale[size_t(t)] += g[at] * b[in];
    }
  }
  kernels::grouped_bias_forward(rank.stream, y, pool.groups, bias, s, first);
  kernels::grouped_bias_backward(rank.stream, db, write, dy, pool.groups, s, first);
  kernels::grouped_bias_backward_scale(rank.stream, ds, dy, pool.groups, bias, first);
  EXPECT_TRUE(close(values(y), expected, tolerance(dtype), tolerance(dtype)));
  const double of_sums = 20 * tolerance(accumulator(dtype));
  EXPECT_TRUE(close(values(db), of_bias, of_sums, of_sums));
  EXPECT_TRUE(close(values(ds), of_scale, of_sums, of_sums));
}

TEST(GroupedBias, AgreesWithALoop) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (const Sizes& sizes : {Sizes{9, 5, 0, 5}, {10, 7, 3, 4}, {300, 130, 65, 65}, {8, 1, 0, 1}})
      for (const bool weighted : {false, true})
        for (const Write write : {Write::overwrite, Write::accumulate}) check(dtype, sizes, weighted, write);
}

TEST(GroupedBias, AnExpertWithoutRowsHasAGradientOfZeros) {
  Rank rank;
  const Tensor none = rank.stream.zeros({3}, DType::i64), db = rank.poisoned({3, 4}, DType::f32);
  kernels::grouped_bias_backward(rank.stream, db, Write::overwrite, rank.normal({5, 4}, DType::f32, "dy"), {none, none},
                                 {}, 0);
  EXPECT_EQ(values(db), std::vector<double>(12, 0));
}

TEST(GroupedBias, HasTheSameBitsOnAnyNumberOfThreads) {
  const auto run = [](int threads) {
    Rank rank(threads);
    const Pool pool(rank, 600);
    const Tensor dy = rank.normal({600, 200}, DType::f32, "dy"), s = rank.normal({600}, DType::f32, "s"),
                 db = rank.poisoned({4, 200}, DType::f32);
    kernels::grouped_bias_backward(rank.stream, db, Write::overwrite, dy, pool.groups, s, 0);
    return values(db);
  };
  EXPECT_EQ(run(1), run(3));
}

}  // namespace
}  // namespace witan
