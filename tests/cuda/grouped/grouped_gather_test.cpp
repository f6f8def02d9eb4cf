#include <cmath>
#include <cstring>
#include <limits>

#include "support/cuda_rank.h"
#include "support/optimizer.h"
#include "support/products.h"
#include "witan/kernels/gemm/product_scopes.h"
#include "witan/kernels/grouped/cuda/grouped_gemm.h"
#include "witan/kernels/grouped/grouped_gemm.h"
#include "witan/kernels/pointwise/activation.h"

namespace witan {
namespace {

using testing::close;
using testing::CudaTest;
using testing::ExactProduct;
using testing::kGroupedTypes;
using testing::values;
using testing::widened;
using Case = testing::GroupedCase;

// Groups of 1, 63, 64 and 65 rows, gaps, groups out of order, empty ones, one with all rows, no rows at all; sizes
// around tiles of M and N, whole blocks of 64 of K and others, rows of whole 16 bytes and others; few rows and many.
const std::vector<Case> kCases = {
    {40, 72, 136, {3, 10, 30}, {5, 17, 1}},
    {64, 70, 90, {40, 0, 20, 64}, {20, 16, 0, 0}},
    {300, 200, 520, {0, 0, 0, 0}, {0, 0, 300, 0}},
    {330, 136, 264, {262, 0, 2, 198, 70}, {65, 1, 63, 0, 64}},
    {700, 64, 768, {5, 69, 133, 261, 261, 453}, {64, 64, 128, 0, 192, 243}},
    {700, 264, 520, {300, 0}, {400, 290}},
    {1300, 512, 64, {0, 257, 577, 960}, {257, 320, 383, 340}},
    {8, 64, 64, {0, 0}, {0, 0}},
    {0, 64, 64, {0, 0}, {0, 0}},
};
constexpr DType kDtypes[] = {DType::f64, DType::f32, DType::bf16, DType::f16};

class CudaGroupedGather : public CudaTest {
 protected:
  // Rows of a pool, and the tensor that holds them in other places, given by an index.
  struct Rows {
    Tensor in_order, tokens, index;
  };
  // Tokens that no row names are NaN, and index entries outside the groups are invalid; the first row of all groups is
  // the last token.
  Rows rows(const Case& c, int64_t width, int64_t topk, DType dtype, const char* name) {
    const int64_t tokens = c.capacity / 2 + 3, assignments = tokens * topk;
    Rows out{host.normal({c.capacity, width}, dtype, name), host.normal({tokens, width}, dtype, cat(name, " tokens")),
             host.tensor<int64_t>({c.capacity}, std::vector<int64_t>(static_cast<size_t>(c.capacity), kNowhere))};
    auto index = out.index.span<int64_t>();
    int64_t next = assignments - 1;
    for (size_t e = 0; e < c.count.size(); ++e)
      for (int64_t i = c.begin[e]; i < c.begin[e] + c.count[e]; ++i, next = (next + 7919) % assignments)
        index[static_cast<size_t>(i)] = next;
    std::vector<bool> named(static_cast<size_t>(tokens));
    dispatch_floating(dtype, [&]<class T>() {
      T *to = out.in_order.data<T>(), *from = out.tokens.data<T>();
      for (int64_t i = 0; i < c.capacity; ++i) {
        const int64_t at = index[static_cast<size_t>(i)];
        if (at == kNowhere) {
          std::fill_n(to + i * width, width, T(std::nanf("")));
        } else {
          std::copy_n(from + at / topk * width, width, to + i * width);
          named[static_cast<size_t>(at / topk)] = true;
        }
      }
      for (int64_t t = 0; t < tokens; ++t)
        if (!named[static_cast<size_t>(t)]) std::fill_n(from + t * width, width, T(std::nanf("")));
    });
    return out;
  }
  struct OnGpu {
    Tensor in_order, tokens;
    RowIndex index;
  };
  using CudaTest::to_gpu;
  OnGpu to_gpu(const Rows& rows, int64_t topk) {
    return {to_gpu(rows.in_order), to_gpu(rows.tokens), {to_gpu(rows.index), topk}};
  }
  RowGroups groups(const Case& c) {
    const int64_t E = std::ssize(c.count);
    return {host.tensor<int64_t>({E}, c.begin), host.tensor<int64_t>({E}, c.count)};
  }
  RowGroups to_gpu(const RowGroups& groups) {
    return {to_gpu(groups.begin), to_gpu(groups.count), {}, {}, groups.expected_rows};
  }
  Tensor weight(const Case& c, DType dtype) { return host.normal({std::ssize(c.count), c.N, c.K}, dtype, "w"); }

