// Newton's iteration for inverse roots: products by cuBLASLt, and one elementwise pass between them. The number of
// iterations is fixed in advance, so that nothing waits for a residual.
#include <cmath>
#include <utility>

#include "witan/kernels/common/cuda/common.cuh"
#include "witan/kernels/gemm/gemm.h"
#include "witan/kernels/optimizer/inverse_root.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 256, kPartials = 256;

__device__ __forceinline__ double total(const double* partials) {
  __shared__ double of_warps[kThreads / 32];
  static_assert(kPartials == kThreads);
  return block_sum(partials[threadIdx.x], of_warps);
}

// partials[b] = the sum of squares, or the number of non-finite elements, of block b's part of x.
template <bool kSquares, class A>
__global__ void __launch_bounds__(kThreads) partials_kernel(double* partials, const A* x, int64_t elements) {
  __shared__ double of_warps[kThreads / 32];
  double sum = 0;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < elements; i += kPartials * kThreads) {
    const auto value = static_cast<double>(x[i]);
    sum += kSquares ? value * value : !isfinite(value);
  }
  sum = block_sum(sum, of_warps);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

struct Begin {
  int64_t m;
  double eps, relative_ridge, beta, exponent;
};

template <class A>
__global__ void __launch_bounds__(kThreads)
    begin_kernel(A* power, A* x, const A* factor, const double* partials, const double* step, Begin args) {
  const double correction = args.beta < 1 ? 1 - pow(args.beta, step[step_value::update]) : 1;
  const double norm = sqrt(total(partials)) / correction, m = static_cast<double>(args.m);
  const double ridge = fmax(args.eps, args.relative_ridge * norm);
  const double z = (1 / args.exponent + 1) / (2 * (norm + ridge * sqrt(m))), root_of_z = pow(z, args.exponent);
  const int64_t elements = args.m * args.m, stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < elements; i += stride) {
    const bool diagonal = i % (args.m + 1) == 0;
    power[i] = A(z * (static_cast<double>(factor[i]) / correction + (diagonal ? ridge : 0)));
    x[i] = diagonal ? A(root_of_z) : A(0);
  }
}

// next = (1 + exponent) I - exponent power
template <class A>
__global__ void __launch_bounds__(kThreads) next_kernel(A* next, const A* power, int64_t m, double exponent) {
  const int64_t elements = m * m, stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < elements; i += stride)
    next[i] = (i % (m + 1) == 0 ? A(1 + exponent) : A(0)) - A(exponent) * power[i];
}

template <class A>
__global__ void __launch_bounds__(kThreads)
    keep_kernel(A* root, const A* x, int64_t elements, const double* partials, const double* step) {
  if (step[step_value::skip] != 0 || total(partials) != 0) return;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < elements; i += stride) root[i] = x[i];
}

template <class A>
void newton_root(Stream& stream, const Tensor& root, const Tensor& factor, const Tensor& work, const Tensor& step,
                 const RootArgs& args) {
  const int64_t m = factor.size(0), elements = m * m;
  const auto p = std::llround(1 / args.exponent);
  const auto matrix = [&](int64_t index) { return work.narrow(0, index * elements, elements).reshape({m, m}); };
  Tensor x = matrix(0), power = matrix(1), next = matrix(2), other = matrix(3);
  auto* partials = reinterpret_cast<double*>(ptr<A>(work) + 4 * elements);
  const unsigned blocks = blocks_for(stream, (elements + kThreads - 1) / kThreads);
  const auto queue = native(stream);
  partials_kernel<true><<<kPartials, kThreads, 0, queue>>>(partials, ptr<A>(factor), elements);
  begin_kernel<<<blocks, kThreads, 0, queue>>>(ptr<A>(power), ptr<A>(x), ptr<A>(factor), partials, ptr<double>(step),
                                               {m, args.eps, newton_ridge(factor.dtype()), args.beta, args.exponent});
  const auto product = [&](const Tensor& a, const Tensor& b) {
    cuda::gemm(stream, other, Write::overwrite, a, Transpose::no, b, Transpose::no);
  };
  for (int64_t i = newton_iterations(factor.dtype(), p); i > 0; --i) {
    next_kernel<<<blocks, kThreads, 0, queue>>>(ptr<A>(next), ptr<A>(power), m, args.exponent);
    product(x, next);
    std::swap(x, other);
    const PowerProducts products(p);
    for (int64_t k = 0; k < products.squares; ++k) {
      product(next, next);
      std::swap(next, other);
    }
    for (int64_t k = 0; k < products.factors; ++k) {
      product(next, power);
      std::swap(power, other);
    }
  }
  partials_kernel<false><<<kPartials, kThreads, 0, queue>>>(partials, ptr<A>(x), elements);
  keep_kernel<<<blocks, kThreads, 0, queue>>>(ptr<A>(root), ptr<A>(x), elements, partials, ptr<double>(step));
}

}  // namespace

void inverse_root(Stream& stream, const Tensor& root, const Tensor& factor, const Tensor& work, const Tensor& step,
                  const RootArgs& args) {
  assert(args.method == RootMethod::newton);
  if (!args.due) return;
  if (factor.dtype() == DType::f64)
    newton_root<double>(stream, root, factor, work, step, args);
  else
    newton_root<float>(stream, root, factor, work, step, args);
}

}  // namespace witan::kernels::cuda
