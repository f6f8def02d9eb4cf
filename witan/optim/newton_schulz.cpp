#include "witan/optim/newton_schulz.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "witan/base/error.h"
#include "witan/kernels/gemm/gemm.h"
#include "witan/kernels/optimizer/muon.h"
#include "witan/kernels/optimizer/optimizer.h"

namespace witan {
namespace {

using kernels::Transpose;

constexpr NewtonSchulzStep kMuon = {3.4445, -4.7750, 2.0315}, kCubic = {1.5, -0.5, 0}, kToOne = {2, -1.5, 0.5};
// For singular values from 1e-3 on, with a safety factor of 1.02 in all but the last.
constexpr NewtonSchulzStep kPolarExpress[] = {
    {8.156554524902461, -22.48329292557795, 15.878769915207462},
    {4.042929935166739, -2.808917465908714, 0.5000178451051316},
    {3.8916678022926607, -2.772484153217685, 0.5060648178503393},
    {3.285753657755655, -2.3681294933425376, 0.46449024233003106},
    {2.3465413258596377, -1.7097828382687081, 0.42323551169305323},
};
constexpr NewtonSchulzStep kPolarEnd = {1.875, -1.25, 0.375};  // what its triples tend to
constexpr int64_t kDeepSeekSteps = 8;                          // with Muon's triple

// How a batch is iterated on; where hopper_gram is missing on the device, on X itself.
enum class IterationForm : uint8_t { plain, gram, hopper_gram };
constexpr double kWorthGram = 0.75;  // of the FLOPs of the plain form

double gram_flops(Stream& stream, DType dtype, int64_t rows, int64_t columns, const NewtonSchulz& iteration) {
  const int64_t m = std::min(rows, columns);
  const double share = stream.plans_for_cuda() ? 1 : kernels::symmetric_share(m);
  return kernels::gram_flops({m, std::max(rows, columns), share}, iteration.steps,
                             kernels::steps_of_gram_run(size_of(dtype)));
}

IterationForm iteration_form(Stream& stream, DType dtype, int64_t rows, int64_t columns,
                             const NewtonSchulz& iteration) {
  if (iteration.steps.empty()) return IterationForm::plain;
  if (dtype == DType::bf16)
    return stream.plans_for_cuda() && kernels::suits_hopper_gram(dtype, rows, columns, iteration.steps)
               ? IterationForm::hopper_gram
               : IterationForm::plain;
  return gram_flops(stream, dtype, rows, columns, iteration) < kWorthGram * iteration.flops(rows, columns)
             ? IterationForm::gram
             : IterationForm::plain;
}

// The products of iterate_on_grams() in the dtype of the matrices.
struct GramProducts {
  Stream& stream;

