// Memory of a GPU that several processes of a host use: the one that allocated it exports a handle, others open it.
//
// These are CUDA's IPC handles: 64 bytes that any message carries, which are opened for GPUs that the opening process
// does not see too (CUDA_VISIBLE_DEVICES). The driver's newer handles of virtual memory are file descriptors, which
// only Unix sockets carry, and would have every arena made of mapped pieces; they would give nothing more here.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace witan::cuda {

// CUDA shares whole blocks of this size with a handle: what is exported has its blocks for itself.
inline constexpr int64_t kSharedBlock = int64_t{2} << 20;

using MemoryHandle = std::array<int64_t, 8>;

// Of all of an allocation, which begins at `base`. It must stay until all have closed what they opened of it. Throws
// DeviceError.
MemoryHandle export_memory(int device, std::byte* base);

// Another process's allocation, as kernels on `device` reach it. Closed when it is destroyed, which work of the device
// that uses it must not outlast.
class MappedMemory {
 public:
  // Throws DeviceError where the device cannot reach it.
  MappedMemory(int device, const MemoryHandle& handle);
  ~MappedMemory();
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;

  std::byte* base() const { return base_; }

 private:
  int device_;
  std::byte* base_ = nullptr;
};

}  // namespace witan::cuda
