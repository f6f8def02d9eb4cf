#include "witan/kernels/gemm/ceiling.h"

#include <algorithm>
#include <cmath>

#include "witan/kernels/gemm/gemm.h"
#include "witan/tensor/timing.h"

namespace witan::kernels {
namespace {

constexpr double kBudget = 0.1;  // seconds per figure

double copy_rate(Stream& stream) {
  constexpr int64_t kElements = int64_t{1} << 29;  // 1 GiB, beyond any cache
  const Tensor from = stream.empty({kElements}, DType::bf16), to = stream.empty({kElements}, DType::bf16);
  fill_normal(stream, from, 1);
  return 2.0 * static_cast<double>(from.bytes()) / median_seconds(stream, kBudget, [&] { stream.copy(to, from); });
}

double product_rate(Stream& stream, DType dtype) {
  const int64_t side = dtype == DType::f64 ? 2048 : 8192;
  const auto matrix = [&] { return stream.empty({side, side}, dtype); };
  const Tensor a = matrix(), b = matrix(), c = matrix();
  fill_normal(stream, a, 2);
  fill_normal(stream, b, 3);
  const double seconds =
      median_seconds(stream, kBudget, [&] { gemm(stream, c, Write::overwrite, a, Transpose::no, b, Transpose::yes); });
  return 2.0 * std::pow(static_cast<double>(side), 3) / seconds;
}

// Other work of the machine may disturb a measurement on the CPU, so the ceiling is the highest rate seen.
template <class Measure>
double most_of(const Measure& measure) {
  constexpr int kAttempts = 3;
  double most = 0;
  for (int attempt = 0; attempt < kAttempts; ++attempt) most = std::max(most, measure());
  return most;
}

}  // namespace

DeviceCeilings measure_device(Stream& stream, DType dtype) {
  if (stream.is_cuda()) return {product_rate(stream, dtype), copy_rate(stream)};
  return {1e9 * most_of([&] { return measure_fma_gflops(stream.pool()); }),
          1e9 * most_of([&] { return measure_copy_gbytes(stream.pool()); })};
}

}  // namespace witan::kernels
