#include "witan/optim/newton_schulz.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "witan/base/error.h"
#include "witan/kernels/batched_gemm.h"
#include "witan/kernels/muon.h"
#include "witan/kernels/optimizer.h"

namespace witan {
namespace {

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

Tensor orthogonalize(Stream& stream, Tensor x, const NewtonSchulz& iteration) {
  using kernels::Transpose;
  const int64_t n = x.size(0), rows = x.size(1), columns = x.size(2);
  const bool tall = rows > columns;
  const Shape gram{n, std::min(rows, columns), std::min(rows, columns)};
  kernels::normalize_matrices(stream, x, squares_of(stream, x), {iteration.margin, iteration.eps});
  const auto empty = [&](const Shape& shape) { return stream.empty(shape, x.dtype(), MemoryTag::workspace); };
  Tensor next = empty(x.shape());
  const Tensor a = empty(gram), b = empty(gram);
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

}  // namespace witan
