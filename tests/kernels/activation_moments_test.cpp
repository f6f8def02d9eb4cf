#include "witan/kernels/activation_moments.h"

#include <cmath>
#include <limits>

#include "support/rank.h"

namespace witan {
namespace {

using testing::Rank;
using testing::values;

// By definition, element by element.
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

TEST(ActivationMoments, AreTheirDefinitionsInEveryDtype) {
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

TEST(ActivationMoments, ThreadsChangeNoBit) {
  std::vector<std::vector<double>> found;
  for (const int threads : {1, 3}) {
    Rank rank(threads);
    const Tensor out = rank.poisoned({kernels::kActivationMoments}, DType::f64);
    kernels::activation_moments(rank.stream, out, rank.normal({5, 77, 331}, DType::bf16, "x"), {});
    found.push_back(values(out));
  }
  EXPECT_EQ(found[0], found[1]);
}

TEST(ActivationMoments, WhatIsNotFiniteShows) {
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
