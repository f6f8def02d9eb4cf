// Launches an update: one kernel per pair of value and gradient dtypes among the items.
#pragma once

#include "witan/kernels/optimizer/cuda/hopper_update.cuh"

namespace witan::kernels::cuda {

inline constexpr int kUpdateThreads = 256, kUpdateBlocksPerSm = 3;
// The units that a thread reads before it writes: as many as fit in its registers.
template <int kStates>
inline constexpr int kUpdateFlight = kStates > 2 ? 1 : 2;

// Persistent blocks stride over the chunks of all rows, so that blocks work on neighbouring memory at any time.
template <class Rule, class Args, class T, class G, class... S>
__global__ void __launch_bounds__(kUpdateThreads, kUpdateBlocksPerSm)
    update_kernel(const UpdateRow* table, int rows, int64_t chunks, const double* step, Args args) {
  if (step[step_value::skip] != 0) return;
  __shared__ Rule shared;
  if (threadIdx.x == 0) shared = Rule::make(step, args);
  __syncthreads();
  Rule rule = shared;

  UpdateRow row{};
  for (int64_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
    find_row(row, table, rows, chunk);
    const int64_t first = (chunk - row.first_chunk) * kUpdateChunk;
    rule.decay = Acc<T>(row.weight_decay * step[step_value::weight_decay]);
    update_all<Streamed, kUpdateThreads, kUpdateFlight<sizeof...(S)>>(
        Operands<T, G, S...>(row, first), static_cast<int>(min(kUpdateChunk, row.elements - first)), rule);
  }
}

// The types that the state may have.
enum class StateTypes : uint8_t { accumulator, accumulator_or_bf16 };

// Calls body.template operator()<S…>() with the types of the state of `like`.
template <class A, StateTypes kTypes, int kLeft, class... S, class Body>
void dispatch_state(const UpdateTensors& like, const Body& body) {
  if constexpr (kLeft == 0) {
    body.template operator()<S...>();
  } else {
    if constexpr (kTypes == StateTypes::accumulator_or_bf16)
      if (like.state[sizeof...(S)].dtype() == DType::bf16)
        return dispatch_state<A, kTypes, kLeft - 1, S..., __nv_bfloat16>(like, body);
    assert(like.state[sizeof...(S)].dtype() != DType::bf16);
    dispatch_state<A, kTypes, kLeft - 1, S..., A>(like, body);
  }
}

template <template <class> class Rule, StateTypes kTypes = StateTypes::accumulator, class Args>
void launch_updates(Stream& stream, std::span<const UpdateItem> items, const Tensor& table, const Tensor& step,
                    const Args& args) {
  assert(table.elements() == static_cast<int64_t>(items.size()) * kUpdateColumns);
  const auto* group = reinterpret_cast<const UpdateRow*>(table.raw());
  for_update_kinds(items, [&](DType value, DType gradient) {
    int rows = 0;
    int64_t chunks = 0;
    const UpdateTensors* like = nullptr;
    for (const UpdateItem& item : items) {
      if (item.tensors.value.dtype() != value || item.tensors.gradient.dtype() != gradient) continue;
      like = &item.tensors;
      ++rows;
      chunks += update_chunks_of(item.tensors.value.elements());
    }
    const UpdateRow* first = std::exchange(group, group + rows);
    if (chunks == 0) return;
    dispatch_update(value, gradient, [&]<class T, class G>() {
      using A = Acc<T>;
      dispatch_state<A, kTypes, Rule<A>::kStates>(*like, [&]<class... S>() {
        if constexpr (sizeof(T) <= sizeof(float) && sizeof(G) <= sizeof(float))
          if (is_hopper(stream))
            return hopper_update<Rule<A>, T, G, S...>(stream, first, rows, chunks, ptr<double>(step), args);
        update_kernel<Rule<A>, Args, T, G, S...>
            <<<blocks_for(stream, chunks, kUpdateBlocksPerSm), kUpdateThreads, 0, native(stream)>>>(
                first, rows, chunks, ptr<double>(step), args);
      });
    });
  });
}

}  // namespace witan::kernels::cuda
