#include "witan/kernels/optimizer/shampoo.h"

#include "support/cuda_rank.h"
#include "support/optimizer.h"
#include "witan/kernels/gemm/gemm.h"
#include "witan/kernels/optimizer/inverse_root.h"

namespace witan {
namespace {

class ShampooOnGpu : public testing::CudaTest {
 protected:
  Tensor step(double update, double skip = 0) {
    return host.tensor<double>({kernels::kStepValues}, {0.02, 0.5, update, skip, update + 2, 0.5});
  }
  Tensor squares(int64_t n, DType dtype, const std::string& name) {
    const Tensor v = host.normal({n}, dtype, name);
    dispatch_floating(dtype, [&]<class A>() {
      for (A& x : v.span<A>()) x = A(x * x);
    });
    return v;
  }
};

constexpr DType kWide[] = {DType::f32, DType::f64};

TEST_F(ShampooOnGpu, MomentsAgreeWithTheCpu) {
  for (const DType wide : kWide)
    for (const DType gradient : {DType::bf16, DType::f32, DType::f64})
      for (const int64_t n : {1, 33, 100003})
        for (const double skip : {0.0, 1.0}) {
          SCOPED_TRACE(cat(wide, " ", gradient, " ", n, " ", skip));
          const auto out = [&] { return host.poisoned({n}, wide); };
          const kernels::ShampooMoments cpu{
              host.normal({n}, wide, "m"), squares(n, wide, "v"), host.normal({n}, gradient, "g"), out(), out(), out()};
          const kernels::ShampooMoments on_gpu{to_gpu(cpu.m),     to_gpu(cpu.v),        to_gpu(cpu.gradient),
                                               to_gpu(cpu.outer), to_gpu(cpu.filtered), to_gpu(cpu.grafted)};
          const kernels::ShampooMomentArgs args{0.9, 0.95, 1e-8, 0.01};
          kernels::shampoo_moments(host.stream, cpu, step(3, skip), args);
          kernels::shampoo_moments(gpu(), on_gpu, to_gpu(step(3, skip)), args);
          const double most = tolerance(wide);
          EXPECT_TRUE(agree(on_gpu.m, cpu.m, most, most));
          EXPECT_TRUE(agree(on_gpu.v, cpu.v, most, most));
          EXPECT_TRUE(agree(on_gpu.outer, cpu.outer, most, most));
          EXPECT_TRUE(agree(on_gpu.filtered, cpu.filtered, most, most));
          EXPECT_TRUE(agree(on_gpu.grafted, cpu.grafted, most, most));
        }
}

// Blocks inside matrices, before and after preconditioning starts.
TEST_F(ShampooOnGpu, GraftsAgreeWithTheCpu) {
  for (const DType wide : kWide)
    for (const double update : {3.0, 4.0})
      for (const bool scales : {true, false}) {
        SCOPED_TRACE(cat(wide, " ", update, " ", scales));
        const auto block = [](const Tensor& matrix) { return matrix.narrow(0, 5, 37).narrow(1, 3, 301); };
        const Tensor direction = host.normal({50, 320}, wide, "d"), grafted = host.normal({50, 320}, wide, "a");
        const Tensor on_gpu = to_gpu(direction), its = to_gpu(grafted);
        const Tensor sums = host.stream.empty({37, 2}, DType::f64), gpu_sums = gpu().empty({37, 2}, DType::f64);
        kernels::graft(host.stream, block(direction), block(grafted), sums, step(update), {4, scales});
        kernels::graft(gpu(), block(on_gpu), block(its), gpu_sums, to_gpu(step(update)), {4, scales});
        EXPECT_TRUE(agree(on_gpu, direction, tolerance(wide), tolerance(wide)));
      }
}

TEST_F(ShampooOnGpu, DirectionsAndDecayAgreeWithTheCpu) {
  for (const DType value : {DType::bf16, DType::f16, DType::f32, DType::f64})
    for (const double skip : {0.0, 1.0}) {
      SCOPED_TRACE(cat(value, " ", skip));
      const DType wide = accumulator(value);
      const int64_t n = 70001;
      const Tensor p = host.normal({n}, value, "p"), direction = host.normal({n}, wide, "d");
      const Tensor rest = is_split(value) ? testing::split_into(host.stream, p, host.normal({n}, wide, "p")) : Tensor();
      const Tensor gpu_p = to_gpu(p), gpu_rest = to_gpu(rest), gpu_direction = to_gpu(direction);
      kernels::decay_factor(host.stream, direction, step(2, skip), 0.9);
      kernels::decay_factor(gpu(), gpu_direction, to_gpu(step(2, skip)), 0.9);
      EXPECT_TRUE(agree(gpu_direction, direction, tolerance(wide), tolerance(wide)));
      kernels::apply_direction(host.stream, {p, rest, direction}, step(2, skip), {.weight_decay = 0.1});
      kernels::apply_direction(gpu(), {gpu_p, gpu_rest, gpu_direction}, to_gpu(step(2, skip)), {.weight_decay = 0.1});
      if (rest.defined())
        EXPECT_TRUE(
            testing::close(testing::joined(to_host(gpu_p), to_host(gpu_rest)), testing::joined(p, rest), 1e-6, 1e-6));
      else
        EXPECT_TRUE(agree(gpu_p, p, tolerance(wide), tolerance(wide)));
    }
}

TEST_F(ShampooOnGpu, NewtonRootsAgreeWithTheCpuAndStayUntilDue) {
  for (const DType wide : kWide)
    for (const int64_t m : {1, 7, 130, 512})
      for (const double exponent : {0.25, 0.5}) {
        SCOPED_TRACE(cat(wide, " ", m, " ", exponent));
        const Tensor g = host.normal({m, 2 * m}, wide, "g", 0.1), factor = host.stream.empty({m, m}, wide);
        kernels::gemm(host.stream, factor, Write::overwrite, g, kernels::Transpose::no, g, kernels::Transpose::yes);
        const Tensor root = host.normal({m, m}, wide, "root"), on_gpu = to_gpu(root), its_factor = to_gpu(factor);
        kernels::RootArgs args{kernels::RootMethod::newton, exponent, 1e-4, 0.9, {4, 4}, false};
        kernels::inverse_root(gpu(), on_gpu, its_factor, to_gpu(step(3)), args);
        args.due = true;
        kernels::inverse_root(gpu(), on_gpu, its_factor, to_gpu(step(4, 1)), args);
        EXPECT_TRUE(agree(on_gpu, root, 0, 0)) << "not due, and skipped";
        kernels::inverse_root(host.stream, root, factor, step(4), args);
        kernels::inverse_root(gpu(), on_gpu, its_factor, to_gpu(step(4)), args);
        const double most = wide == DType::f64 ? 1e-8 : 2e-3;
        EXPECT_TRUE(agree(on_gpu, root, most, most));
      }
}

}  // namespace
}  // namespace witan
