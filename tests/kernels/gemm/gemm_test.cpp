#include "witan/kernels/gemm/gemm.h"

#include <algorithm>
#include <tuple>

#include "support/rank.h"

namespace witan {
namespace {

using kernels::Transpose;
using testing::close;
using testing::Rank;
using testing::values;

constexpr Transpose kNo = Transpose::no, kYes = Transpose::yes;

// op(a) op(b), summed in float64.
std::vector<double> product(const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b) {
  const bool ta = transpose_a == kYes, tb = transpose_b == kYes;
  const int64_t M = a.size(ta), K = a.size(!ta), N = b.size(!tb);
  const auto left = values(a), right = values(b);
  std::vector<double> c(static_cast<size_t>(M * N));
  for (int64_t i = 0; i < M; ++i)
    for (int64_t k = 0; k < K; ++k)
      for (int64_t j = 0; j < N; ++j)
        c[static_cast<size_t>(i * N + j)] += left[static_cast<size_t>(ta ? k * M + i : i * K + k)] *
                                             right[static_cast<size_t>(tb ? j * K + k : k * N + j)];
  return c;
}

Tensor operand(Rank& rank, int64_t rows, int64_t columns, Transpose transpose, DType dtype, const char* name) {
  return rank.normal(transpose == kYes ? Shape{columns, rows} : Shape{rows, columns}, dtype, name);
}

struct Tolerance {
  double atol, rtol;
};
Tolerance tolerance(DType c) {
  if (c == DType::f64) return {1e-12, 1e-12};
  return c == DType::f32 ? Tolerance{2e-4, 1e-5} : Tolerance{2e-4, 1.0 / 256};
}

// Sizes around the edges of tiles (14 or 6 rows, at most 32 columns), vectors (16), blocks of K (256) and the few rows
// (28 or 12) for which other kernels compute whole vectors of columns.
const std::vector<std::tuple<int64_t, int64_t, int64_t>> kSizes = {
    {1, 1, 1},     {1, 33, 17},  {3, 31, 5},   {13, 32, 16}, {14, 64, 256}, {15, 65, 257}, {29, 7, 513}, {300, 530, 20},
    {67, 48, 300}, {1, 300, 40}, {2, 150, 31}, {5, 97, 270}, {17, 81, 260}, {28, 50, 47},  {31, 34, 33}};

TEST(Gemm, AgreesWithTheDefinition) {
  Rank rank;
  for (const auto& [M, N, K] : kSizes)
    for (const Transpose ta : {kNo, kYes})
      for (const Transpose tb : {kNo, kYes})
        for (const auto& [in, out] : {std::pair{DType::f64, DType::f64},
                                      {DType::f32, DType::f32},
                                      {DType::bf16, DType::bf16},
                                      {DType::bf16, DType::f32}}) {
          SCOPED_TRACE(cat(M, " x ", N, " x ", K, ta == kYes ? " T" : " N", tb == kYes ? "T " : "N ", in, " -> ", out));
          const Tensor a = operand(rank, M, K, ta, in, "a"), b = operand(rank, K, N, tb, in, "b");
          const Tensor c = rank.poisoned({M, N}, out);
          auto expected = product(a, ta, b, tb);
          const auto [atol, rtol] = tolerance(out);
          kernels::gemm(rank.stream, c, Write::overwrite, a, ta, b, tb);
          ASSERT_TRUE(close(values(c), expected, atol, rtol));
          kernels::gemm(rank.stream, c, Write::accumulate, a, ta, b, tb);
          for (double& value : expected) value *= 2;
          ASSERT_TRUE(close(values(c), expected, 2 * atol, 2 * rtol));
        }
}

// A bfloat16 result is rounded once, however long the sum.
TEST(Gemm, LongSumsOfBfloat16AreRoundedOnce) {
  Rank rank;
  const Tensor a = rank.normal({20, 1000}, DType::bf16, "a"), b = rank.normal({40, 1000}, DType::bf16, "b");
  const Tensor wide = rank.poisoned({20, 40}, DType::f32), narrow = rank.poisoned({20, 40}, DType::bf16);
  kernels::gemm(rank.stream, wide, Write::overwrite, a, kNo, b, kYes);
  kernels::gemm(rank.stream, narrow, Write::overwrite, a, kNo, b, kYes);
  for (int64_t i = 0; i < wide.elements(); ++i)
    ASSERT_EQ(narrow.data<bf16>()[i].bits, bf16(wide.data<float>()[i]).bits) << i;
}

TEST(Gemm, ReadsAndWritesViews) {
  Rank rank;
  const Tensor a = rank.normal({20, 50}, DType::f32, "a"), b = rank.normal({60, 90}, DType::f32, "b");
  const Tensor c = rank.poisoned({10, 80}, DType::f32);
  const auto copy = [&](const Tensor& view) {
    const Tensor out = rank.stream.empty(view.shape(), DType::f32);
    for (int64_t i = 0; i < view.size(0); ++i)
      std::copy_n(view.data<float>() + i * view.stride(0), view.size(1), out.data<float>() + i * view.size(1));
    return out;
  };
  const Tensor left = a.narrow(1, 3, 40).narrow(0, 5, 9), right = b.narrow(1, 7, 35).narrow(0, 20, 40);
  const Tensor to = c.narrow(1, 1, 35).narrow(0, 0, 9);
  kernels::gemm(rank.stream, to, Write::overwrite, left, kNo, right, kNo);
  EXPECT_TRUE(close(values(copy(to)), product(copy(left), kNo, copy(right), kNo), 1e-4, 1e-5));
  for (int64_t i = 0; i < 10; ++i)
    for (int64_t j = 0; j < 80; ++j)
      if (i == 9 || j == 0 || j > 35) {
        ASSERT_TRUE(std::isnan(c.data<float>()[i * 80 + j])) << i << ", " << j;
      }
}

// An operand may end with the arena, so nothing beyond a row's end may be used.
TEST(Gemm, IgnoresMemoryBeyondOperands) {
  Rank rank;
  for (const Transpose ta : {kNo, kYes})
    for (const Transpose tb : {kNo, kYes}) {
      const Shape a_shape = ta == kYes ? Shape{19, 15} : Shape{15, 19},
                  b_shape = tb == kYes ? Shape{33, 19} : Shape{19, 33};
      const auto framed = [&](const Shape& shape, const char* name) {
        const Tensor frame = rank.poisoned({shape[0] + 1, shape[1] + 17}, DType::f32),
                     in = rank.normal(shape, DType::f32, name);
        const Tensor view = frame.narrow(0, 0, shape[0]).narrow(1, 0, shape[1]);
        for (int64_t i = 0; i < shape[0]; ++i)
          std::copy_n(in.data<float>() + i * shape[1], shape[1], view.data<float>() + i * view.stride(0));
        return std::pair{in, view};
      };
      const auto [a, a_view] = framed(a_shape, "a");
      const auto [b, b_view] = framed(b_shape, "b");
      const Tensor plain = rank.poisoned({15, 33}, DType::f32), viewed = rank.poisoned({15, 33}, DType::f32);
      kernels::gemm(rank.stream, plain, Write::overwrite, a, ta, b, tb);
      kernels::gemm(rank.stream, viewed, Write::overwrite, a_view, ta, b_view, tb);
      EXPECT_EQ(plain.to_vector<float>(), viewed.to_vector<float>());
      EXPECT_TRUE(close(values(plain), product(a, ta, b, tb), 1e-4, 1e-5));
    }
}

TEST(Gemm, HasTheSameBitsOnAnyNumberOfThreads) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16})
    for (const auto& [M, N, K] : kSizes) {
      std::vector<std::vector<double>> results;
      for (const int threads : {1, 3}) {
        Rank rank(threads);
        const Tensor c = rank.normal({M, N}, dtype, "c");
        kernels::gemm(rank.stream, c, Write::accumulate, rank.normal({K, M}, dtype, "a"), kYes,
                      rank.normal({N, K}, dtype, "b"), kYes);
        results.push_back(values(c));
      }
      EXPECT_EQ(results[0], results[1]) << dtype << ' ' << M << " x " << N << " x " << K;
    }
}

