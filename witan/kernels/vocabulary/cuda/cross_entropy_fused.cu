// Persistent blocks each keep one row of logits on chip: most of it in shared memory, the rest in registers. Every
// thread has 16-byte slots of its own, so that it can prefetch its part of the next row while it writes the gradient of
// the current one; only the row's sum needs barriers.
#include <utility>

#include "witan/kernels/vocabulary/cuda/cross_entropy.cuh"
#include "witan/kernels/vocabulary/vocabulary.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = kLanes;                // a lane each
constexpr int kPairs = 7, kSlots = 2 * kPairs;  // per thread, in shared memory: 224 KiB per block
constexpr int kHeld = 2;                        // and in registers
constexpr int kElements = 8;                    // per slot, of 16 bits each
constexpr int64_t kMostVocabulary = int64_t{kSlots + kHeld} * kThreads * kElements;
constexpr int kSharedBytes = kSlots * kThreads * 16;

template <class T>
using Slot = Pack<T, kElements>;

template <class T>
struct Rows {
  Slot<T>* dlogits;        // [T, V]
  const Slot<T>* logits;   // [T, V]
  float *losses, *lse;     // [T]
  const int32_t* targets;  // [T]
  const float* weights;    // [T]
  int64_t tokens;
  int slots;  // V / 8
  int words;  // the first of V; the remaining columns are padding
};

template <class T>
__device__ __forceinline__ void fetch(Slot<T>* to, const Slot<T>* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(to))),
               "l"(from)
               : "memory");
}
__device__ __forceinline__ void end_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits for all groups but the latest kLater.
template <int kLater>
__device__ __forceinline__ void await_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLater) : "memory");
}

// One thread's part of a row: slots threadIdx.x, + 1024, …; two of them are a group of prefetches. Most models have no
// padding, and then no element is compared with the number of words.
template <class T, bool kPadded>
struct Part {
  Slot<T>* shared;  // [kSlots, kThreads]
  Slot<T> held[kHeld];
  int slots, words;

  __device__ __forceinline__ static int at(int slot) { return slot * kThreads + static_cast<int>(threadIdx.x); }
  __device__ __forceinline__ bool has(int slot) const { return at(slot) < slots; }
  // Whether any thread has this slot: rows of small vocabularies have fewer.
  __device__ __forceinline__ bool some_have(int slot) const { return slot * kThreads < slots; }
  // Whether element n of one of the row's slots is a word rather than padding.
  __device__ __forceinline__ bool is_word(int slot, int n) const {
    return !kPadded || at(slot) * kElements + n < words;
  }

  __device__ __forceinline__ void fetch_all(const Slot<T>* row) {
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      if (has(slot)) fetch<T>(shared + at(slot), row + at(slot));
      if (slot % 2) end_group();
    }
#pragma unroll
    for (int h = 0; h < kHeld; ++h)
      if (has(kSlots + h)) held[h] = row[at(kSlots + h)];
  }
  template <class Get>
  __device__ __forceinline__ void add_two(LogSumExp<float>& total, int slot, const Get& get) const {
    if (!some_have(slot)) return;
    float x[2 * kElements];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool real = has(slot + i);
      const Slot<T> pack = real ? get(i) : Slot<T>{};
#pragma unroll
      for (int n = 0; n < kElements; ++n)
        x[i * kElements + n] =
            real && is_word(slot + i, n) ? convert<float>(pack.at[n]) : -std::numeric_limits<float>::infinity();
    }
    total.add(x);
  }
  // Sums slots in the order in which they arrive.
  __device__ __forceinline__ LogSumExp<float> sum() const {
    LogSumExp<float> total;
    [&]<int... kPair>(std::integer_sequence<int, kPair...>) {
      (..., (await_group<kPairs - 1 - kPair>(),
             add_two(total, 2 * kPair, [&](int i) { return shared[at(2 * kPair + i)]; })));
    }
    (std::make_integer_sequence<int, kPairs>());
    static_assert(kHeld == 2);
    add_two(total, kSlots, [&](int i) { return held[i]; });
    return total;
  }
  // Writes the gradient; unless `next` is null, it replaces the row progressively.
  __device__ __forceinline__ void replace(Slot<T>* out, const Gradient<T>& gradient, const Slot<T>* next) {
    const auto write = [&](Slot<T> pack, int slot) {
#pragma unroll
      for (int n = 0; n < kElements; ++n)
        pack.at[n] = gradient.scale == 0 || !is_word(slot, n) ? T{} : gradient.at(pack.at[n], at(slot) * kElements + n);
      out[at(slot)] = pack;
    };
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      if (has(slot)) {
        write(shared[at(slot)], slot);
        if (next) fetch<T>(shared + at(slot), next + at(slot));
      }
      if (slot % 2) end_group();
    }
