#include "witan/kernels/cuda/optimizer/adamw.cuh"
#include "witan/kernels/cuda/optimizer/hopper_adamw.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 256, kBlocksPerSm = 3, kFlight = 2;

// Blocks stay and take every so many chunks of all rows, so that what they all work on at a time lies close together.
// `only` is the one row where there is no table, else without elements.
template <class T, class G>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    adamw_kernel(const AdamWRow* table, AdamWRow only, int rows, int64_t chunks, const double* step, Betas betas) {
  using A = Acc<T>;
  if (step[step_value::skip] != 0) return;
  __shared__ Scalars<A> shared;
  if (threadIdx.x == 0) shared = scalars_of<A>(step, betas);
  __syncthreads();
  Scalars<A> scalars = shared;

  AdamWRow row = only;
  for (int64_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
    find_row(row, table, rows, chunk);
    const int64_t first = (chunk - row.first_chunk) * kUpdateChunk;
    scalars.decay = A(row.weight_decay);
    update_all<Streamed, kThreads, kFlight>(Operands<T, G>(row, first),
                                            static_cast<int>(min(kUpdateChunk, row.elements - first)), scalars);
  }
}

template <class T, class G>
void launch(Stream& stream, const AdamWRow* table, const AdamWRow& only, int rows, int64_t chunks, const Tensor& step,
            const AdamWArgs& args) {
  const Betas betas{args.beta1, args.beta2, args.eps, args.rate};
  if constexpr (sizeof(T) <= sizeof(float) && sizeof(G) <= sizeof(float))
    if (is_hopper(stream)) return hopper_adamw<T, G>(stream, table, only, rows, chunks, ptr<double>(step), betas);
  adamw_kernel<T, G><<<blocks_for(stream, chunks, kBlocksPerSm), kThreads, 0, native(stream)>>>(
      table, only, rows, chunks, ptr<double>(step), betas);
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
