#include "witan/kernels/pointwise/activation_moments.h"

#include <cmath>
#include <limits>

#include "support/cuda_rank.h"

namespace witan {
namespace {

class ActivationMomentsOnGpu : public testing::CudaTest {};

// Sizes less than a pack, around a chunk, and views that are not aligned to packs.
TEST_F(ActivationMomentsOnGpu, AgreesWithTheCpu) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64})
    for (const int64_t n :
         {int64_t{0}, int64_t{1}, int64_t{37}, int64_t{16'383}, int64_t{16'384}, int64_t{16'385}, int64_t{1'000'003}}) {
      const Tensor x = host.normal({n}, dtype, "x"), added = host.normal({n}, dtype, "added");
      dispatch_floating(dtype, [&]<class T>() {
        for (int64_t i = 0; i < n; i += 5) x.data<T>()[i] = added.data<T>()[i] = T(0.0f);
      });
      const Tensor x_gpu = to_gpu(x), added_gpu = to_gpu(added);
      for (const bool both : {false, true})
        for (const int64_t first : {int64_t{0}, int64_t{1}}) {
          if (first > n) continue;
          SCOPED_TRACE(cat(dtype, " [", n, "] from ", first, both ? ", a sum" : ""));
          const auto part = [&](const Tensor& of) { return of.narrow(0, first, n - first); };
          const Tensor out = host.poisoned({kernels::kActivationMoments}, DType::f64);
          const Tensor out_gpu = poisoned({kernels::kActivationMoments}, DType::f64),
                       again = poisoned(out.shape(), DType::f64);
          kernels::activation_moments(host.stream, out, part(x), both ? part(added) : Tensor());
          kernels::activation_moments(gpu(), out_gpu, part(x_gpu), both ? part(added_gpu) : Tensor());
          kernels::activation_moments(gpu(), again, part(x_gpu), both ? part(added_gpu) : Tensor());
          EXPECT_TRUE(agree(out_gpu, out, 0, 1e-12));
          EXPECT_EQ(testing::values(to_host(out_gpu)), testing::values(to_host(again))) << "the same bits";
        }
    }
}

// Rows of whole packs and others.
TEST_F(ActivationMomentsOnGpu, LeavesPaddingOut) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64})
    for (const int64_t D : {1, 6, 64, 331}) {
      const int64_t rows = 700;
      const Tensor x = host.normal({rows, D}, dtype, "x");
      std::vector<int32_t> ids;
      for (int64_t row = 0; row < rows; ++row) ids.push_back(row % 100 < 30 ? 1 : -1);
      dispatch_floating(dtype, [&]<class T>() {
        for (int64_t i = 0; i < rows * D; ++i)
          if (ids[static_cast<size_t>(i / D)] < 0) x.data<T>()[i] = T(std::nanf(""));
      });
      const Tensor all = host.tensor<int32_t>({rows}, ids);
      const Tensor out = host.poisoned({kernels::kActivationMoments}, DType::f64),
                   out_gpu = poisoned({kernels::kActivationMoments}, DType::f64);
      kernels::activation_moments(host.stream, out, x, {}, all);
      kernels::activation_moments(gpu(), out_gpu, to_gpu(x), {}, to_gpu(all));
      EXPECT_TRUE(agree(out_gpu, out, 0, 1e-12)) << dtype << " [" << rows << ", " << D << "]";
    }
}

TEST_F(ActivationMomentsOnGpu, ShowsNonFiniteValues) {
  const Tensor x = host.normal({40'000}, DType::bf16, "x"), out = poisoned({kernels::kActivationMoments}, DType::f64);
  x.data<bf16>()[20'000] = bf16(-std::numeric_limits<float>::infinity());
  kernels::activation_moments(gpu(), out, to_gpu(x), {});
  EXPECT_TRUE(std::isinf(to_host(out).data<double>()[kernels::activation_moment::largest]));
  x.data<bf16>()[7] = bf16(std::nanf(""));
  kernels::activation_moments(gpu(), out, to_gpu(x), {});
  EXPECT_TRUE(std::isnan(to_host(out).data<double>()[kernels::activation_moment::largest]));
}

}  // namespace
}  // namespace witan
