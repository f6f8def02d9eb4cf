// Newton-Schulz iterations approximate U V^T of a matrix X = U S V^T, the nearest matrix with orthonormal rows or
// columns, by products alone. Each step maps every singular value s to a s + b s^3 + c s^5:
//   A = X X^T,  X <- a X + (b A + c A A) X        with X^T X, on the other side, where X has more rows than columns
// (Jordan et al., Muon, 2024; Amsel et al., The Polar Express, arXiv 2505.16932).
#pragma once

#include <string>
#include <vector>

#include "witan/kernels/optimizer/gram_newton_schulz.h"
#include "witan/tensor/tensor.h"

namespace witan {

struct NewtonSchulz {
  std::vector<NewtonSchulzStep> steps;
  // X begins as X / (margin ||X||_F + eps): no singular value above 1 / margin.
  double margin = 1, eps = 1e-7;

  // quintic: Muon's triple (3.4445, -4.7750, 2.0315), which maps singular values into [0.7, 1.2]
  // polar_express: five triples, each optimal for the result of the previous one, then (1.875, -1.25, 0.375)
  // cubic: (1.5, -0.5, 0), the classical iteration, which converges to 1 but slowly
  // deepseek: eight times Muon's triple, then (2, -1.5, 0.5), which ends at 1
  // Throws ConfigError for another name.
  static NewtonSchulz of(const std::string& coefficient_type, int64_t steps);

  // FLOPs for a matrix if every step multiplies X; iterations on Gram matrices take fewer.
  double flops(int64_t rows, int64_t columns) const;
  // FLOPs of the form with the fewest on a GPU, by which owners of matrices are balanced.
  double least_flops(int64_t rows, int64_t columns) const;
};

// X after all steps, for each matrix of x [n, rows, columns], contiguous. x is overwritten, and may be the result.
// Takes as much memory again, and two or four times that of the smaller Gram matrices. On a GPU matrices of bfloat16
// are rounded to float16 on the way where Hopper's kernels work on Gram matrices
// (kernels/optimizer/gram_newton_schulz.h), elsewhere to bfloat16, as in the original. Float32 and float64 iterate on
// Gram matrices where that saves a quarter.
Tensor orthogonalize(Stream& stream, Tensor x, const NewtonSchulz& iteration);

}  // namespace witan
