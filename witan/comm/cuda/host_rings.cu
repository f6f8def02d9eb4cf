// An exchange of rows through rings in the host's memory: stores and loads over PCIe, in both directions at once.
#include "witan/comm/cuda/host_rings.h"
#include "witan/comm/cuda/waits.cuh"
#include "witan/tensor/cuda/stream.h"

namespace witan::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kFlight = 4;  // loads of a thread on their way: with units of 16 bytes, a whole slot

// Past all caches: the host's memory changes while the kernel runs.
__device__ __forceinline__ uint4 load_fresh(const uint4* from) {
  uint4 value;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from)
               : "memory");
  return value;
}
__device__ __forceinline__ uint32_t load_fresh(const uint32_t* from) {
  return *reinterpret_cast<const volatile uint32_t*>(from);
}
__device__ __forceinline__ uint16_t load_fresh(const uint16_t* from) {
  return *reinterpret_cast<const volatile uint16_t*>(from);
}

enum class From : uint8_t { device, host };

// All threads of the block.
template <From kFrom, class Unit>
__device__ __forceinline__ void copy_units(std::byte* to, const std::byte* from, int64_t bytes) {
  auto* const out = reinterpret_cast<Unit*>(to);
  const auto* const in = reinterpret_cast<const Unit*>(from);
  const int64_t units = bytes / static_cast<int64_t>(sizeof(Unit));
  for (int64_t begin = threadIdx.x; begin < units; begin += kThreads * kFlight) {
    Unit part[kFlight];
#pragma unroll
    for (int i = 0; i < kFlight; ++i)
      if (begin + i * kThreads < units)
        part[i] = kFrom == From::host ? load_fresh(in + begin + i * kThreads) : in[begin + i * kThreads];
#pragma unroll
    for (int i = 0; i < kFlight; ++i)
      if (begin + i * kThreads < units) out[begin + i * kThreads] = part[i];
  }
}

struct Span {
  int64_t begin, bytes;
};

// The rows for or from one rank, within those of all.
__device__ __forceinline__ Span span_of(const int64_t* counts, int64_t part, int64_t row_bytes, int rank) {
  if (counts == nullptr) return {rank * part * row_bytes, part * row_bytes};
  int64_t before = 0;
  for (int r = 0; r < rank; ++r) before += counts[r];
  return {before * row_bytes, counts[rank] * row_bytes};
}

// Whether the counts are no nonsense that would lead out of the tensors.
__device__ __forceinline__ bool fit(const int64_t* counts, int ranks, int64_t rows) {
  for (int r = 0; counts != nullptr && r < ranks; ++r) {
    if (counts[r] < 0 || counts[r] > rows) return false;
    rows -= counts[r];
  }
  return true;
}

__device__ __forceinline__ Ring& ring_of(const Rings& rings, int to, int from, int number) {
  const int other = (from - to - 1 + rings.size) % rings.size;
  return rings.all[(to * (rings.size - 1) + other) * rings.of_pair + number];
}

// A word of a ring that the peer counts up, as this block's first thread last saw it: a load of it takes a microsecond.
class Peer {
 public:
  __device__ Peer(const Waits& waits, const uint32_t* word, int rank, Trouble trouble, uint32_t known)
      : waits_(waits), word_(word), rank_(rank), trouble_(trouble), known_(known) {}

  // All threads of the block return when the word has reached `value`; false when it never will.
  __device__ bool reaches(uint32_t value) {
    bool has = true;
    if (threadIdx.x == 0 && static_cast<int32_t>(known_ - value) < 0) {
      known_ = load_acquire(word_);
      has = static_cast<int32_t>(known_ - value) >= 0 || wait_for(waits_, word_, value, rank_, trouble_, true);
      if (static_cast<int32_t>(known_ - value) < 0) known_ = value;
    }
    return __syncthreads_and(has) != 0;
  }

 private:
  const Waits& waits_;
  const uint32_t* const word_;
  const int rank_;
  const Trouble trouble_;
  uint32_t known_;
};

// Tells the peer that all threads of the block have filled or emptied a slot.
__device__ __forceinline__ void count_up(uint32_t* word, uint32_t value) {
  __syncthreads();
  if (threadIdx.x == 0) store_release(word, value);
}

