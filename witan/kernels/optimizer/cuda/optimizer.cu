// The sums and scalars of an optimizer step.
#include "witan/kernels/common/cuda/table.cuh"
#include "witan/kernels/optimizer/optimizer.h"
#include "witan/kernels/optimizer/optimizer_table.h"
#include "witan/kernels/optimizer/update_rules.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kSumThreads = 512, kSumPack = 8;

// (sum of squares, zeros) of a chunk. Thread t always sums the packs t, t + 512, … of eight elements, with whatever
// accesses they are read, so that the order of the sum does not depend on the address.
template <class T>
__device__ __forceinline__ void sum_chunk(double* out, const T* x, int count) {
  constexpr int kWords = kSumPack / kPack<T>, kSums = 4;
  double sums[kSums] = {};
  int zeros = 0;
  const auto add = [&](T element, int i) {
    const auto value = convert<double>(element);
    sums[i % kSums] += value * value;
    zeros += value == 0;
  };
  const int packs = reinterpret_cast<uintptr_t>(x) % 16 == 0 ? count / kSumPack : 0;
#pragma unroll 4
  for (int at = threadIdx.x; at < packs; at += kSumThreads) {
    Pack<T, kPack<T>> words[kWords];
#pragma unroll
    for (int w = 0; w < kWords; ++w) words[w] = load_pack<T, kPack<T>>(x + at * kSumPack + w * kPack<T>);
#pragma unroll
    for (int i = 0; i < kSumPack; ++i) add(words[i / kPack<T>].at[i % kPack<T>], i);
  }
  const int left = (packs + kSumThreads - 1 - static_cast<int>(threadIdx.x)) / kSumThreads;  // packs that were read
  for (int at = threadIdx.x + left * kSumThreads; at * kSumPack < count; at += kSumThreads)
#pragma unroll
    for (int i = 0; i < kSumPack; ++i)
      if (at * kSumPack + i < count) add(x[at * kSumPack + i], i);

  __shared__ double squares_of_warps[kSumThreads / 32];
  __shared__ int zeros_of_warps[kSumThreads / 32];
  const double squares = block_sum((sums[0] + sums[1]) + (sums[2] + sums[3]), squares_of_warps);
  zeros = block_sum(zeros, zeros_of_warps);
  if (threadIdx.x != 0) return;
  out[0] = squares;
  out[1] = zeros;
}

// One block per chunk of each piece of each row; `only` is the single row if there is no table.
__global__ void __launch_bounds__(kSumThreads)
    square_sums_kernel(double* sums, const SquareSumsRow* table, SquareSumsRow only, int rows) {
  const int64_t chunk = blockIdx.x;
  const SquareSumsRow row = table ? row_of_chunk(table, rows, chunk) : only;
  const int64_t of_row = chunk - row.first_chunk, piece = of_row / row.chunks;
  const int64_t first = of_row % row.chunks * kChunkElements;
  const auto count = static_cast<int>(min(kChunkElements, row.elements - first));
  const int64_t begin = piece * row.elements + first;
  double* out = sums + 2 * (row.first_row + of_row);
  switch (static_cast<DType>(row.dtype)) {
    case DType::bf16:
      return sum_chunk(out, reinterpret_cast<const __nv_bfloat16*>(row.x) + begin, count);
    case DType::f16:
      return sum_chunk(out, reinterpret_cast<const __half*>(row.x) + begin, count);
    case DType::f32:
      return sum_chunk(out, reinterpret_cast<const float*>(row.x) + begin, count);
    default:
      return sum_chunk(out, reinterpret_cast<const double*>(row.x) + begin, count);
  }
}

constexpr int kTotalThreads = 1024;

__global__ void __launch_bounds__(kTotalThreads)
    total_sums_kernel(double* total, const double* sums, const int64_t* order, int64_t rows) {
  __shared__ double of_warps[kTotalThreads / 32];
  double squares = 0, zeros = 0;
  for (int64_t i = threadIdx.x; i < rows; i += kTotalThreads) {
    const auto row = reinterpret_cast<const double2*>(sums)[order[i]];
    squares += row.x;
    zeros += row.y;
  }
  squares = block_sum(squares, of_warps);
  zeros = block_sum(zeros, of_warps);
  if (threadIdx.x != 0) return;
  total[0] = squares;
  total[1] = zeros;
}

__global__ void clip_kernel(double* step, const double* total, double max_norm) {
  const double norm = sqrt(total[0]), scale = max_norm / (norm + 1e-6);
  if (step[step_value::skip] >= 0) step[step_value::skip] = isfinite(norm) ? 0 : 1;
  step[step_value::gradient_scale] = max_norm > 0 && scale < 1 ? scale : 1;
}

__global__ void unscale_kernel(double* total, const double* scaler) {
  total[0] /= scaler[loss_scaler::scale] * scaler[loss_scaler::scale];
}

__global__ void adapt_kernel(double* step, double* scaler, LossScaleArgs args) {
  adapt_loss_scale_rule(step, scaler, args);
}

