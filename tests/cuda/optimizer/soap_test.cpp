#include "witan/kernels/optimizer/soap.h"

#include <cmath>

#include "support/cuda_rank.h"
#include "witan/kernels/gemm/gemm.h"

namespace witan {
namespace {

using kernels::Transpose;
using testing::values;

class SoapOnGpu : public testing::CudaTest {
 protected:
  Tensor step(int64_t update, double skip = 0) {
    return host.tensor<double>({kernels::kStepValues},
                               {0.02, 0.5, static_cast<double>(update), skip, static_cast<double>(update + 2), 0.5});
  }
  // g g^T for g [n, 2 n], whose rows decrease in size.
  Tensor factor(int64_t n, DType dtype, const std::string& name) {
    const Tensor g = host.normal({n, 2 * n}, dtype, name), out = host.stream.empty({n, n}, dtype);
    dispatch_floating(dtype, [&]<class A>() {
      for (int64_t i = 0; i < n * 2 * n; ++i) {
        A& at = g.data<A>()[i];
        at = A(static_cast<double>(at) * std::pow(0.98, static_cast<double>(i / (2 * n))));
      }
    });
    kernels::gemm(host.stream, out, Write::overwrite, g, Transpose::no, g, Transpose::yes);
    return out;
  }
  // The largest difference between rows, each with the better sign.
  static double apart_but_for_signs(const std::vector<double>& a, const std::vector<double>& b, size_t n) {
    double most = 0;
    for (size_t r = 0; r < n; ++r) {
      double dot = 0;
      for (size_t c = 0; c < n; ++c) dot += a[r * n + c] * b[r * n + c];
      for (size_t c = 0; c < n; ++c) most = std::max(most, std::abs(a[r * n + c] - (dot < 0 ? -1 : 1) * b[r * n + c]));
      if (!std::isfinite(dot)) return INFINITY;
    }
    return most;
  }
  static double from_orthonormal(const std::vector<double>& q, size_t n) {
    double most = 0;
    for (size_t r = 0; r < n; ++r)
      for (size_t s = 0; s <= r; ++s) {
        double dot = r == s ? -1 : 0;
        for (size_t c = 0; c < n; ++c) dot += q[r * n + c] * q[s * n + c];
        if (!std::isfinite(dot)) return INFINITY;
        most = std::max(most, std::abs(dot));
      }
    return most;
  }
};

TEST_F(SoapOnGpu, MomentsAndDirectionsAgreeWithTheCpu) {
  for (const DType wide : {DType::f32, DType::f64})
    for (const DType gradient : {DType::bf16, DType::f32, DType::f64})
      for (const int64_t update : {1, 2, 7})
        for (const double skip : {0.0, 1.0}) {
          SCOPED_TRACE(cat(wide, " ", gradient, " ", update, " ", skip));
          const int64_t n = 100003;
          const kernels::SoapMoments cpu{host.normal({n}, wide, "m"), host.normal({n}, gradient, "g"),
                                         host.poisoned({n}, wide), host.poisoned({n}, wide)};
          const kernels::SoapMoments there{to_gpu(cpu.m), to_gpu(cpu.gradient), to_gpu(cpu.outer), to_gpu(cpu.scaled)};
          const Tensor v = host.tensor<double>({n}, std::vector<double>(static_cast<size_t>(n), 0.25));
          const Tensor square = wide == DType::f64 ? v : host.stream.zeros({n}, wide), to = host.poisoned({n}, wide);
          const Tensor gpu_square = to_gpu(square), gpu_to = to_gpu(to);
          const kernels::SoapDirectionArgs args{0.9, 0.95, 1e-8, 0.1};
          kernels::soap_moments(host.stream, cpu, step(update, skip), {0.9, 0.05});
          kernels::soap_moments(gpu(), there, to_gpu(step(update, skip)), {0.9, 0.05});
          kernels::soap_direction(host.stream, to, square, cpu.scaled, cpu.m, step(update, skip), args);
          kernels::soap_direction(gpu(), gpu_to, gpu_square, there.scaled, there.m, to_gpu(step(update, skip)), args);
          const double most = tolerance(wide);
          EXPECT_TRUE(agree(there.m, cpu.m, most, most));
          EXPECT_TRUE(agree(there.outer, cpu.outer, most, most));
          EXPECT_TRUE(agree(there.scaled, cpu.scaled, most, most));
          EXPECT_TRUE(agree(gpu_square, square, most, most));
          EXPECT_TRUE(agree(gpu_to, to, 10 * most, 10 * most));
        }
}

// First bases equal LAPACK's eigenvectors, and later ones those of its QR, up to signs: in float64 digit by digit, in
// float32 as far as neighbouring eigenvalues allow. v follows the order of the vectors.
TEST_F(SoapOnGpu, BasesAgreeWithTheCpu) {
  for (const DType wide : {DType::f64, DType::f32})
    for (const int64_t n : {1, 2, 7, 32, 33, 130})
      for (const int dim : {0, 1}) {
        SCOPED_TRACE(cat(wide, " ", n, " ", dim));
        const auto size = static_cast<size_t>(n);
        const Shape shape = dim == 0 ? Shape{n, 11} : Shape{11, n};
        Tensor basis = host.stream.zeros({n, n}, wide), v = host.normal(shape, wide, "v");
        const Tensor on_gpu = to_gpu(basis), its_v = to_gpu(v);
        const Tensor first = factor(n, wide, "a"), second = factor(n, wide, "b");
        kernels::renew_basis(host.stream, basis, v, first, step(1), {3, dim, 1});
        kernels::renew_basis(gpu(), on_gpu, its_v, to_gpu(first), to_gpu(step(1)), {3, dim, 1});
        const double most = wide == DType::f64 ? 1e-8 : INFINITY;
        EXPECT_LE(apart_but_for_signs(values(to_host(on_gpu)), values(basis), size), most);
        EXPECT_LT(from_orthonormal(values(to_host(on_gpu)), size), wide == DType::f64 ? 1e-12 : 1e-4);
        gpu().write(on_gpu, basis.raw());      // the same start, signs included
        for (const int64_t update : {3, 4}) {  // the fourth update is due
          kernels::renew_basis(host.stream, basis, v, second, step(update), {3, dim, update});
          kernels::renew_basis(gpu(), on_gpu, its_v, to_gpu(second), to_gpu(step(update)), {3, dim, update});
        }
        EXPECT_LE(apart_but_for_signs(values(to_host(on_gpu)), values(basis), size), most);
        EXPECT_LT(from_orthonormal(values(to_host(on_gpu)), size), wide == DType::f64 ? 1e-12 : 1e-4);
        if (wide == DType::f64) {
          EXPECT_TRUE(agree(its_v, v, 0, 0));
        }
      }
}

// A low-rank factor determines its other vectors only by rounding errors, but they are orthonormal; a zero factor keeps
// the basis.
TEST_F(SoapOnGpu, BasesOfFactorsWithoutRankAreOrthonormal) {
  for (const DType wide : {DType::f64, DType::f32})
    for (const int64_t rank : {0, 3, 40}) {
      SCOPED_TRACE(cat(wide, " ", rank));
      const int64_t n = 70;
      const Tensor g = host.normal({n, std::max<int64_t>(rank, 1)}, wide, "g", rank == 0 ? 0 : 1);
      const Tensor few = host.stream.empty({n, n}, wide), v = to_gpu(host.normal({n, n}, wide, "v"));
      kernels::gemm(host.stream, few, Write::overwrite, g, Transpose::no, g, Transpose::yes);
      const Tensor basis = to_gpu(host.poisoned({n, n}, wide));
      for (const int64_t update : {1, 2, 3}) {
        kernels::renew_basis(gpu(), basis, v, to_gpu(few), to_gpu(step(update)), {1, 0, update});
        EXPECT_LT(from_orthonormal(values(to_host(basis)), static_cast<size_t>(n)), wide == DType::f64 ? 1e-12 : 1e-4)
            << update;
      }
    }
}

TEST_F(SoapOnGpu, BasesStayInSkippedStepsAndWhereFactorsAreNotFinite) {
  const int64_t n = 40;
  const Tensor basis = host.normal({n, n}, DType::f32, "q"), v = host.normal({n, 5}, DType::f32, "v");
  const Tensor on_gpu = to_gpu(basis), its_v = to_gpu(v), some = to_gpu(factor(n, DType::f32, "a"));
  for (const int64_t update : {1, 4}) {
    kernels::renew_basis(gpu(), on_gpu, its_v, some, to_gpu(step(update, 1)), {3, 0, update});
    kernels::renew_basis(gpu(), on_gpu, its_v, poisoned({n, n}, DType::f32), to_gpu(step(update)), {3, 0, update});
  }
  EXPECT_TRUE(agree(on_gpu, basis, 0, 0));
  EXPECT_TRUE(agree(its_v, v, 0, 0));
}

}  // namespace
}  // namespace witan
