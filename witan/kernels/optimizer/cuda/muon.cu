#include <type_traits>

#include "witan/kernels/common/cuda/table.cuh"
#include "witan/kernels/common/cuda/update.cuh"
#include "witan/kernels/optimizer/muon.h"
#include "witan/kernels/optimizer/optimizer.h"
#include "witan/kernels/optimizer/optimizer_table.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 256, kBlocksPerSm = 6;

// Calls body.operator()<N>(i) for elements i of the chunk, with N > 1 elements at once if addresses allow it.
template <int N, class Body>
__device__ __forceinline__ void for_chunk(const MuonRow& row, int64_t chunk, bool aligned, const Body& body) {
  const int64_t first = (chunk - row.first_chunk) * kUpdateChunk;
  const int64_t end = min(first + kUpdateChunk, row.elements);
  const int64_t units = aligned ? (end - first) / N : 0;
  for (int64_t u = threadIdx.x; u < units; u += kThreads) body.template operator()<N>(first + u * N);
  for (int64_t i = first + units * N + threadIdx.x; i < end; i += kThreads) body.template operator()<1>(i);
}

// T: the value's type; G: the gradient's; D: the direction's.
template <class T, class G, class D>
__global__ void __launch_bounds__(kThreads)
    momentum_kernel(const MuonRow* table, int rows, int64_t chunks, const double* step, MuonArgs args) {
  using A = Acc<T>;
  const bool skip = step[step_value::skip] != 0;
  const A scale = A(step[step_value::gradient_scale]), beta = A(args.momentum);
  const A of_gradient = args.nesterov ? A(1) : A(0), of_momentum = args.nesterov ? beta : A(1);
  for (int64_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
    const MuonRow row = row_of_chunk(table, rows, chunk);
    const auto* gradient = reinterpret_cast<const G*>(row.gradient);
    auto* momentum = reinterpret_cast<A*>(row.momentum);
    auto* direction = reinterpret_cast<D*>(row.direction);
    const bool aligned = unit_aligned<A>(gradient) && unit_aligned<A>(momentum) && unit_aligned<A>(direction);
    for_chunk<kUnit<A>>(row, chunk, aligned, [&]<int N>(int64_t i) {
      A g[N] = {}, b[N] = {}, u[N] = {};
      if (!skip) {
        take(g, gradient + i);
        take(b, momentum + i);
#pragma unroll
        for (int n = 0; n < N; ++n) {
          g[n] *= scale;
          b[n] = beta * b[n] + g[n];
          u[n] = of_gradient * g[n] + of_momentum * b[n];
        }
        put(momentum + i, b);
      }
      put<Local>(direction + i, u);  // not streamed, because it is read again at once
    });
  }
}

template <class T, class D>
__global__ void __launch_bounds__(kThreads)
    update_kernel(const MuonRow* table, int rows, int64_t chunks, const double* step, MuonArgs args) {
  using A = Acc<T>;
  if (step[step_value::skip] != 0) return;
  const A lr = A(step[args.rate]);
  for (int64_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
    const MuonRow row = row_of_chunk(table, rows, chunk);
    const Weights<T> weights{reinterpret_cast<T*>(row.value), reinterpret_cast<Remainder<T>*>(row.remainder)};
    const auto* orthogonal = reinterpret_cast<const D*>(row.orthogonal);
    const A scale = A(row.scale), decay = A(row.weight_decay * step[step_value::weight_decay]);
    for_chunk<kUnit<A>>(row, chunk, weights.aligned() && unit_aligned<A>(orthogonal), [&]<int N>(int64_t i) {
      A p[N], u[N];
      weights.load(p, i);
      take(u, orthogonal + i);
#pragma unroll
      for (int n = 0; n < N; ++n) p[n] -= lr * (scale * u[n] + decay * p[n]);
      weights.store(p, i);
    });
  }
}