  // The product of rows in order, in float64; NaN outside the groups, as in poisoned outputs.
  ExactProduct forward(const RowGroups& groups, const Tensor& x, const Tensor& w) {
    const Tensor y = host.poisoned({x.size(0), w.size(1)}, DType::f64);
    kernels::grouped_gemm_forward(host.stream, y, widened(host, x), groups, widened(host, w));
    return {values(y), {}, w.size(2)};
  }
  ExactProduct backward_input(const RowGroups& groups, const Tensor& dy, const Tensor& w) {
    const Tensor dx = host.poisoned({dy.size(0), w.size(2)}, DType::f64);
    kernels::grouped_gemm_backward_input(host.stream, dx, widened(host, dy), groups, widened(host, w));
    return {values(dx), {}, w.size(1)};
  }
  ExactProduct backward_weight(const Case& c, const RowGroups& groups, const Tensor& dy, const Tensor& x) {
    const Tensor dw = host.poisoned({groups.experts(), dy.size(1), x.size(1)}, DType::f64);
    kernels::grouped_gemm_backward_weight(host.stream, {dw, Write::overwrite}, widened(host, dy), widened(host, x),
                                          groups);
    return {values(dw), {}, *std::max_element(c.count.begin(), c.count.end())};
  }
  void expect_same_bits(const Tensor& a, const Tensor& b) {
    const Tensor one = to_host(a), two = to_host(b);
    EXPECT_EQ(std::memcmp(one.raw(), two.raw(), static_cast<size_t>(one.bytes())), 0);
  }

  void expect_lines(const Case& c, DType dtype, int64_t topk, int64_t expected_rows = -1);
  void expect_sums(const Case& c, DType in, DType out, int64_t topk, Write write);
  void expect_columns(int64_t width);

