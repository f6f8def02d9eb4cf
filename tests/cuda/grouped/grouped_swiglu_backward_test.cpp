#include <cmath>
#include <cstring>
#include <limits>

#include "support/cuda_rank.h"
#include "support/products.h"
#include "witan/kernels/grouped/grouped_gemm.h"
#include "witan/kernels/pointwise/activation.h"

namespace witan {
namespace {

using testing::CudaTest;
using testing::ExactProduct;
using testing::rounding_of;
using testing::values;
using testing::widened;
using Case = testing::GroupedCase;

// K is the hidden width F, and N that of the given gradient. Groups of 0, 1, 63, 65, 127, 129 and 300 rows, out of
// order, with gaps; F around pieces of 64 and tiles of 256 columns, and narrower than the fused kernel supports; N
// around blocks of 64, short and long ones, for which blocks may share columns, and longer than the fused kernel
// supports; rows of whole 16 bytes, as tensor cores require, and others.
const std::vector<Case> kCases = {
    {40, 136, 136, {3, 10, 30}, {5, 17, 1}},
    {700, 256, 520, {0, 1, 64, 130, 258, 400}, {1, 63, 65, 127, 129, 300}},
    {700, 200, 64, {0, 1, 64, 130, 258, 400}, {1, 63, 65, 127, 129, 300}},
    {700, 320, 1096, {0, 1, 64, 130, 258, 400}, {1, 63, 65, 127, 129, 300}},
    {700, 264, 72, {300, 0, 700}, {400, 290, 0}},
    {300, 512, 1088, {0, 0, 0, 0}, {0, 0, 300, 0}},
    {330, 520, 264, {262, 0, 2, 198, 70}, {65, 1, 63, 0, 64}},
    {700, 72, 136, {0, 1, 64, 130, 258, 400}, {1, 63, 65, 127, 129, 300}},
    {64, 170, 90, {40, 0, 20, 64}, {20, 16, 0, 0}},
    {140, 133, 131, {0, 70}, {70, 65}},
    {140, 136, 4104, {0, 70}, {70, 65}},
    {8, 192, 64, {0, 0}, {0, 0}},
    {0, 192, 64, {0, 0}, {0, 0}},
};
constexpr DType kDtypes[] = {DType::f64, DType::f32, DType::bf16, DType::f16};

class CudaGroupedSwigluBackward : public CudaTest {
 protected:
  // The inputs; rows outside the groups are NaN, and the rows of `tokens` that `index` names are dy's.
  struct Problem {
    Tensor dy, w, h, s, tokens;
    RowIndex index;
    RowGroups groups;
  };
  using CudaTest::to_gpu;

  Problem on_host(const Case& c, DType dtype, bool weighted, int64_t topk = 2) {
    const int64_t E = std::ssize(c.count), tokens = c.capacity / 2 + 3;
    constexpr int64_t kNowhere = std::numeric_limits<int64_t>::max() / 4;
    Problem p{
        host.normal({c.capacity, c.N}, dtype, "dy"),
        host.normal({E, c.N, c.K}, dtype, "w"),
        host.normal({c.capacity, 2 * c.K}, dtype, "h", 2),
        weighted ? host.normal({c.capacity}, accumulator(dtype), "s") : Tensor(),
        host.normal({tokens, c.N}, dtype, "tokens"),
        {host.tensor<int64_t>({c.capacity}, std::vector<int64_t>(static_cast<size_t>(c.capacity), kNowhere)), topk},
        {host.tensor<int64_t>({E}, c.begin), host.tensor<int64_t>({E}, c.count)}};
    const auto index = p.index.index.span<int64_t>();
    int64_t next = tokens * topk - 1;
    for (size_t e = 0; e < c.count.size(); ++e)
      for (int64_t i = c.begin[e]; i < c.begin[e] + c.count[e]; ++i, next = (next + 7919) % (tokens * topk)) {
        index[static_cast<size_t>(i)] = next;
        host.stream.copy(p.dy.narrow(0, i, 1), p.tokens.narrow(0, next / topk, 1));
      }
    for (const Tensor& rows : {p.dy, p.h, p.s}) poison_outside(c, rows);
    return p;
  }
  Problem to_gpu(const Problem& p) {
    return {to_gpu(p.dy),
            to_gpu(p.w),
            to_gpu(p.h),
            to_gpu(p.s),
            to_gpu(p.tokens),
            {to_gpu(p.index.index), p.index.divisor},
            {to_gpu(p.groups.begin), to_gpu(p.groups.count), {}, {}, p.groups.expected_rows}};
  }
  static std::vector<bool> inside(const Case& c) {
    std::vector<bool> out(static_cast<size_t>(c.capacity));
    for (size_t e = 0; e < c.count.size(); ++e) std::fill_n(out.begin() + c.begin[e], c.count[e], true);
    return out;
  }
  static void poison_outside(const Case& c, const Tensor& rows) {
    if (!rows.defined() || c.capacity == 0) return;
    const std::vector<bool> kept = inside(c);
    const int64_t width = rows.elements() / c.capacity;
    dispatch_floating(rows.dtype(), [&]<class T>() {
      for (int64_t i = 0; i < rows.elements(); ++i)
        if (!kept[static_cast<size_t>(i / width)]) rows.data<T>()[i] = T(std::nanf(""));
    });
  }

