// The interface to GPUs for code without CUDA. A build without CUDA, and a machine without a driver, have no GPUs: all
// functions work there, and report that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "witan/tensor/queue.h"

namespace witan {
class Timestamps;
}

namespace witan::cuda {

bool built();  // whether this program was built with CUDA

// Number of usable GPUs, which are numbered from 0; 0 without a driver. Kernels need compute capability 8.0: CUDA lists
// the fastest first, and the count ends before the first older one.
int devices();
// Why devices() is 0, and the fix; empty if it is not 0.
std::string why_none();
// Whether kernels on GPU `from` can access the memory of GPU `to` (peer access); both are numbered as by devices().
bool can_access_peer(int from, int to);

struct Properties {
  std::string name;  // "NVIDIA H200"
  int major = 0, minor = 0;
  int multiprocessors = 0;
  int64_t memory = 0, l2 = 0;                 // bytes
  int64_t shared_per_block = 0;               // bytes, the most that a kernel can ask for
  double clock_hz = 0, memory_bandwidth = 0;  // nominal; bytes per second
  bool hopper_kernels = false;  // whether it is a Hopper, and this program was built with the code of sm_90a
};
const Properties& properties(int device);  // throws DeviceError if there is no such device

// Free bytes. Throws OutOfMemoryError if there is not even memory for a CUDA context.
int64_t free_memory(int device);
// Plain device memory. Throws OutOfMemoryError naming the free bytes.
std::byte* allocate(int device, int64_t bytes);
void release(int device, std::byte* memory);

// Host memory that copy engines of all GPUs read and write (pinned memory). Throws OutOfMemoryError. Releasing it waits
// for the devices' work.
std::byte* allocate_pinned(int64_t bytes);
void release_pinned(std::byte* memory);

// Synchronous copies between host and device, from any thread. They throw DeviceError.
void copy_in(int device, std::byte* to, const void* from, int64_t bytes);
void copy_out(int device, void* to, const std::byte* from, int64_t bytes);

// A separate stream, not synchronised with any other.
std::unique_ptr<Queue> make_queue(int device);

std::unique_ptr<Timestamps> make_timestamps(int device);

// Nested NVTX ranges of the calling thread. They do nothing unless a profiler is attached.
void push_range(const std::string& name);
void pop_range();

// Seconds of each of several calls that queue work, measured on the device: all are queued before any is waited for.
std::vector<double> time_calls(Queue& queue, int calls, const std::function<void()>& call);

// The machine's driver, libraries and links between GPUs. They are displayed; no decision depends on them.
struct Software {
  std::string driver;       // "580.95.05"; empty: no driver is loaded
  std::string driver_cuda;  // the newest CUDA version that the driver supports: "13.0"; empty likewise
  std::string built_with;   // CUDA version of this program: "13.0"; empty without CUDA
};
Software software();

// A library that is loaded at run time.
struct LibraryState {
  std::string name, purpose;  // "NCCL", "several GPUs"
  std::string path, version;  // empty if it cannot be loaded
  std::string missing;        // why it cannot be loaded, and the fix
};
std::vector<LibraryState> libraries();  // none in a build without CUDA

// How GPU `from` accesses the memory of GPU `to`.
struct Link {
  int from = 0, to = 0;
  bool peer = false;            // peer access: kernels and copies go directly; else through host memory
  bool atomics = false;         // also atomic operations, as over NVLink
  double bytes_per_second = 0;  // one way, measured with copies of 256 MiB
};
Link measure_link(int from, int to);

}  // namespace witan::cuda