  static constexpr int64_t kNowhere = std::numeric_limits<int64_t>::max() / 4;
};

// Forward with and without SwiGLU, and the gradient of the input: they must equal the exact products, with the bits of
// rows in order.
void CudaGroupedGather::expect_lines(const Case& c, DType dtype, int64_t topk, int64_t expected_rows) {
  RowGroups of = groups(c);
  of.expected_rows = expected_rows;
  const RowGroups of_gpu = to_gpu(of);
  const Tensor w = weight(c, dtype), w_gpu = to_gpu(w);
  const Rows x = rows(c, c.K, topk, dtype, "x"), dy = rows(c, c.N, topk, dtype, "dy");
  const OnGpu x_gpu = to_gpu(x, topk), dy_gpu = to_gpu(dy, topk);
  const Shape narrow{c.capacity, c.K}, wide{c.capacity, c.N};

  const Tensor y = poisoned(wide, dtype), y_in_order = poisoned(wide, dtype);
  kernels::grouped_gemm_forward(gpu(), y, x_gpu.tokens, of_gpu, w_gpu, x_gpu.index);
  kernels::grouped_gemm_forward(gpu(), y_in_order, x_gpu.in_order, of_gpu, w_gpu);
  EXPECT_TRUE(close(to_host(y), forward(of, x.in_order, w), dtype));
  expect_same_bits(y, y_in_order);

  const Tensor dx = poisoned(narrow, dtype), dx_in_order = poisoned(narrow, dtype);
  kernels::grouped_gemm_backward_input(gpu(), dx, dy_gpu.tokens, of_gpu, w_gpu, dy_gpu.index);
  kernels::grouped_gemm_backward_input(gpu(), dx_in_order, dy_gpu.in_order, of_gpu, w_gpu);
  EXPECT_TRUE(close(to_host(dx), backward_input(of, dy.in_order, w), dtype));
  expect_same_bits(dx, dx_in_order);

  if (c.N % 2 != 0) return;
  const Tensor s = to_gpu(host.normal({c.capacity}, accumulator(dtype), "s")), h = poisoned(wide, dtype);
  const Tensor gated = poisoned({c.capacity, c.N / 2}, dtype), gated_apart = poisoned(gated.shape(), dtype);
  kernels::grouped_swiglu_forward(gpu(), gated, h, x_gpu.tokens, of_gpu, w_gpu, s, x_gpu.index);
  kernels::swiglu_forward(gpu(), gated_apart, y_in_order, s, of_gpu);
  expect_same_bits(h, y_in_order);
  expect_same_bits(gated, gated_apart);
}

// The gradient of the weight, with either operand gathered.
void CudaGroupedGather::expect_sums(const Case& c, DType in, DType out, int64_t topk, Write write) {
  const RowGroups of = groups(c), of_gpu = to_gpu(of);
  const Rows x = rows(c, c.K, topk, in, "x"), dy = rows(c, c.N, topk, in, "dy");
  const OnGpu x_gpu = to_gpu(x, topk), dy_gpu = to_gpu(dy, topk);
  const Shape shape{of.experts(), c.N, c.K};
  ExactProduct expected = backward_weight(c, of, dy.in_order, x.in_order);
  const Tensor before = write == Write::accumulate ? host.normal(shape, out, "dw") : host.poisoned(shape, out);
  const Tensor sums = host.poisoned(kernels::block_sums_shape(shape), DType::f64);
  if (write == Write::accumulate) {
    expected.before = values(before);
    kernels::block_square_sums(host.stream, sums, before);
  }
  const Tensor of_x = to_gpu(before), of_dy = to_gpu(before), in_order = to_gpu(before);
  const Tensor sums_of_x = to_gpu(sums), sums_of_dy = to_gpu(sums);
  kernels::grouped_gemm_backward_weight(gpu(), {of_x, write, sums_of_x}, dy_gpu.in_order, x_gpu.tokens, of_gpu,
                                        {.x = x_gpu.index});
  kernels::grouped_gemm_backward_weight(gpu(), {of_dy, write, sums_of_dy}, dy_gpu.tokens, x_gpu.in_order, of_gpu,
                                        {.dy = dy_gpu.index});
  kernels::grouped_gemm_backward_weight(gpu(), {in_order, write}, dy_gpu.in_order, x_gpu.in_order, of_gpu);
  EXPECT_TRUE(close(to_host(of_x), expected, in)) << "x gathered";
  EXPECT_TRUE(close(to_host(of_dy), expected, in)) << "dy gathered";
  expect_same_bits(of_x, in_order);
  expect_same_bits(of_dy, in_order);
  const double rtol = out == DType::f64 ? 1e-12 : 2.5e-6;  // two independent sums of 32 squares each in float32
  EXPECT_TRUE(testing::close_block_sums(to_host(sums_of_x), to_host(of_x), rtol)) << "x gathered";
  EXPECT_TRUE(testing::close_block_sums(to_host(sums_of_dy), to_host(of_dy), rtol)) << "dy gathered";
}

TEST_F(CudaGroupedGather, RowsMatchExactProducts) {
  for (const Case& c : kCases)
    for (const DType dtype : kDtypes)
      for (const int64_t topk : {1, 2, 8}) {
        SCOPED_TRACE(cat(c.capacity, " rows, K ", c.K, ", N ", c.N, ", ", dtype, ", top ", topk));
        expect_lines(c, dtype, topk);
      }
}

TEST_F(CudaGroupedGather, WeightGradientsMatchExactProducts) {
  for (const Case& c : kCases)
    for (const auto& [in, out] : kGroupedTypes)
      for (const Write write : {Write::overwrite, Write::accumulate})
        for (const int64_t topk : {1, 8}) {
          SCOPED_TRACE(cat(c.capacity, " rows, K ", c.K, ", N ", c.N, ", ", in, " -> ", out, ", top ", topk,
                           write == Write::accumulate ? ", added" : ""));
          expect_sums(c, in, out, topk, write);
        }
}

// Few enough tiles of every kind for racecheck, which tracks every access to shared memory.
TEST_F(CudaGroupedGather, FewTilesMatchExactProducts) {
  const Case c{72, 136, 72, {1, 0, 6}, {5, 0, 66}};
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    SCOPED_TRACE(cat(dtype));
    expect_lines(c, dtype, 2);
    expect_sums(c, dtype, dtype, 2, Write::overwrite);
  }
}

// Many rows for each of many experts, so that every block has several tiles and the ring wraps around, in clusters too.
TEST_F(CudaGroupedGather, ManyTilesPerBlock) {
  Case c{0, 320, 640, {}, {}};
  for (int64_t e = 0; e < 70; ++e) {
    c.begin.push_back(c.capacity);
    c.count.push_back(e * 37 % 400);
    c.capacity += c.count.back();
  }
  for (const int64_t expected : {int64_t{-1}, int64_t{1}, int64_t{100000}}) {
    SCOPED_TRACE(cat("expected rows ", expected));
    expect_lines(c, DType::bf16, 8, expected);
  }
  expect_sums(c, DType::bf16, DType::f32, 8, Write::overwrite);
  expect_sums(c, DType::bf16, DType::bf16, 8, Write::accumulate);
}

// The tile depends on the expected rows, which the host knows; results do not.
TEST_F(CudaGroupedGather, EveryTileShapeMatchesExactProducts) {
  const Case c{600, 320, 512, {0, 90, 600}, {90, 510, 0}};
  for (const int64_t expected : {int64_t{1}, int64_t{400}, int64_t{100000}}) {
    SCOPED_TRACE(cat("expected rows ", expected));
    expect_lines(c, DType::bf16, 2, expected);
  }
}

// Rows that are the first 72 or 70 elements of wider ones: in whole pieces of 16 bytes, or with other columns in the
// last piece.
void CudaGroupedGather::expect_columns(int64_t width) {
  constexpr int64_t kAll = 80, kOther = 264, kTopk = 2;
  const Case c{200, kAll, kOther, {0, 70, 70}, {70, 0, 130}};
  const RowGroups of = groups(c), of_gpu = to_gpu(of);
  const Rows wide = rows(c, kAll, kTopk, DType::bf16, "rows"), other = rows(c, kOther, kTopk, DType::bf16, "other");
  const OnGpu on_gpu = to_gpu(wide, kTopk);
  const Tensor tokens = on_gpu.tokens.narrow(1, 0, width);
  const auto columns = [&](const Tensor& from, int dim) {
    Tensor out = host.stream.empty(from.shape().with(dim, width), from.dtype());
    const int64_t inner = dim == 1 && from.shape().dims() == 3 ? from.size(2) : 1;
    const int64_t outer = from.elements() / (kAll * inner);
    for (int64_t i = 0; i < outer; ++i)
      std::copy_n(from.data<bf16>() + i * kAll * inner, width * inner, out.data<bf16>() + i * width * inner);
    return out;
  };
  const Tensor read = columns(wide.in_order, 1);
  {
    const Tensor w = host.normal({3, kOther, kAll}, DType::bf16, "w"), y = poisoned({200, kOther}, DType::bf16);
    kernels::grouped_gemm_forward(gpu(), y, tokens, of_gpu, to_gpu(w).narrow(2, 0, width), on_gpu.index);
    EXPECT_TRUE(close(to_host(y), forward(of, read, columns(w, 2)), DType::bf16));
  }
  const Tensor w = host.normal({3, width, kOther}, DType::bf16, "w"), dx = poisoned({200, kOther}, DType::bf16);
  kernels::grouped_gemm_backward_input(gpu(), dx, tokens, of_gpu, to_gpu(w), on_gpu.index);
  EXPECT_TRUE(close(to_host(dx), backward_input(of, read, w), DType::bf16));
  const Tensor dw = poisoned(w.shape(), DType::f32);
  kernels::grouped_gemm_backward_weight(gpu(), {dw, Write::overwrite}, tokens, to_gpu(other.in_order), of_gpu,
                                        {.dy = on_gpu.index});
  EXPECT_TRUE(close(to_host(dw), backward_weight(c, of, read, other.in_order), DType::bf16));
}

TEST_F(CudaGroupedGather, ReadsColumnsOfWiderRows) {
  expect_columns(72);
  expect_columns(70);
}

TEST_F(CudaGroupedGather, ExpertsWithFewRows) {
  const kernels::FewRows few;
  const std::vector<Case> cases = {{8, 72, 34, {0, 3, 3, 4}, {3, 0, 1, 4}},
                                   {20, 136, 66, {9, 0, 14, 2, 20}, {5, 2, 6, 7, 0}},
                                   {16, 1096, 130, {0, 0, 0, 0}, {0, 0, 14, 0}}};
  for (const Case& c : cases)
    for (const DType dtype : {DType::bf16, DType::f16})
      for (const int64_t topk : {1, 8}) {
        SCOPED_TRACE(cat(c.capacity, " rows, K ", c.K, ", N ", c.N, ", ", dtype, ", top ", topk));
        const OnGpu x = to_gpu(rows(c, c.K, topk, dtype, "x"), topk);
        const Tensor y = poisoned({c.capacity, c.N}, dtype);
        EXPECT_TRUE(
            kernels::cuda::few_rows_grouped(gpu(), y, x.tokens, to_gpu(groups(c)), to_gpu(weight(c, dtype)), x.index));
        expect_lines(c, dtype, topk);
      }
}

}  // namespace
}  // namespace witan
