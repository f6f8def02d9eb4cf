#include "witan/kernels/optimizer/inverse_root.h"

#include <algorithm>
#include <cmath>

#include "witan/kernels/common/cpu/weights.h"
#include "witan/kernels/gemm/cpu/gemm_blocks.h"
#include "witan/kernels/optimizer/cpu/lapack.h"

namespace witan::kernels::cpu {
namespace {

struct Products {
  Stream& stream;
  const Tensor& packed;
  void operator()(const Tensor& c, const Tensor& a, const Tensor& b, Transpose transpose_b = Transpose::no) const {
    cpu::gemm(stream, c, Write::overwrite, a, Transpose::no, b, transpose_b, packed);
  }
};

// Writes the root to `result`; returns false if there is none.
template <class A>
bool eigen_root(const Products& product, const Tensor& result, const Tensor& factor, WorkspaceParts parts,
                double correction, const RootArgs& args) {
  const int64_t m = factor.size(0);
  const Tensor vectors = parts.matrix(m), values = parts.take(m);
  A *q = vectors.data<A>(), *l = values.data<A>();
  for (int64_t i = 0; i < m * m; ++i) q[i] = factor.data<A>()[i] / A(correction);
  for (int64_t i = 0; i < m; ++i) q[i * m + i] += A(args.eps);
  const Tensor work = parts.take(eigen_work(m));
  if (!eigen_decompose(m, q, l, work.data<A>(), parts.integers(eigen_integers(m)))) return false;
  const A raised = l[0] < A(args.eps) ? A(args.eps) - l[0] : A(0);
  const Tensor scaled = work.narrow(0, 0, m * m).reshape({m, m});
  for (int64_t i = 0; i < m; ++i) {
    const A root = std::pow(l[i] + raised, A(-args.exponent));
    for (int64_t j = 0; j < m; ++j) scaled.data<A>()[i * m + j] = root * q[i * m + j];
  }
  cpu::gemm(product.stream, result, Write::overwrite, vectors, Transpose::yes, scaled, Transpose::no, product.packed);
  return true;
}

template <class A>
bool newton_root(const Products& product, Tensor& result, const Tensor& factor, WorkspaceParts parts, double correction,
                 const RootArgs& args) {
  const int64_t m = factor.size(0);
  const auto p = std::llround(1 / args.exponent);
  Tensor x = parts.matrix(m), power = parts.matrix(m), next = parts.matrix(m), other = parts.matrix(m);
  double squares = 0;
  for (const A f : factor.span<A>()) squares += static_cast<double>(f) * static_cast<double>(f);
  const double norm = std::sqrt(squares) / correction;
  const double ridge = std::max(args.eps, newton_ridge(factor.dtype()) * norm);
  const double z = static_cast<double>(p + 1) / (2 * (norm + ridge * std::sqrt(static_cast<double>(m))));
  for (int64_t i = 0; i < m * m; ++i) {
    const bool diagonal = i % (m + 1) == 0;
    power.data<A>()[i] = A(z * (static_cast<double>(factor.data<A>()[i]) / correction + (diagonal ? ridge : 0)));
    x.data<A>()[i] = diagonal ? A(std::pow(z, args.exponent)) : A(0);
  }
  for (int64_t i = newton_iterations(factor.dtype(), p); i > 0; --i) {
    A* step = next.data<A>();
    for (int64_t j = 0; j < m * m; ++j)
      step[j] = (j % (m + 1) == 0 ? A(1 + args.exponent) : A(0)) - A(args.exponent) * power.data<A>()[j];
    product(other, x, next);
    std::swap(x, other);
    const PowerProducts products(p);
    for (int64_t k = 0; k < products.squares; ++k) {
      product(other, next, next);
      std::swap(next, other);
    }
    for (int64_t k = 0; k < products.factors; ++k) {
      product(other, next, power);
      std::swap(power, other);
    }
  }
  result = x;
  return true;
}

}  // namespace

void inverse_root(Stream& stream, const Tensor& root, const Tensor& factor, const Tensor& work, const Tensor& packed,
                  const Tensor& step, const RootArgs& args) {
  const double* now = step.data<double>();
  const double update = now[step_value::update];
  if (now[step_value::skip] != 0 || !args.schedule.due(static_cast<int64_t>(update))) return;
  const double correction = args.beta < 1 ? 1 - std::pow(args.beta, update) : 1;
  const int64_t m = factor.size(0);
  dispatch_accumulator(factor.dtype(), [&]<class A>() {
    WorkspaceParts parts(work);
    Tensor found = args.method == RootMethod::eigen ? parts.matrix(m) : Tensor();
    const Products product{stream, packed};
    const bool done = args.method == RootMethod::eigen
                          ? eigen_root<A>(product, found, factor, parts, correction, args)
                          : newton_root<A>(product, found, factor, parts, correction, args);
    if (!done || !std::ranges::all_of(found.span<A>(), [](A x) { return std::isfinite(x); })) return;
    std::ranges::copy(found.span<A>(), root.data<A>());
  });
}

}  // namespace witan::kernels::cpu