  void gram(const Tensor& r, const Tensor& x) const {
    const bool tall = x.size(1) > x.size(2);
    kernels::batched_gemm(stream, r,
                          {.a = x,
                           .transpose_a = tall ? Transpose::yes : Transpose::no,
                           .b = x,
                           .transpose_b = tall ? Transpose::no : Transpose::yes,
                           .symmetric = true});
  }
  void polynomial(const Tensor& p, const Tensor& r, const NewtonSchulzStep& step) const {
    kernels::batched_gemm(stream, p,
                          {.a = r,
                           .transpose_a = Transpose::no,
                           .b = r,
                           .transpose_b = Transpose::no,
                           .alpha = step.c,
                           .c = r,
                           .beta = step.b,
                           .identity = step.a,
                           .symmetric = true});
  }
  void product(const Tensor& d, const Tensor& a, const Tensor& b) const {
    kernels::batched_gemm(
        stream, d, {.a = a, .transpose_a = Transpose::no, .b = b, .transpose_b = Transpose::no, .symmetric = true});
  }
  void apply(const Tensor& y, const Tensor& q, const Tensor& x, bool) const {
    const bool tall = x.size(1) > x.size(2);
    kernels::batched_gemm(
        stream, y, {.a = tall ? x : q, .transpose_a = Transpose::no, .b = tall ? q : x, .transpose_b = Transpose::no});
  }
};

// Steps on X itself: A = X X^T, B = b A + c A A, X = a X + B X. `grams` has room for A and B.
Tensor iterate_on_x(Stream& stream, Tensor x, Tensor next, const Tensor& grams, const NewtonSchulz& iteration) {
  const bool tall = x.size(1) > x.size(2);
  const auto square = [&](int64_t i) {
    return grams.narrow(0, i, 1).reshape({grams.size(1), grams.size(2), grams.size(3)});
  };
  const Tensor a = square(0), b = square(1);
  for (const NewtonSchulzStep& step : iteration.steps) {
    kernels::batched_gemm(stream, a,
                          {.a = x,
                           .transpose_a = tall ? Transpose::yes : Transpose::no,
                           .b = x,
                           .transpose_b = tall ? Transpose::no : Transpose::yes});
    const bool squared = step.c != 0;
    if (squared)  // b A + c A A
      kernels::batched_gemm(stream, b,
                            {.a = a,
                             .transpose_a = Transpose::no,
                             .b = a,
                             .transpose_b = Transpose::no,
                             .alpha = step.c,
                             .c = a,
                             .beta = step.b});
    const Tensor& polynomial = squared ? b : a;
    kernels::batched_gemm(stream, next,
                          {.a = tall ? x : polynomial,
                           .transpose_a = Transpose::no,
                           .b = tall ? polynomial : x,
                           .transpose_b = Transpose::no,
                           .alpha = squared ? 1 : step.b,
                           .c = x,
                           .beta = step.a});
    std::swap(x, next);
  }
  return x;
}

Tensor squares_of(Stream& stream, const Tensor& x) {
  const int64_t elements = x.elements() / x.size(0);
  const Tensor sums = stream.empty({x.size(0) * kernels::chunks_of(elements), 2}, DType::f64, MemoryTag::workspace);
  kernels::square_sums(stream, sums, x.reshape({x.size(0), elements}));
  return sums;
}

}  // namespace

NewtonSchulz NewtonSchulz::of(const std::string& coefficient_type, int64_t steps) {
  NewtonSchulz iteration;
  for (int64_t i = 0; i < steps; ++i) {
    const auto at = static_cast<size_t>(i);
    if (coefficient_type == "quintic")
      iteration.steps.push_back(kMuon);
    else if (coefficient_type == "polar_express")
      iteration.steps.push_back(at < std::size(kPolarExpress) ? kPolarExpress[at] : kPolarEnd);
    else if (coefficient_type == "cubic")
      iteration.steps.push_back(kCubic);
    else if (coefficient_type == "deepseek")
      iteration.steps.push_back(i < kDeepSeekSteps ? kMuon : kToOne);
    else
      throw ConfigError(
          cat("muon_coefficient_type = ", coefficient_type, ": must be quintic, polar_express, cubic or deepseek"));
  }
  if (coefficient_type == "polar_express") {
    iteration.margin = 1.02;
    iteration.eps = 1e-6;
  }
  return iteration;
}

double NewtonSchulz::flops(int64_t rows, int64_t columns) const {
  const auto small = static_cast<double>(std::min(rows, columns)), large = static_cast<double>(std::max(rows, columns));
  double sum = 0;
  for (const NewtonSchulzStep& step : steps)
    sum += 4 * small * small * large + (step.c == 0 ? 0 : 2 * small * small * small);
  return sum;
}

double NewtonSchulz::least_flops(int64_t rows, int64_t columns) const {
  const int64_t m = std::min(rows, columns);
  if (!kernels::suits_hopper_gram(DType::bf16, rows, columns, steps)) return flops(rows, columns);
  return kernels::gram_flops({m, std::max(rows, columns), kernels::hopper_gram_share(m)}, steps,
                             kernels::steps_of_gram_run(size_of(DType::bf16)));
}

Tensor orthogonalize(Stream& stream, Tensor x, const NewtonSchulz& iteration) {
  const int64_t n = x.size(0), m = std::min(x.size(1), x.size(2));
  const IterationForm form = iteration_form(stream, x.dtype(), x.size(1), x.size(2), iteration);
  const Tensor sums = squares_of(stream, x);
  const Tensor other = stream.empty(x.shape(), x.dtype(), MemoryTag::workspace);
  const Tensor grams = stream.empty({form == IterationForm::plain ? 2 : kernels::kGramMatrices, n, m, m}, x.dtype(),
                                    MemoryTag::workspace);
  if (form == IterationForm::hopper_gram && kernels::has_hopper_gram(stream))
    return kernels::hopper_gram_newton_schulz(stream, {x, other, grams, sums},
                                              {iteration.steps, iteration.margin, iteration.eps});
  kernels::normalize_matrices(stream, x, sums, {iteration.margin, iteration.eps});
  if (form != IterationForm::gram) return iterate_on_x(stream, x, other, grams, iteration);
  return kernels::iterate_on_grams(GramProducts{stream}, iteration.steps,
                                   kernels::steps_of_gram_run(size_of(x.dtype())), x, other, grams);
}

}  // namespace witan
