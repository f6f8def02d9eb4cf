#include <algorithm>
#include <cstdlib>
#include <deque>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/base/threads/mutex.h"
#include "witan/tensor/cuda/stream.h"

namespace witan::cuda {
namespace {

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, device), "reading a device's attributes");
  return value;
}

#ifdef WITAN_CUDA_HOPPER
constexpr bool kHoldsHopperKernels = true;
#else
constexpr bool kHoldsHopperKernels = false;
#endif

Properties read_properties(int device) {
  cudaDeviceProp raw{};
  check(cudaGetDeviceProperties(&raw, device), "reading a device's properties");
  Properties out;
  out.name = raw.name;
  out.major = raw.major;
  out.minor = raw.minor;
  out.hopper_kernels = kHoldsHopperKernels && raw.major == 9;
  out.multiprocessors = raw.multiProcessorCount;
  out.memory = static_cast<int64_t>(raw.totalGlobalMem);
  out.l2 = raw.l2CacheSize;
  out.shared_per_block = static_cast<int64_t>(raw.sharedMemPerBlockOptin);
  out.clock_hz = 1e3 * attribute(cudaDevAttrClockRate, device);
  const double transfers = 2e3 * attribute(cudaDevAttrMemoryClockRate, device);  // double data rate
  out.memory_bandwidth = transfers * attribute(cudaDevAttrGlobalMemoryBusWidth, device) / 8;
  return out;
}

constexpr int kLeastMajor = 8;  // of the compute capability

int major_of(int device) {
  int major = 0;
  return cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess ? major : 0;
}

int count_usable() {
  // With lazy loading, the first launch of a kernel would wait for other ranks' running kernels.
  ::setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0);
  int count = 0, usable = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) return 0;
  while (usable < count && major_of(usable) >= kLeastMajor) ++usable;
  return usable;
}

std::string why_unusable() {
  int driver = 0, count = 0;
  // Without a driver, the runtime reports that it is too old.
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) return "no NVIDIA driver is loaded";
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) return cudaGetErrorString(status);
  if (count == 0) return "the driver shows no GPU";
  const Properties first = read_properties(0);
  return cat("GPU 0, ", first.name, ", has compute capability ", first.major, '.', first.minor, ", and kernels need ",
             kLeastMajor, ".0 or more (CUDA_VISIBLE_DEVICES chooses among several)");
}

}  // namespace

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw DeviceError(cat(what, ": ", cudaGetErrorString(status), " (", cudaGetErrorName(status), ")"));
}

OnDevice::OnDevice(int device) {
  check(cudaGetDevice(&before_), "asking for the current device");
  if (before_ != device) check(cudaSetDevice(device), "choosing a device");
}
OnDevice::~OnDevice() {
  cudaSetDevice(before_);
}

bool built() {
  return true;
}

int devices() {
  static const int usable = count_usable();
  return usable;
}

std::string why_none() {
  return devices() > 0 ? ""
                       : cat("no GPU can be used: ", why_unusable(),
                             "; `witan doctor --gpu` says what is missing, --device cpu trains without");
}

bool can_access_peer(int from, int to) {
  int can = 0;
  if (from != to) check(cudaDeviceCanAccessPeer(&can, from, to), "asking whether GPUs reach each other's memory");
  return from == to || can != 0;
}

const Properties& properties(int device) {
  static Mutex mutex;
  static std::deque<Properties> known WITAN_GUARDED_BY(
      mutex);  // properties do not change: they are read once, and shared by all ranks
  const int count = devices();
  require<DeviceError>(device >= 0 && device < count, "there is no GPU ", device, ": ", count, " can be used. ",
                       why_none());
  const MutexLock lock(mutex);
  while (static_cast<int>(known.size()) <= device) known.push_back(read_properties(static_cast<int>(known.size())));
  return known[static_cast<size_t>(device)];
}

int64_t free_memory(int device) {
  const OnDevice on(device);
  size_t free = 0, total = 0;
  const cudaError_t status = cudaMemGetInfo(&free, &total);
  require<OutOfMemoryError>(
      status != cudaErrorMemoryAllocation, "GPU ", device,
      " has no memory left even for CUDA's own context: `nvidia-smi` shows which processes use it");
  check(status, "asking for free device memory");
  return static_cast<int64_t>(free);
}

std::byte* allocate(int device, int64_t bytes) {
  properties(device);
  const OnDevice on(device);
  void* memory = nullptr;
  const cudaError_t status = cudaMalloc(&memory, static_cast<size_t>(std::max<int64_t>(bytes, 1)));
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // clears the error, which is not sticky: the device can still be used
    throw OutOfMemoryError(
        cat("GPU ", device, " has no room for ", format_bytes(static_cast<double>(bytes)), ": ",
            format_bytes(static_cast<double>(free_memory(device))), " are free of ",
            format_bytes(static_cast<double>(properties(device).memory)),
            "; `witan plan` lists what needs memory, `nvidia-smi` which other processes use the GPU"));
  }
  check(status, "allocating device memory");
  return static_cast<std::byte*>(memory);
}

std::byte* allocate_pinned(int64_t bytes) {
  void* memory = nullptr;
  const cudaError_t status =
      cudaHostAlloc(&memory, static_cast<size_t>(std::max<int64_t>(bytes, 1)), cudaHostAllocPortable);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // clears the error, which is not sticky
    throw OutOfMemoryError(cat("the host has no ", format_bytes(static_cast<double>(bytes)),
                               " of memory to pin: `witan plan` shows how much a run keeps there, `ulimit -l` and the "
                               "container's limit what may be pinned"));
  }
  check(status, "pinning host memory");
  return static_cast<std::byte*>(memory);
}

void release_pinned(std::byte* memory) {
  cudaFreeHost(memory);
}

void copy_in(int device, std::byte* to, const void* from, int64_t bytes) {
  const OnDevice on(device);
  check(cudaMemcpy(to, from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice), "copying to the device");
  // A copy from pageable memory returns when the host's bytes are read, not when the device has them.
  check(cudaStreamSynchronize(cudaStreamLegacy), "copying to the device");
}

void copy_out(int device, void* to, const std::byte* from, int64_t bytes) {
  const OnDevice on(device);
  check(cudaMemcpy(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost), "copying from the device");
}

void release(int device, std::byte* memory) {
  int before = 0;
  cudaGetDevice(&before);
  cudaSetDevice(device);
  cudaFree(memory);
  cudaSetDevice(before);
}

}  // namespace witan::cuda