  SwigluGradient outputs(const Case& c, DType dtype, bool with_ds) {
    return {poisoned({c.capacity, 2 * c.K}, dtype), with_ds ? poisoned({c.capacity}, accumulator(dtype)) : Tensor()};
  }
  SwigluGradient run(const Case& c, const Problem& p, bool gathers, bool with_ds) {
    const SwigluGradient out = outputs(c, p.h.dtype(), with_ds);
    kernels::grouped_swiglu_backward(gpu(), out, gathers ? p.tokens : p.dy, p.groups, p.w, {p.h, p.s},
                                     gathers ? p.index : RowIndex());
    return out;
  }
  // The two kernels that the fused one replaces.
  SwigluGradient apart(const Case& c, const Problem& p) {
    const SwigluGradient out = outputs(c, p.h.dtype(), true);
    const Tensor da = poisoned({c.capacity, c.K}, p.h.dtype());
    kernels::grouped_gemm_backward_input(gpu(), da, p.dy, p.groups, p.w);
    kernels::swiglu_backward(gpu(), out.dh, out.ds, da, p.h, p.s, p.groups);
    return out;
  }
  void expect_same_bits(const Tensor& a, const Tensor& b, const char* what) {
    const Tensor one = to_host(a), two = to_host(b);
    EXPECT_EQ(std::memcmp(one.raw(), two.raw(), static_cast<size_t>(one.bytes())), 0) << what;
  }
  void expect_formula(const Case& c, const Problem& p, const SwigluGradient& found);
  void expect_all(const Case& c, DType dtype, bool weighted);
  void expect_all(const Case& c, DType dtype, bool weighted, int64_t expected_rows);
};

// The sums and the formula in float64, with the same operands. The error of an activation's gradient, including its
// rounding, is multiplied by the derivative, to which the GPU's fast exponential adds an error of its own.
void CudaGroupedSwigluBackward::expect_formula(const Case& c, const Problem& p, const SwigluGradient& found) {
  const DType dtype = p.h.dtype();
  const Tensor sums = host.poisoned({c.capacity, c.K}, DType::f64);
  kernels::grouped_gemm_backward_input(host.stream, sums, widened(host, p.dy), p.groups, widened(host, p.w));
  const ExactProduct da{values(sums), {}, c.N};
  const std::vector<double> h = values(p.h), dh = values(to_host(found.dh)), ds = values(to_host(found.ds));
  const std::vector<double> weights = p.s.defined() ? values(p.s) : std::vector<double>();
  const std::vector<bool> kept = inside(c);
  const double rounding = 1.1 * rounding_of(dtype), least = dtype == DType::f16 ? 0x1p-24 : 0,
               fast = dtype == DType::f64 ? 1e-14 : 4e-6,
               summed = rounding_of(accumulator(dtype)) * static_cast<double>(c.K);
  for (int64_t t = 0; t < c.capacity; ++t) {
    const auto row = static_cast<size_t>(t), F = static_cast<size_t>(c.K);
    const double s = weights.empty() ? 1 : weights[row];
    double dot = 0, off = 0;
    for (size_t f = 0; f < F; ++f) {
      const size_t at_gate = row * 2 * F + f, at_up = at_gate + F, i = row * F + f;
      if (!kept[row]) {
        ASSERT_TRUE(std::isnan(dh[at_gate]) && std::isnan(dh[at_up])) << "row " << t << " is nobody's";
        continue;
      }
      const double gate = h[at_gate], up = h[at_up], open = 1 / (1 + std::exp(-gate)),
                   slope = open * (1 + gate * (1 - open)), d = da.at(i), allowed = da.allowed(i, dtype, dtype);
      // `factor`: the multiplier of the sigmoid or its slope, both of size one.
      const auto expect_near = [&](double got, double derivative, double factor, const char* what) {
        const double most = allowed * std::abs(derivative) + fast * (1 + std::abs(gate)) * std::abs(d * factor) +
                            rounding * std::abs(d * derivative) + least;
        ASSERT_LE(std::abs(got - d * derivative), most)
            << what << " of row " << t << ", column " << f << ": " << got << ", " << d * derivative;
      };
      expect_near(dh[at_gate], s * up * slope, s * up, "gate");
      expect_near(dh[at_up], s * gate * open, s * gate, "up");
      dot += d * gate * open * up;
      off += allowed * std::abs(gate * open * up) + (summed + fast) * std::abs(d * gate * up);
    }
    if (kept[row])
      ASSERT_LE(std::abs(ds[row] - dot), off) << "row weight " << t;
    else
      ASSERT_TRUE(std::isnan(ds[row])) << "row weight " << t << " is nobody's";
  }
}

void CudaGroupedSwigluBackward::expect_all(const Case& c, DType dtype, bool weighted, int64_t expected_rows) {
  SCOPED_TRACE(cat(c.capacity, " rows, F ", c.K, ", N ", c.N, ", ", dtype, weighted ? ", weighted" : "",
                   ", expected rows ", expected_rows));
  Problem cpu = on_host(c, dtype, weighted);
  cpu.groups.expected_rows = expected_rows;
  const Problem on_gpu = to_gpu(cpu);
  const SwigluGradient found = run(c, on_gpu, false, true), of_two = apart(c, on_gpu);
  expect_formula(c, cpu, found);
  expect_same_bits(found.dh, of_two.dh, "dh of two kernels");
  for (const bool gathers : {false, true}) {
    const SwigluGradient again = run(c, on_gpu, gathers, true), without = run(c, on_gpu, gathers, false);
    expect_same_bits(again.dh, found.dh, gathers ? "dh, gathered" : "dh again");
    expect_same_bits(again.ds, found.ds, gathers ? "ds, gathered" : "ds again");
    expect_same_bits(without.dh, found.dh, "dh without ds");
  }
}

// Once alone, and once in clusters of two blocks.
void CudaGroupedSwigluBackward::expect_all(const Case& c, DType dtype, bool weighted) {
  for (const int64_t expected_rows : {int64_t{1}, int64_t{1000000}}) expect_all(c, dtype, weighted, expected_rows);
}

TEST_F(CudaGroupedSwigluBackward, FollowsTheFormulaWithTheBitsOfTwoKernels) {
  for (const Case& c : kCases)
    for (const DType dtype : kDtypes)
      for (const bool weighted : {false, true}) expect_all(c, dtype, weighted);
}

// Few enough tiles of every kind for racecheck, which tracks every access to shared memory.
TEST_F(CudaGroupedSwigluBackward, FewTiles) {
  for (const DType dtype : {DType::bf16, DType::f16})
    for (const int64_t N : {72, 1032}) expect_all({72, 264, N, {1, 0, 6}, {5, 0, 66}}, dtype, true);
}

// Many rows for each of many experts, so that every block has several tiles and the ring wraps around.
TEST_F(CudaGroupedSwigluBackward, ManyTilesPerBlock) {
  Case c{0, 328, 1096, {}, {}};
  for (int64_t e = 0; e < 70; ++e) {
    c.begin.push_back(c.capacity);
    c.count.push_back(e * 37 % 400);
    c.capacity += c.count.back();
  }
  for (const bool weighted : {false, true}) expect_all(c, DType::bf16, weighted);
}

// The host's expectation of the device's groups changes no bit, not even of sums of weights' gradients.
TEST_F(CudaGroupedSwigluBackward, ExpectedRowsChangeNothing) {
  const Case c{600, 320, 1096, {0, 90, 600}, {90, 510, 0}};
  Problem p = to_gpu(on_host(c, DType::bf16, true));
  const SwigluGradient found = run(c, p, false, true);
  for (const int64_t expected : {int64_t{1}, int64_t{400}, int64_t{1000000}}) {
    p.groups.expected_rows = expected;
    const SwigluGradient other = run(c, p, expected == 400, true);
    expect_same_bits(other.dh, found.dh, "dh");
    expect_same_bits(other.ds, found.ds, "ds");
  }
}

// A warp computes 16 rows at a time, and a NaN in one of them must stay there.
TEST_F(CudaGroupedSwigluBackward, NaNStaysInItsRow) {
  const Case c{130, 136, 72, {0}, {130}};
  const Problem cpu = on_host(c, DType::bf16, true);
  cpu.dy.data<bf16>()[65 * c.N + 3] = bf16(std::nanf(""));
  const SwigluGradient found = run(c, to_gpu(cpu), false, true);
  const std::vector<double> dh = values(to_host(found.dh)), ds = values(to_host(found.ds));
  for (int64_t t = 0; t < c.capacity; ++t) {
    EXPECT_EQ(std::isnan(ds[static_cast<size_t>(t)]), t == 65) << t;
    EXPECT_EQ(std::isnan(dh[static_cast<size_t>(t * 2 * c.K)]), t == 65) << t;
  }
}

}  // namespace
}  // namespace witan