// Few rows use other kernels than many, and tiles depend on their number.
TEST(Gemm, RowsDoNotDependOnEachOther) {
  Rank rank;
  constexpr int64_t M = 301, N = 215, K = 603;
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16})
    for (const Transpose ta : {kNo, kYes})
      for (const Transpose tb : {kNo, kYes})
        for (const Write write : {Write::overwrite, Write::accumulate}) {
          const Tensor a = operand(rank, M, K, ta, dtype, "a"), b = operand(rank, K, N, tb, dtype, "b");
          const Tensor before = rank.normal({M, N}, dtype, "c"), all = rank.normal({M, N}, dtype, "c");
          kernels::gemm(rank.stream, all, write, a, ta, b, tb);
          for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 12, 13, 14, 15, 17, 28, 29, 31, 290}) {
            const int64_t first = std::min<int64_t>(7 * rows, M - rows);
            const Tensor some = rank.poisoned({rows, N}, dtype);
            dispatch_floating(dtype,
                              [&]<class T>() { std::copy_n(before.data<T>() + first * N, rows * N, some.data<T>()); });
            kernels::gemm(rank.stream, some, write, a.narrow(ta == kYes ? 1 : 0, first, rows), ta, b, tb);
            ASSERT_EQ(values(some), values(all.narrow(0, first, rows)))
                << dtype << ", rows " << first << " and " << rows - 1 << " more, " << (ta == kYes) << (tb == kYes);
          }
        }
}