// Calls body.operator()<T, D>(). D is the direction's type: T, bfloat16 if T is float16, or T's accumulator type.
template <class Body>
void dispatch_direction(const Tensor& value, const Tensor& direction, const Body& body) {
  dispatch_device(value.dtype(), [&]<class T>() {
    using Narrow = std::conditional_t<std::is_same_v<T, __half>, __nv_bfloat16, T>;
    if (direction.dtype() == muon_direction_dtype(value.dtype())) return body.template operator()<T, Narrow>();
    if constexpr (!std::is_same_v<T, Acc<T>>) body.template operator()<T, Acc<T>>();
  });
}

int64_t chunks_of_items(std::span<const MuonItem> items) {
  int64_t chunks = 0;
  for (const MuonItem& item : items) chunks += update_chunks_of(item.value.elements());
  return chunks;
}

// One block per chunk of each matrix.
template <class T>
__global__ void __launch_bounds__(kThreads)
    normalize_kernel(T* x, const double* sums, int64_t elements, int64_t chunks, NormalizeArgs args) {
  using A = Acc<T>;
  constexpr int N = kPack<T>;
  const int64_t matrix = blockIdx.x / chunks, first = blockIdx.x % chunks * kChunkElements;
  __shared__ A shared;
  if (threadIdx.x == 0) {
    double squares = 0;
    for (int64_t c = 0; c < chunks; ++c) squares += sums[2 * (matrix * chunks + c)];
    shared = A(1 / (args.margin * sqrt(squares) + args.eps));
  }
  __syncthreads();
  const A factor = shared;
  T* out = x + matrix * elements + first;
  const int64_t count = min(kChunkElements, elements - first);
  const int64_t units = reinterpret_cast<uintptr_t>(out) % 16 == 0 ? count / N : 0;
  for (int64_t u = threadIdx.x; u < units; u += kThreads) {
    Pack<T, N> pack = load_pack<T, N>(out + u * N);
#pragma unroll
    for (int n = 0; n < N; ++n) pack.at[n] = convert<T>(factor * convert<A>(pack.at[n]));
    store_pack(out + u * N, pack);
  }
  for (int64_t i = units * N + threadIdx.x; i < count; i += kThreads) out[i] = convert<T>(factor * convert<A>(out[i]));
}

// One block per row.
template <class T>
__global__ void __launch_bounds__(kThreads) row_squares_kernel(double* squares, const T* x, int64_t columns) {
  __shared__ double of_warps[kThreads / 32];
  const T* row = x + blockIdx.x * columns;
  double sum = 0;
  for (int64_t k = threadIdx.x; k < columns; k += kThreads) {
    const auto value = convert<double>(row[k]);
    sum += value * value;
  }
  sum = block_sum(sum, of_warps);
  if (threadIdx.x == 0) squares[blockIdx.x] = sum;
}

// One block per matrix.
template <class V>
__global__ void __launch_bounds__(kThreads) moments_kernel(V* v, double* factors, double* totals, const double* squares,
                                                           int64_t rows, const double* step, NorMuonArgs args) {
  __shared__ double of_warps[kThreads / 32];
  const bool skip = step[step_value::skip] != 0;
  const int64_t first = blockIdx.x * rows;
  double before = 0, after = 0;
  for (int64_t r = first + threadIdx.x; r < first + rows; r += kThreads) {
    const double moment =
        args.beta2 * convert<double>(v[r]) + (1 - args.beta2) * squares[r] / static_cast<double>(args.columns);
    if (!skip) v[r] = convert<V>(moment);
    const double factor = 1 / (sqrt(moment) + 1e-8);
    factors[r] = factor;
    before += squares[r];
    after += squares[r] * factor * factor;
  }
  before = block_sum(before, of_warps);
  after = block_sum(after, of_warps);
  if (threadIdx.x != 0) return;
  totals[2 * blockIdx.x] = before;
  totals[2 * blockIdx.x + 1] = after;
}

