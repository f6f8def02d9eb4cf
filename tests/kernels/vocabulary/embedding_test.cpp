#include "support/rank.h"
#include "witan/kernels/vocabulary/vocabulary.h"

namespace witan {
namespace {

using testing::close;
using testing::Rank;
using testing::values;

std::vector<int32_t> random_ids(int64_t T, int64_t V) {
  std::vector<int32_t> ids;
  const Philox rng(1, 2);
  for (int64_t t = 0; t < T; ++t)
    ids.push_back(static_cast<int32_t>(rng.below(static_cast<uint64_t>(V), static_cast<uint64_t>(t))));
  return ids;
}

void backward(Rank& rank, const Tensor& dw, Write write, const Tensor& dy, const Tensor& ids, int64_t begin = 0) {
  const Tensor order = rank.stream.empty({dw.size(0) + 1 + ids.elements()}, DType::i32);
  std::ranges::fill(order.span<int32_t>(), -77);  // a workspace is not initialised
  kernels::embedding_backward(rank.stream, dw, write, order, dy, ids, begin);
}

TEST(Embedding, CopiesRows) {
  Rank rank;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    const Tensor w = rank.normal({3, 5}, dtype, "w"), y = rank.poisoned({2, 2, 5}, dtype);
    kernels::embedding_forward(rank.stream, y, rank.tensor<int32_t>({2, 2}, {2, 0, 2, 1}), w);
    std::vector<double> expected;
    for (const size_t id : {2, 0, 2, 1})
      for (size_t d = 0; d < 5; ++d) expected.push_back(values(w)[id * 5 + d]);
    EXPECT_EQ(values(y), expected);
  }
}

TEST(Embedding, BackwardSumsTheRowsOfEachId) {
  Rank rank;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (const DType gradient : {DType::f64, DType::f32, dtype})
      for (const int64_t T : {0, 1, 9, 1000})
        for (const int64_t D : {1, 13, 300}) {
          SCOPED_TRACE(cat(dtype, " -> ", gradient, " T=", T, " D=", D));
          constexpr int64_t V = 7;
          const Tensor dy = rank.normal({T, D}, dtype, "dy");
          const std::vector<int32_t> ids = random_ids(T, V - 1);  // the last row is never used
          std::vector<double> expected(V * static_cast<size_t>(D));
          const auto g = values(dy);
          for (size_t t = 0; t < ids.size(); ++t)
            for (size_t d = 0; d < static_cast<size_t>(D); ++d)
              expected[static_cast<size_t>(ids[t] * D) + d] += g[t * static_cast<size_t>(D) + d];
          const double rtol = gradient == DType::bf16                         ? 1e-2
                              : dtype == DType::f64 && gradient == DType::f64 ? 1e-12
                                                                              : 1e-5;
          const Tensor dw = rank.poisoned({V, D}, gradient), tokens = rank.tensor({T}, ids);
          backward(rank, dw, Write::overwrite, dy, tokens);
          EXPECT_TRUE(close(values(dw), expected, rtol * 10, rtol));
          backward(rank, dw, Write::accumulate, dy, tokens);
          for (double& value : expected) value *= 2;
          EXPECT_TRUE(close(values(dw), expected, rtol * 20, rtol));
        }
}

TEST(Embedding, UnnamedRowsAreZeroedOrLeftAlone) {
  Rank rank;
  const Tensor dw = rank.poisoned({4, 2}, DType::f32), dy = rank.tensor<float>({1, 2}, {3, 4});
  const Tensor ids = rank.tensor<int32_t>({1}, {1});
  backward(rank, dw, Write::overwrite, dy, ids);
  const std::vector<double> overwritten = {0, 0, 3, 4, 0, 0, 0, 0}, accumulated = {0, 0, 6, 8, 0, 0, 0, 9};
  EXPECT_EQ(values(dw), overwritten);
  dw.data<float>()[7] = 9;
  backward(rank, dw, Write::accumulate, dy, ids);
  EXPECT_EQ(values(dw), accumulated);
}

// Rows [begin, begin + n) of a table of 7: as in the whole table, and zeros for ids of other ranks.
TEST(Embedding, PartsOfATableMatchTheWhole) {
  Rank rank;
  constexpr int64_t V = 7, D = 5, T = 200;
  const Tensor ids = rank.tensor({T}, random_ids(T, V));
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    const Tensor w = rank.normal({V, D}, dtype, "w"), dy = rank.normal({T, D}, dtype, "dy");
    const Tensor y = rank.poisoned({T, D}, dtype), dw = rank.poisoned({V, D}, DType::f32);
    kernels::embedding_forward(rank.stream, y, ids, w);
    backward(rank, dw, Write::overwrite, dy, ids);
    for (const auto& [begin, n] : std::vector<std::pair<int64_t, int64_t>>{{0, 7}, {0, 3}, {3, 3}, {6, 1}, {4, 0}}) {
      SCOPED_TRACE(cat(dtype, ", rows [", begin, ", ", begin + n, ")"));
      auto expected = values(y);
      for (int64_t t = 0; t < T; ++t)
        if (const int64_t row = ids.data<int32_t>()[t] - begin; row < 0 || row >= n)
          std::fill_n(expected.begin() + t * D, D, 0.0);
      const Tensor part = rank.poisoned({T, D}, dtype), gradient = rank.poisoned({n, D}, DType::f32);
      kernels::embedding_forward(rank.stream, part, ids, w.narrow(0, begin, n), begin);
      EXPECT_EQ(values(part), expected);
      backward(rank, gradient, Write::overwrite, dy, ids, begin);
      EXPECT_EQ(values(gradient), values(dw.narrow(0, begin, n)));
      backward(rank, gradient, Write::accumulate, dy, ids, begin);
      for (int64_t i = 0; i < n * D; ++i)
        EXPECT_EQ(gradient.data<float>()[i], 2 * dw.data<float>()[begin * D + i]) << i;
    }
  }
}

TEST(Embedding, HasTheSameBitsOnAnyNumberOfThreads) {
  const auto run = [](int threads) {
    Rank rank(threads);
    const Tensor dw = rank.poisoned({5000, 70}, DType::f32);
    auto ids = random_ids(4000, 5000);
    std::fill(ids.begin(), ids.begin() + 1000, 4999);  // a frequent id
    backward(rank, dw, Write::overwrite, rank.normal({4000, 70}, DType::f32, "dy"), rank.tensor({4000}, ids));
    return values(dw);
  };
  EXPECT_EQ(run(1), run(3));
}

}  // namespace
}  // namespace witan
