// Newton-Schulz iterations (optim/newton_schulz.h) on Gram matrices. All that a step does to X is to multiply it with a
// polynomial of R = X X^T, and such polynomials commute: so a run of steps needs products of the small matrices alone,
// and two with X,
//   R = X X^T,   P = a I + b R + c R R,   Q <- P Q,   R <- P R P  for each step,   X <- Q X
// (X^T X and X Q on the other side, where X has more rows than columns). All products of small matrices are symmetric.
//
// R is formed anew before it lost what is small in it: rounding leaves eigenvalues below 0 where they should be just
// above, which the next steps multiply by a^2 each, and polynomials are large where R is negative. Runs of three steps
// in 16 bits and five in 32 keep singular values as near to those of exact sums as iterations on X do
// (github.com/Dao-AILab/gram-newton-schulz also restarts after two of five).
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "witan/kernels/common/launch.h"

namespace witan {

// A step makes of every singular value s the value a s + b s^3 + c s^5.
struct NewtonSchulzStep {
  double a, b, c;
};

namespace kernels {

// Sizes of matrices, m the smaller one, and what part of a symmetric product of size m is computed.
struct GramSizes {
  int64_t small, large;
  double share;
};
// Steps of a run at most, by the bytes of an element: 3, 5 and 5 for 2, 4 and 8.
int64_t steps_of_gram_run(int64_t element_bytes);
// FLOPs of a matrix for all steps on its Gram matrices, in runs of at most so many.
double gram_flops(const GramSizes& sizes, std::span<const NewtonSchulzStep> steps, int64_t longest_run);

inline constexpr int64_t kGramMatrices = 4;  // that the iteration needs room for

// The steps on matrices x [n, rows, columns] in runs; `other` has x's shape, grams [4, n, m, m]. The result is in x or
// in other, and returned. Products:
//   gram(r, x)   polynomial(p, r, step)   product(d, a, b) of commuting symmetric matrices   apply(y, q, x, last)
template <class Products>
Tensor iterate_on_grams(const Products& products, std::span<const NewtonSchulzStep> steps, int64_t longest_run,
                        Tensor x, Tensor other, const Tensor& grams) {
  const auto count = static_cast<int64_t>(steps.size()), runs = (count + longest_run - 1) / longest_run;
  const auto square = [&](int64_t i) {
    return grams.narrow(0, i, 1).reshape({grams.size(1), grams.size(2), grams.size(3)});
  };
  for (int64_t run = 0; run < runs; ++run) {
    const int64_t begin = count * run / runs, end = count * (run + 1) / runs;
    const Tensor r = square(0);
    std::vector<Tensor> unused = {square(1), square(2), square(3)};
    const auto take = [&] {
      const Tensor taken = unused.back();
      unused.pop_back();
      return taken;
    };
    Tensor q;
    products.gram(r, x);
    for (int64_t i = begin; i < end; ++i) {
      const Tensor p = take();
      products.polynomial(p, r, steps[static_cast<size_t>(i)]);
      if (i + 1 < end) {
        const Tensor half = take();
        products.product(half, p, r);
        products.product(r, half, p);
        unused.push_back(half);
      }
      if (!q.defined()) {
        q = p;
        continue;
      }
      const Tensor next = take();
      products.product(next, p, q);
      unused.push_back(p);
      unused.push_back(q);
      q = next;
    }
    products.apply(other, q, x, run + 1 == runs);
    std::swap(x, other);
  }
  return x;
}

// The whole iteration on a Hopper GPU, of bfloat16 matrices: float16 inside (values are scaled to its range), products
// with sums in float32, and only the tiles of a symmetric one that are not above its diagonal.
struct GramTensors {
  Tensor x, other;  // bfloat16 [n, rows, columns]; written
  Tensor grams;     // 16 bits [4, n, m, m]; written
  Tensor sums;      // square_sums(x)
};
struct GramArgs {
  std::span<const NewtonSchulzStep> steps;
  double margin, eps;  // x begins as x / (margin ||x||_F + eps)
};
// The share of a symmetric product that it computes, and whether it is possible and pays for matrices of these shapes.
double hopper_gram_share(int64_t m);
bool suits_hopper_gram(DType dtype, int64_t rows, int64_t columns, std::span<const NewtonSchulzStep> steps);
// How many of `matrices` to give it in a call, `most` at most: the number with which all are done soonest, as the tiles
// of their symmetric products fill the GPU's multiprocessors time and again.
int64_t hopper_gram_batch(int64_t m, int64_t matrices, int64_t most);
// Whether the stream's device does it; a meta device that stands for a GPU does.
bool has_hopper_gram(Stream& stream);
// x after all steps, in x or in other.
Tensor hopper_gram_newton_schulz(Stream& stream, const GramTensors& tensors, const GramArgs& args);

#if WITAN_CUDA
namespace cuda {
bool has_hopper_gram(Stream& stream);
Tensor hopper_gram_newton_schulz(Stream& stream, const GramTensors& tensors, const GramArgs& args);
}  // namespace cuda
#endif

}  // namespace kernels
}  // namespace witan