// One block per row.
template <class T>
__global__ void __launch_bounds__(kThreads)
    scale_rows_kernel(T* x, const double* factors, const double* totals, int64_t rows, int64_t columns) {
  using A = Acc<T>;
  const double* total = totals + 2 * (blockIdx.x / rows);
  const A factor = A(factors[blockIdx.x] * sqrt(total[0]) / max(sqrt(total[1]), 1e-8));
  T* row = x + blockIdx.x * columns;
  for (int64_t k = threadIdx.x; k < columns; k += kThreads) row[k] = convert<T>(factor * convert<A>(row[k]));
}

}  // namespace

void muon_momentum(Stream& stream, std::span<const MuonItem> items, const Tensor& table, const Tensor& step,
                   const MuonArgs& args) {
  assert(table.elements() == static_cast<int64_t>(items.size()) * kMuonColumns);
  const int64_t chunks = chunks_of_items(items);
  if (chunks == 0) return;
  dispatch_direction(items[0].value, items[0].direction, [&]<class T, class D>() {
    const auto launch = [&]<class G>() {
      momentum_kernel<T, G, D><<<blocks_for(stream, chunks, kBlocksPerSm), kThreads, 0, native(stream)>>>(
          reinterpret_cast<const MuonRow*>(table.raw()), static_cast<int>(items.size()), chunks, ptr<double>(step),
          args);
    };
    if constexpr (std::is_same_v<T, __half>)
      launch.template operator()<float>();
    else
      dispatch_gradient(items[0].gradient.dtype(), launch);
  });
}

void muon_update(Stream& stream, std::span<const MuonItem> items, const Tensor& table, const Tensor& step,
                 const MuonArgs& args) {
  assert(table.elements() == static_cast<int64_t>(items.size()) * kMuonColumns);
  const int64_t chunks = chunks_of_items(items);
  if (chunks == 0) return;
  dispatch_direction(items[0].value, items[0].orthogonal, [&]<class T, class D>() {
    update_kernel<T, D><<<blocks_for(stream, chunks, kBlocksPerSm), kThreads, 0, native(stream)>>>(
        reinterpret_cast<const MuonRow*>(table.raw()), static_cast<int>(items.size()), chunks, ptr<double>(step), args);
  });
}

void normalize_matrices(Stream& stream, const Tensor& x, const Tensor& sums, const NormalizeArgs& args) {
  if (x.elements() == 0) return;
  const int64_t elements = x.elements() / x.size(0), chunks = chunks_of(elements);
  dispatch_device(x.dtype(), [&]<class T>() {
    normalize_kernel<T><<<static_cast<unsigned>(x.size(0) * chunks), kThreads, 0, native(stream)>>>(
        ptr<T>(x), ptr<double>(sums), elements, chunks, args);
  });
}

void row_squares(Stream& stream, const Tensor& squares, const Tensor& x) {
  if (x.elements() == 0) return;
  dispatch_device(x.dtype(), [&]<class T>() {
    row_squares_kernel<T><<<static_cast<unsigned>(squares.elements()), kThreads, 0, native(stream)>>>(
        ptr<double>(squares), ptr<T>(x), x.shape().last());
  });
}

void normuon_moments(Stream& stream, const NorMuonTensors& t, const Tensor& step, const NorMuonArgs& args) {
  if (t.v.elements() == 0) return;
  dispatch_accumulator(t.v.dtype(), [&]<class V>() {
    moments_kernel<V><<<static_cast<unsigned>(t.v.size(0)), kThreads, 0, native(stream)>>>(
        ptr<V>(t.v), ptr<double>(t.factors), ptr<double>(t.totals), ptr<double>(t.squares), t.v.size(1),
        ptr<double>(step), args);
  });
}

void scale_rows(Stream& stream, const Tensor& x, const Tensor& factors, const Tensor& totals) {
  if (x.elements() == 0) return;
  dispatch_device(x.dtype(), [&]<class T>() {
    scale_rows_kernel<T><<<static_cast<unsigned>(factors.elements()), kThreads, 0, native(stream)>>>(
        ptr<T>(x), ptr<double>(factors), ptr<double>(totals), x.size(1), x.size(2));
  });
}

}  // namespace witan::kernels::cuda