template <class Unit>
__device__ void send(const Rings& rings, const std::byte* from, int64_t bytes, int to, int number) {
  Ring& ring = ring_of(rings, to, rings.rank, number);
  uint32_t& progress = rings.progress->sent[to][number];
  const uint32_t begin = progress;
  Peer receiver(rings.waits, &ring.taken, to, Trouble::taking, begin - kRingSlots);
  uint32_t slot = begin;
  for (int64_t at = number * kRingSlotBytes; at < bytes; at += rings.of_pair * kRingSlotBytes, ++slot) {
    if (!receiver.reaches(slot + 1 - kRingSlots)) return;
    copy_units<From::device, Unit>(ring.slots[slot % kRingSlots], from + at, min(kRingSlotBytes, bytes - at));
    count_up(&ring.sent, slot + 1);
  }
  __syncthreads();
  if (threadIdx.x == 0) progress = slot;
}

template <class Unit>
__device__ void receive(const Rings& rings, std::byte* to, int64_t bytes, int from, int number) {
  Ring& ring = ring_of(rings, rings.rank, from, number);
  uint32_t& progress = rings.progress->taken[from][number];
  const uint32_t begin = progress;
  Peer sender(rings.waits, &ring.sent, from, Trouble::sending, begin);
  uint32_t slot = begin;
  for (int64_t at = number * kRingSlotBytes; at < bytes; at += rings.of_pair * kRingSlotBytes, ++slot) {
    if (!sender.reaches(slot + 1)) return;
    copy_units<From::host, Unit>(to + at, ring.slots[slot % kRingSlots], min(kRingSlotBytes, bytes - at));
    count_up(&ring.taken, slot + 1);
  }
  __syncthreads();
  if (threadIdx.x == 0) progress = slot;
}

// Block (number, role): roles send to each peer, receive from each, and copy what stays. All blocks of a rank fit on
// the device at once; none waits for another of its own rank.
template <class Unit>
__global__ void __launch_bounds__(kThreads)
    exchange_kernel(const __grid_constant__ Rings rings, const __grid_constant__ RingRows rows) {
  const int number = static_cast<int>(blockIdx.x), role = static_cast<int>(blockIdx.y), peers = rings.size - 1;
  if (__syncthreads_or(stopped(rings.waits, false)) != 0) return;
  if (!fit(rows.send_counts, rings.size, rows.in_rows) || !fit(rows.recv_counts, rings.size, rows.out_rows)) {
    if (threadIdx.x == 0) give_up(rings.waits, Trouble::capacity, rings.rank);
    return;
  }
  const auto in = [&](int rank) { return span_of(rows.send_counts, rows.part, rows.row_bytes, rank); };
  const auto out = [&](int rank) { return span_of(rows.recv_counts, rows.part, rows.row_bytes, rank); };
  if (role < peers) {
    const int to = (rings.rank + 1 + role) % rings.size;
    const Span span = in(to);
    return send<Unit>(rings, rows.in + span.begin, span.bytes, to, number);
  }
  if (role < 2 * peers) {
    const int from = (rings.rank + 2 * peers - role) % rings.size;
    const Span span = out(from);
    return receive<Unit>(rings, rows.out + span.begin, span.bytes, from, number);
  }
  const Span there = out(rings.rank), here = in(rings.rank);
  const int64_t bytes = min(there.bytes, here.bytes);
  for (int64_t at = number * kRingSlotBytes; at < bytes; at += rings.of_pair * kRingSlotBytes)
    copy_units<From::device, Unit>(rows.out + there.begin + at, rows.in + here.begin + at,
                                   min(kRingSlotBytes, bytes - at));
}

template <class Unit>
bool aligned(const RingRows& rows) {
  const auto bits = reinterpret_cast<uintptr_t>(rows.in) | reinterpret_cast<uintptr_t>(rows.out) |
                    static_cast<uintptr_t>(rows.row_bytes);
  return bits % sizeof(Unit) == 0;
}

}  // namespace

void launch_ring_exchange(Stream& stream, const Rings& rings, const RingRows& rows) {
  const dim3 blocks(static_cast<unsigned>(rings.of_pair), static_cast<unsigned>(2 * (rings.size - 1) + 1));
  if (aligned<uint4>(rows))
    exchange_kernel<uint4><<<blocks, kThreads, 0, native(stream)>>>(rings, rows);
  else if (aligned<uint32_t>(rows))
    exchange_kernel<uint32_t><<<blocks, kThreads, 0, native(stream)>>>(rings, rows);
  else
    exchange_kernel<uint16_t><<<blocks, kThreads, 0, native(stream)>>>(rings, rows);
}

}  // namespace witan::cuda