#pragma unroll
    for (int h = 0; h < kHeld; ++h)
      if (has(kSlots + h)) {
        write(held[h], kSlots + h);
        if (next) held[h] = next[at(kSlots + h)];
      }
  }
};

template <class T, bool kPadded>
__global__ void __launch_bounds__(kThreads, 1) fused_kernel(Rows<T> rows) {
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ float partials[2][2 * kWarpsOfLanes];  // rows alternate between two, so that one barrier is enough
  Part<T, kPadded> part{reinterpret_cast<Slot<T>*>(memory), {}, rows.slots, rows.words};
  int64_t t = blockIdx.x;
  part.fetch_all(rows.logits + t * rows.slots);
  for (int turn = 0; t < rows.tokens; t += gridDim.x, turn ^= 1) {
    const Slot<T>* row = rows.logits + t * rows.slots;
    const Slot<T>* next = t + gridDim.x < rows.tokens ? row + static_cast<int64_t>(gridDim.x) * rows.slots : nullptr;
    const float weight = rows.weights[t];
    const int target = weight == 0 ? -1 : rows.targets[t];
    float at_target = 0;  // read before any thread overwrites it
    if (threadIdx.x == 0 && weight != 0) at_target = convert<float>(row[target / kElements].at[target % kElements]);
    const LogSumExp<float> own[1] = {part.sum()};
    const float lse = log_sum_exp(own, partials[turn]);
    if (threadIdx.x == 0) {
      rows.lse[t] = weight == 0 ? 0 : lse;
      rows.losses[t] = weight == 0 ? 0 : lse - at_target;
    }
    part.replace(rows.dlogits + t * rows.slots, {weight, lse, target}, next);
  }
}

bool fits(Stream& stream, const Tensor& logits, const Tensor& dlogits) {
  const int64_t V = logits.size(1);
  return size_of(logits.dtype()) == 2 && V <= kMostVocabulary && packs<uint16_t>(logits.raw(), V) &&
         packs<uint16_t>(dlogits.raw(), V) &&
         witan::cuda::properties(stream.device().index).shared_per_block >=
             kSharedBytes + static_cast<int64_t>(sizeof(float)) * 2 * 2 * kWarpsOfLanes;
}

}  // namespace

void cross_entropy_fused(Stream& stream, const CrossEntropyOutputs& out, const Tensor& logits, const Tensor& targets,
                         const Tensor& weights, int64_t words) {
  const int64_t T = logits.size(0);
  if (T == 0 || !fits(stream, logits, out.dlogits)) {
    cuda::cross_entropy_forward(stream, out.loss, out.losses, out.lse, logits, targets, weights, words);
    cuda::cross_entropy_backward(stream, out.dlogits, {}, logits, out.lse, targets, weights, {0, words});
    return;
  }
  dispatch_half(logits.dtype(), [&]<class E>() {
    const auto kernel = words < logits.size(1) ? fused_kernel<E, true> : fused_kernel<E, false>;
    witan::cuda::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes),
                       "asking for shared memory");
    kernel<<<blocks_for(stream, T, 1), kThreads, kSharedBytes, native(stream)>>>(
        {.dlogits = ptr<Slot<E>>(out.dlogits),
         .logits = ptr<Slot<E>>(logits),
         .losses = ptr<float>(out.losses),
         .lse = ptr<float>(out.lse),
         .targets = ptr<int32_t>(targets),
         .weights = ptr<float>(weights),
         .tokens = T,
         .slots = static_cast<int>(logits.size(1) / kElements),
         .words = static_cast<int>(words)});
  });
  sum_losses(stream, out.loss, out.losses, weights);
}

}  // namespace witan::kernels::cuda
