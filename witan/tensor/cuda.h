// GPUs, as far as code that knows no CUDA must know them. A build without CUDA, and a machine without a driver, have
// none: everything here works there, and says so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "witan/tensor/queue.h"

namespace witan::cuda {

bool built();  // whether this program was built with CUDA

// GPUs that can be used, numbered from 0; 0 without a driver. Kernels need compute capability 8.0: CUDA numbers the
// fastest first, and the count ends before the first that is older.
int devices();
// Why devices() is 0, and the way out; empty when it is not.
std::string why_none();
// Whether kernels on GPU `from` read and write the memory of GPU `to`; both are counted by devices().
bool can_access_peer(int from, int to);

struct Properties {
  std::string name;  // "NVIDIA H200"
  int major = 0, minor = 0;
  int multiprocessors = 0;
  int64_t memory = 0, l2 = 0;                 // bytes
  int64_t shared_per_block = 0;               // bytes, the most that a kernel can ask for
  double clock_hz = 0, memory_bandwidth = 0;  // nominal; bytes per second
};
const Properties& properties(int device);  // throws DeviceError where there is no such device

// Bytes that nobody uses now. Throws OutOfMemoryError where there is no room for a context to ask from.
int64_t free_memory(int device);
// Plain device memory. Throws OutOfMemoryError naming what is free.
std::byte* allocate(int device, int64_t bytes);
void release(int device, std::byte* memory);

// Between host and device at once, by any thread. Throw DeviceError.
void copy_in(int device, std::byte* to, const void* from, int64_t bytes);
void copy_out(int device, void* to, const std::byte* from, int64_t bytes);

// A stream of its own, not synchronised with any other.
std::unique_ptr<Queue> make_queue(int device);

// Seconds of each of so many calls that queue work, as the device sees them: none is waited for before all are queued.
std::vector<double> time_calls(Queue& queue, int calls, const std::function<void()>& call);

}  // namespace witan::cuda
