#include "witan/kernels/common/cuda/common.cuh"
#include "witan/kernels/common/step_report.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMostSources = 128;  // per launch: they are passed as its parameter

template <class A>
__global__ void __launch_bounds__(kThreads)
    loss_weights_kernel(A* weights, const float* mask, const double* targets, int64_t tokens) {
  const double denominator = fmax(*targets, 1.0);
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (t < tokens) weights[t] = static_cast<A>(static_cast<double>(mask[t]) / denominator);
}

struct Sources {
  const void* data[kMostSources];
  int elements[kMostSources];
  int begin[kMostSources];  // offsets in out
  DType dtype[kMostSources];
};

__device__ double element(const void* data, DType dtype, int i) {
  switch (dtype) {
    case DType::f32:
      return static_cast<const float*>(data)[i];
    case DType::bf16:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]);
    case DType::f16:
      return __half2float(static_cast<const __half*>(data)[i]);
    case DType::f64:
      return static_cast<const double*>(data)[i];
    case DType::i32:
      return static_cast<const int32_t*>(data)[i];
    default:
      return static_cast<double>(static_cast<const int64_t*>(data)[i]);
  }
}

// One block per source.
__global__ void __launch_bounds__(kThreads) collect_kernel(double* out, const __grid_constant__ Sources sources) {
  const int s = blockIdx.x;
  for (int i = threadIdx.x; i < sources.elements[s]; i += kThreads)
    out[sources.begin[s] + i] = element(sources.data[s], sources.dtype[s], i);
}

}  // namespace

void loss_weights(Stream& stream, const Tensor& weights, const Tensor& mask, const Tensor& targets) {
  const int64_t tokens = mask.elements();
  if (tokens == 0) return;
  dispatch_accumulator(weights.dtype(), [&]<class A>() {
    loss_weights_kernel<<<static_cast<unsigned>((tokens + kThreads - 1) / kThreads), kThreads, 0, native(stream)>>>(
        ptr<A>(weights), ptr<float>(mask), ptr<double>(targets), tokens);
  });
}

void collect(Stream& stream, const Tensor& out, const std::vector<Tensor>& sources) {
  int begin = 0;
  for (size_t first = 0; first < sources.size(); first += kMostSources) {
    const size_t count = std::min<size_t>(kMostSources, sources.size() - first);
    Sources batch{};
    for (size_t i = 0; i < count; ++i) {
      const Tensor& source = sources[first + i];
      batch.data[i] = source.raw();
      batch.elements[i] = static_cast<int>(source.elements());
      batch.begin[i] = begin;
      batch.dtype[i] = source.dtype();
      begin += batch.elements[i];
    }
    collect_kernel<<<static_cast<unsigned>(count), kThreads, 0, native(stream)>>>(ptr<double>(out), batch);
  }
}

}  // namespace witan::kernels::cuda