TEST(Gemm, AcceptsEmptySumsAndEmptyResults) {
  Rank rank;
  const Tensor a = rank.stream.empty({2, 0}, DType::f32), b = rank.stream.empty({0, 3}, DType::f32);
  const Tensor c = rank.poisoned({2, 3}, DType::f32);
  kernels::gemm(rank.stream, c, Write::overwrite, a, kNo, b, kNo);
  EXPECT_EQ(values(c), std::vector<double>(6, 0.0));
  const Tensor kept = rank.tensor<float>({2, 3}, {1, 2, 3, 4, 5, 6});
  kernels::gemm(rank.stream, kept, Write::accumulate, a, kNo, b, kNo);
  EXPECT_EQ(values(kept), (std::vector<double>{1, 2, 3, 4, 5, 6}));
  kernels::gemm(rank.stream, rank.stream.empty({0, 3}, DType::f32), Write::overwrite,
                rank.stream.empty({0, 4}, DType::f32), kNo, rank.normal({4, 3}, DType::f32, "b"), kNo);
}

TEST(Gemm, ABiasIsAddedToEveryRow) {
  Rank rank;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    SCOPED_TRACE(dtype);
    const Tensor a = rank.normal({15, 40}, dtype, "a"), b = rank.normal({33, 40}, dtype, "b"),
                 bias = rank.normal({33}, dtype, "bias");
    const Tensor c = rank.poisoned({15, 33}, dtype);
    kernels::gemm_with_bias(rank.stream, c, a, kNo, b, kYes, bias);
    std::vector<double> expected = product(a, kNo, b, kYes);
    const std::vector<double> row = values(bias);
    for (size_t i = 0; i < expected.size(); ++i) expected[i] += row[i % 33];
    const auto [atol, rtol] = tolerance(dtype);
    EXPECT_TRUE(close(values(c), expected, atol, rtol));
  }
}

TEST(Gemm, RepeatsARow) {
  Rank rank;
  const Tensor y = rank.poisoned({3, 2}, DType::f64);
  kernels::repeat_row(rank.stream, y, rank.tensor<double>({2}, {4, 5}));
  EXPECT_EQ(values(y), (std::vector<double>{4, 5, 4, 5, 4, 5}));
}

TEST(Gemm, MetaCountsCostAndTheSameMemory) {
  ThreadPool pool(2);
  Stream meta({Device::Kind::meta}, Arena::meta(), pool);
  Rank rank(2);
  for (Stream* stream : {&meta, &rank.stream}) {
    const Tensor a = stream->empty({10, 300}, DType::bf16), b = stream->empty({20, 300}, DType::bf16);
    const Tensor c = stream->zeros({10, 20}, DType::bf16);
    kernels::gemm(*stream, c, Write::accumulate, a, kNo, b, kYes);
    const Cost cost = stream->costs().at("other").at("gemm");
    EXPECT_EQ(cost.flops, 2.0 * 10 * 20 * 300);
    EXPECT_EQ(cost.bytes, 2.0 * (10 * 300 + 20 * 300 + 2 * 10 * 20));
    EXPECT_EQ(stream->arena().live(MemoryTag::workspace), 0);
  }
  EXPECT_GT(meta.arena().peak(MemoryTag::workspace), 0);
  EXPECT_EQ(meta.arena().peak(MemoryTag::workspace), rank.stream.arena().peak(MemoryTag::workspace));
}

}  // namespace
}  // namespace witan
