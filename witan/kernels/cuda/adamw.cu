#include <type_traits>

#include "witan/kernels/cuda/table.cuh"
#include "witan/kernels/cuda/update.cuh"
#include "witan/kernels/optimizer_table.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 256, kBlocksPerSm = 3;

struct Betas {
  double beta1, beta2, eps;
};

template <class A>
struct Scalars {
  A scale, beta1, beta2, to_m, to_v, unbias_m, unbias_v, eps, lr, decay;
};

template <class A>
__device__ Scalars<A> scalars_of(const double* step, const Betas& betas) {
  const double update = step[step_value::update];
  return {.scale = A(step[step_value::gradient_scale]),
          .beta1 = A(betas.beta1),
          .beta2 = A(betas.beta2),
          .to_m = A(1 - betas.beta1),
          .to_v = A(1 - betas.beta2),
          .unbias_m = A(1 / (1 - pow(betas.beta1, update))),
          .unbias_v = A(1 / (1 - pow(betas.beta2, update))),
          .eps = A(betas.eps),
          .lr = A(step[step_value::learning_rate]),
          .decay = 0};
}

template <class T, class G>
struct Operands {
  using A = Acc<T>;
  Weights<T> weights;
  A *m, *v;
  const G* gradient;

  __device__ Operands(const AdamWRow& row, int64_t first)
      : weights{reinterpret_cast<T*>(row.value) + first, reinterpret_cast<uint16_t*>(row.remainder) + first},
        m(reinterpret_cast<A*>(row.m) + first),
        v(reinterpret_cast<A*>(row.v) + first),
        gradient(reinterpret_cast<const G*>(row.gradient) + first) {}
  __device__ bool aligned() const {
    return weights.aligned() && unit_aligned<A>(m) && unit_aligned<A>(v) && unit_aligned<A>(gradient);
  }
};

template <int N, class A>
struct Values {
  A g[N], p[N], m[N], v[N];
};

template <int N, class T, class G, class A>
__device__ __forceinline__ void load(Values<N, A>& values, const Operands<T, G>& from, int i) {
  stream_in(values.g, from.gradient + i);
  from.weights.load(values.p, i);
  stream_in(values.m, from.m + i);
  stream_in(values.v, from.v + i);
}

template <int N, class T, class G, class A>
__device__ __forceinline__ void update(Values<N, A>& values, const Operands<T, G>& to, int i, const Scalars<A>& s) {
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const A g = s.scale * values.g[n];
    const A m = s.beta1 * values.m[n] + s.to_m * g;
    const A v = s.beta2 * values.v[n] + s.to_v * g * g;
    values.p[n] -= s.lr * (m * s.unbias_m / (sqrt(v * s.unbias_v) + s.eps) + s.decay * values.p[n]);
    values.m[n] = m;
    values.v[n] = v;
  }
  to.weights.store(values.p, i);
  stream_out(to.m + i, values.m);
  stream_out(to.v + i, values.v);
}

// Blocks stay and take every so many chunks of all rows, so that what they all work on at a time lies close together.
// `only` is the one row where there is no table, else without elements.
template <class T, class G>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    adamw_kernel(const AdamWRow* table, AdamWRow only, int rows, int64_t chunks, const double* step, Betas betas) {
  using A = Acc<T>;
  constexpr int N = kUnit<A>, kFlight = 2;
  if (step[step_value::skip] != 0) return;
  __shared__ Scalars<A> shared;
  if (threadIdx.x == 0) shared = scalars_of<A>(step, betas);
  __syncthreads();
  Scalars<A> scalars = shared;

  AdamWRow row = only;
  for (int64_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
    if (chunk >= row.first_chunk + update_chunks_of(row.elements)) row = row_of_chunk(table, rows, chunk);
    const int64_t first = (chunk - row.first_chunk) * kUpdateChunk;
    const auto count = static_cast<int>(min(kUpdateChunk, row.elements - first));
    const Operands<T, G> operands(row, first);
    scalars.decay = A(row.weight_decay);
    const int units = operands.aligned() ? count / N : 0;
    for (int u = threadIdx.x; u < units; u += kFlight * kThreads) {
      Values<N, A> values[kFlight];
#pragma unroll
      for (int f = 0; f < kFlight; ++f)
        if (u + f * kThreads < units) load(values[f], operands, (u + f * kThreads) * N);
#pragma unroll
      for (int f = 0; f < kFlight; ++f)
        if (u + f * kThreads < units) update(values[f], operands, (u + f * kThreads) * N, scalars);
    }
    for (int i = units * N + threadIdx.x; i < count; i += kThreads) {
      Values<1, A> values;
      load(values, operands, i);
      update(values, operands, i, scalars);
    }
  }
}

template <class T, class G>
void launch(Stream& stream, const AdamWRow* table, const AdamWRow& only, int rows, int64_t chunks, const Tensor& step,
            const AdamWArgs& args) {
  adamw_kernel<T, G><<<blocks_for(stream, chunks, kBlocksPerSm), kThreads, 0, native(stream)>>>(
      table, only, rows, chunks, ptr<double>(step), {args.beta1, args.beta2, args.eps});
}

template <class Body>
void dispatch_kind(DType value, DType gradient, const Body& body) {
  dispatch_device(value,
                  [&]<class T>() { dispatch_device(gradient, [&]<class G>() { body.template operator()<T, G>(); }); });
}

}  // namespace

void adamw(Stream& stream, const AdamWTensors& tensors, const Tensor& step, const AdamWArgs& args) {
  const AdamWItem item{tensors, args.weight_decay};
  const auto table = adamw_table({&item, 1});
  AdamWRow row;
  std::copy(table.begin(), table.end(), reinterpret_cast<int64_t*>(&row));
  const int64_t chunks = update_chunks_of(row.elements);
  if (chunks == 0) return;
  dispatch_kind(tensors.value.dtype(), tensors.gradient.dtype(),
                [&]<class T, class G>() { launch<T, G>(stream, nullptr, row, 1, chunks, step, args); });
}

void adamw_all(Stream& stream, std::span<const AdamWItem> items, const Tensor& table, const Tensor& step,
               const AdamWArgs& args) {
  assert(table.elements() == static_cast<int64_t>(items.size()) * kAdamWColumns);
  const auto* group = reinterpret_cast<const AdamWRow*>(table.raw());
  for_adamw_kinds(items, [&](DType value, DType gradient) {
    int rows = 0;
    int64_t chunks = 0;
    for (const auto& [t, weight_decay] : items) {
      if (t.value.dtype() != value || t.gradient.dtype() != gradient) continue;
      ++rows;
      chunks += update_chunks_of(t.value.elements());
    }
    if (chunks > 0)
      dispatch_kind(value, gradient,
                    [&]<class T, class G>() { launch<T, G>(stream, group, {}, rows, chunks, step, args); });
    group += rows;
  });
}

}  // namespace witan::kernels::cuda
