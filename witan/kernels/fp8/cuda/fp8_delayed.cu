#include "witan/kernels/common/cuda/common.cuh"
#include "witan/kernels/common/step_report.h"
#include "witan/kernels/fp8/fp8.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 256;

int blocks_for(int64_t numbers) {
  return static_cast<int>((numbers + kThreads - 1) / kThreads);
}
__device__ __forceinline__ int thread() {
  return static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
}

// One thread per expert. Parts of a pass that run concurrently may raise the same number, since a maximum does not
// depend on their order.
__global__ void delay_kernel(float* amax, float* seen, const float* reference, int experts, int sources) {
  const int e = thread();
  if (e >= experts) return;
  const float given = reference[e];
  unsigned most = 0;
  for (int r = 0; r < sources; ++r) {
    float& own = amax[e * sources + r];
    most = max(most, __float_as_uint(own));
    if (given > 0) own = given;
  }
  if (seen != nullptr && most > 0) atomicMax(reinterpret_cast<unsigned*>(seen) + e, most);
}

// One thread per tensor.
__global__ void next_references_kernel(float* reference, float* history, const float* amax, const double* step,
                                       double factor, int numbers, int steps) {
  const int i = thread();
  if (i >= numbers || step[step_value::skip] != 0) return;
  float most = amax[i];
  if (steps > 0) history[(static_cast<int64_t>(step[step_value::update]) - 1) % steps * numbers + i] = most;
  for (int64_t row = 0; row < steps; ++row) most = fmaxf(most, history[row * numbers + i]);
  const float next = static_cast<float>(factor) * most;
  if (next > 0 && isfinite(next)) reference[i] = next;
}

}  // namespace

void fp8_delay(Stream& stream, const Tensor& amax, const Tensor& seen, const Tensor& reference) {
  const int64_t E = reference.elements();
  delay_kernel<<<blocks_for(E), kThreads, 0, native(stream)>>>(ptr<float>(amax), ptr<float>(seen),
                                                               ptr<float>(reference), static_cast<int>(E),
                                                               static_cast<int>(amax.elements() / E));
}

void fp8_next_references(Stream& stream, const Fp8History& of, const Tensor& step, double factor) {
  const int64_t n = of.amax.elements();
  next_references_kernel<<<blocks_for(n), kThreads, 0, native(stream)>>>(
      ptr<float>(of.reference), ptr<float>(of.history), ptr<float>(of.amax), ptr<double>(step), factor,
      static_cast<int>(n), of.history.defined() ? static_cast<int>(of.history.size(0)) : 0);
}

}  // namespace witan::kernels::cuda
