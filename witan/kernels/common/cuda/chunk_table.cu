// The chunks of rows of documents. A block has a row.
#include "witan/kernels/common/cuda/chunk_table.cuh"

namespace witan::kernels::cuda {
namespace {

constexpr int kTableThreads = 1024;

// The scan of the block's values by `join`, up to and with the thread's own. Called by all threads; `shared` holds a
// value per thread.
template <class Join>
__device__ int block_scan(int value, int* shared, const Join& join) {
  const int t = static_cast<int>(threadIdx.x);
  __syncthreads();
  shared[t] = value;
  __syncthreads();
  for (int apart = 1; apart < kTableThreads; apart *= 2) {
    const int joined = t >= apart ? join(shared[t - apart], shared[t]) : shared[t];
    __syncthreads();
    shared[t] = joined;
    __syncthreads();
  }
  return shared[t];
}

// A block has a row, a thread a run of its tokens.
__global__ void __launch_bounds__(kTableThreads) chunk_table_kernel(int32_t* chunks, const int32_t* ids, int S) {
  __shared__ int shared[kTableThreads];
  const int t = static_cast<int>(threadIdx.x), run = (S + kTableThreads - 1) / kTableThreads;
  const int begin = min(S, t * run), end = min(S, begin + run);
  int32_t* const table = chunks + static_cast<int64_t>(blockIdx.x) * (S + 2);
  const int32_t* const row = ids == nullptr ? nullptr : ids + static_cast<int64_t>(blockIdx.x) * S;
  const auto begins = [&](int i) { return i == 0 || (row != nullptr && row[i] != row[i - 1]); };
  int last = -1;
  for (int i = begin; i < end; ++i)
    if (begins(i)) last = i;
  block_scan(last, shared, [](int a, int b) { return a > b ? a : b; });
  const int before = t == 0 ? 0 : shared[t - 1];  // where the document of token begin - 1 begins
  const auto for_chunks = [&](const auto& body) {
    int document = before;
    for (int i = begin; i < end; ++i) {
      const bool first = begins(i);
      if (first) document = i;
      if ((i - document) % kTileL == 0) body(2 * i + (first ? 1 : 0));
    }
  };
  int own = 0;
  for_chunks([&](int) { ++own; });
  const int through = block_scan(own, shared, [](int a, int b) { return a + b; });
  int at = 1 + through - own;
  for_chunks([&](int entry) { table[at++] = entry; });
  if (t == kTableThreads - 1) {
    table[0] = through;
    table[1 + through] = 2 * S + 1;
  }
}

}  // namespace

void fill_chunk_table(Stream& stream, int32_t* chunks, const int32_t* ids, int64_t rows, int64_t S) {
  chunk_table_kernel<<<static_cast<unsigned>(rows), kTableThreads, 0, native(stream)>>>(chunks, ids,
                                                                                        static_cast<int>(S));
}

}  // namespace witan::kernels::cuda
