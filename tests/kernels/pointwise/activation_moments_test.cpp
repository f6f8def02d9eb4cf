#include "witan/kernels/pointwise/activation_moments.h"

#include <cmath>
#include <limits>

#include "support/rank.h"

namespace witan {
namespace {

using testing::Rank;
using testing::values;

// Computed by definition, element by element.
std::vector<double> moments_of(const Tensor& x, const Tensor& added) {
  std::vector<double> out(kernels::kActivationMoments);
  const std::vector<double> a = values(x), b = added.defined() ? values(added) : std::vector<double>();
  dispatch_floating(x.dtype(), [&]<class T>() {
    for (size_t i = 0; i < a.size(); ++i) {
      const double y = b.empty() ? a[i] : static_cast<double>(T(static_cast<Accumulator<T>>(a[i] + b[i])));
      out[0] += y * y;
      out[1] = std::max(out[1], std::abs(y));
      out[2] += y == 0;
      out[3] += 1;
    }
  });
  return out;
}

TEST(ActivationMoments, FollowTheirDefinitionsInEveryDtype) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64})
    for (const int64_t n : {int64_t{0}, int64_t{1}, int64_t{37}, int64_t{1} << 14, int64_t{100'003}}) {
      SCOPED_TRACE(cat(dtype, " [", n, "]"));
      Rank rank;
      const Tensor x = rank.normal({n}, dtype, "x"), added = rank.normal({n}, dtype, "added");
      dispatch_floating(dtype, [&]<class T>() {
        for (int64_t i = 0; i < n; i += 5) x.data<T>()[i] = added.data<T>()[i] = T(0.0f);
        for (int64_t i = 3; i < n; i += 5) added.data<T>()[i] = T(-static_cast<double>(x.data<T>()[i]));
      });
      for (const Tensor& more : {Tensor(), added}) {
        const Tensor out = rank.poisoned({kernels::kActivationMoments}, DType::f64);
        kernels::activation_moments(rank.stream, out, x, more);
        EXPECT_TRUE(testing::close(values(out), moments_of(x, more), 0, 1e-12));
      }
    }
}

// Padding rows hold conspicuous values, but change no bit, wherever and however many they are.
TEST(ActivationMoments, LeavePaddingOut) {
  Rank rank;
  for (const int64_t D : {1, 6, 331}) {
    const Tensor x = rank.normal({4, D}, DType::bf16, "x"), added = rank.normal({4, D}, DType::bf16, "added");
    const std::vector<double> expected = moments_of(x, added);
    std::vector<double> first;
    for (const int64_t rows : {4, 5, 900}) {
      const Tensor wide = rank.stream.empty({rows, D}, DType::bf16), more = rank.stream.empty({rows, D}, DType::bf16);
      std::ranges::fill(wide.span<bf16>(), bf16(std::nanf("")));
      std::ranges::fill(more.span<bf16>(), bf16(1e9F));
      std::vector<int32_t> ids(static_cast<size_t>(rows), -1);
      for (int64_t row = 0; row < 4; ++row) {
        const int64_t at = row < 2 ? row : rows - 4 + row;  // padding in the middle
        ids[static_cast<size_t>(at)] = static_cast<int32_t>(row);
        rank.stream.copy(wide.narrow(0, at, 1), x.narrow(0, row, 1));
        rank.stream.copy(more.narrow(0, at, 1), added.narrow(0, row, 1));
      }
      const Tensor out = rank.poisoned({kernels::kActivationMoments}, DType::f64);
      kernels::activation_moments(rank.stream, out, wide, more, rank.tensor<int32_t>({rows}, ids));
      EXPECT_TRUE(testing::close(values(out), expected, 0, 1e-12)) << rows << " rows of " << D;
      if (first.empty()) first = values(out);
      EXPECT_EQ(values(out), first) << rows << " rows of " << D;
    }
    const Tensor none = rank.poisoned({kernels::kActivationMoments}, DType::f64);
    kernels::activation_moments(rank.stream, none, x, {}, rank.tensor<int32_t>({4}, {-1, -1, -1, -1}));
    EXPECT_EQ(values(none), std::vector<double>(4, 0.0));
  }
}

TEST(ActivationMoments, HaveTheSameBitsOnAnyNumberOfThreads) {
  std::vector<std::vector<double>> found;
  for (const int threads : {1, 3}) {
    Rank rank(threads);
    const Tensor out = rank.poisoned({kernels::kActivationMoments}, DType::f64);
    kernels::activation_moments(rank.stream, out, rank.normal({5, 77, 331}, DType::bf16, "x"), {});
    found.push_back(values(out));
  }
  EXPECT_EQ(found[0], found[1]);
}

TEST(ActivationMoments, ShowNonFiniteValues) {
  Rank rank;
  const Tensor x = rank.normal({40'000}, DType::f32, "x"),
               out = rank.poisoned({kernels::kActivationMoments}, DType::f64);
  x.data<float>()[20'000] = -std::numeric_limits<float>::infinity();
  kernels::activation_moments(rank.stream, out, x, {});
  EXPECT_TRUE(std::isinf(out.data<double>()[kernels::activation_moment::largest]));
  EXPECT_TRUE(std::isinf(out.data<double>()[kernels::activation_moment::square_sum]));
  x.data<float>()[7] = std::nanf("");
  kernels::activation_moments(rank.stream, out, x, {});
  EXPECT_TRUE(std::isnan(out.data<double>()[kernels::activation_moment::largest]));
  EXPECT_EQ(out.data<double>()[kernels::activation_moment::elements], 40'000);
}

}  // namespace
}  // namespace witan