template <class A>
__global__ void scale_losses_kernel(A* scaled, const A* weights, const double* scaler, int64_t count) {
  const A scale = static_cast<A>(scaler[loss_scaler::scale]);
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) scaled[i] = weights[i] * scale;
}

// The sum of value(i) for i < count, computed by a warp in an order that only the count determines.
template <class Value>
__device__ __forceinline__ double sum_by_warp(int64_t count, const Value& value) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += 32) sum += value(i);
  return warp_sum(sum);
}

__device__ bool is_spike(const double* recent, int64_t known, double now, double sigma) {
  const double mean = sum_by_warp(known, [&](int64_t i) { return recent[i]; }) / static_cast<double>(known);
  const double squares = sum_by_warp(known, [&](int64_t i) { return (recent[i] - mean) * (recent[i] - mean); });
  return now - mean > sigma * sqrt(squares / static_cast<double>(known - 1));
}

// Runs as one warp.
__global__ void skip_spikes_kernel(double* step, double* history, int64_t window, const double* total,
                                   const double* losses, const int64_t* order, int64_t terms, double sigma) {
  if (step[step_value::skip] > 1 || step[step_value::skip] < 0) return;
  const double loss = sum_by_warp(terms, [&](int64_t i) { return losses[order[i]]; }), norm = sqrt(total[0]);
  if (!isfinite(loss) || !isfinite(norm)) {
    if (threadIdx.x == 0) step[step_value::skip] = 1;
    return;
  }
  const auto steps = static_cast<int64_t>(history[0]), known = min(steps, window);
  double *losses_before = history + 1, *norms_before = losses_before + window;
  const bool skips = known >= spike_steps_needed(window) &&
                     (is_spike(losses_before, known, loss, sigma) || is_spike(norms_before, known, norm, sigma));
  __syncwarp();
  if (threadIdx.x != 0) return;
  losses_before[steps % window] = loss;
  norms_before[steps % window] = norm;
  history[0] = static_cast<double>(steps + 1);
  if (skips) step[step_value::skip] = 1;
}

}  // namespace

void square_sums(Stream& stream, const Tensor& sums, const Tensor& x) {
  const SquareSumsItem item{x, 0};
  const auto table = square_sums_table({&item, 1});
  SquareSumsRow row;
  std::copy(table.begin(), table.end(), reinterpret_cast<int64_t*>(&row));
  if (const auto chunks = static_cast<unsigned>(sums.size(0)))
    square_sums_kernel<<<chunks, kSumThreads, 0, native(stream)>>>(ptr<double>(sums), nullptr, row, 1);
}

void square_sums_all(Stream& stream, const Tensor& sums, std::span<const SquareSumsItem> items, const Tensor& table) {
  assert(table.elements() == static_cast<int64_t>(items.size()) * kSquareSumsColumns);
  int64_t chunks = 0;
  for (const auto& [x, first_row] : items) {
    const auto [pieces, elements] = x.shape().as_rows();
    chunks += pieces * chunks_of(elements);
  }
  if (chunks == 0) return;
  square_sums_kernel<<<static_cast<unsigned>(chunks), kSumThreads, 0, native(stream)>>>(
      ptr<double>(sums), reinterpret_cast<const SquareSumsRow*>(table.raw()), {}, static_cast<int>(items.size()));
}

void total_sums(Stream& stream, const Tensor& total, const Tensor& sums, const Tensor& order) {
  total_sums_kernel<<<1, kTotalThreads, 0, native(stream)>>>(ptr<double>(total), ptr<double>(sums), ptr<int64_t>(order),
                                                             order.elements());
}

void skip_spikes(Stream& stream, const Tensor& step, const Tensor& history, const Tensor& total, const Tensor& losses,
                 const Tensor& order, double sigma) {
  skip_spikes_kernel<<<1, 32, 0, native(stream)>>>(ptr<double>(step), ptr<double>(history),
                                                   (history.elements() - 1) / 2, ptr<double>(total),
                                                   ptr<double>(losses), ptr<int64_t>(order), order.elements(), sigma);
}

void clip_by_norm(Stream& stream, const Tensor& step, const Tensor& total, double max_norm) {
  clip_kernel<<<1, 1, 0, native(stream)>>>(ptr<double>(step), ptr<double>(total), max_norm);
}

void scale_losses(Stream& stream, const Tensor& scaled, const Tensor& weights, const Tensor& scaler) {
  dispatch_accumulator(scaled.dtype(), [&]<class A>() {
    scale_losses_kernel<<<1, 32, 0, native(stream)>>>(ptr<A>(scaled), ptr<A>(weights), ptr<double>(scaler),
                                                      scaled.elements());
  });
}

void unscale_total(Stream& stream, const Tensor& total, const Tensor& scaler) {
  unscale_kernel<<<1, 1, 0, native(stream)>>>(ptr<double>(total), ptr<double>(scaler));
}

void adapt_loss_scale(Stream& stream, const Tensor& step, const Tensor& scaler, const LossScaleArgs& args) {
  adapt_kernel<<<1, 1, 0, native(stream)>>>(ptr<double>(step), ptr<double>(scaler), args);
}

}  // namespace witan::kernels::cuda
