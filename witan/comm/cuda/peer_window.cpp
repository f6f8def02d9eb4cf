#include "witan/comm/cuda/peer_window.h"

#include <cstring>

#include "witan/tensor/cuda/stream.h"

namespace witan::cuda {
namespace {

static_assert(sizeof(MemoryHandle) == sizeof(cudaIpcMemHandle_t));

// Clears the error, so that a later check does not report it again.
void check_alone(cudaError_t status, const char* what) {
  if (status != cudaSuccess) cudaGetLastError();
  check(status, what);
}

}  // namespace

MemoryHandle export_memory(int device, std::byte* base) {
  const OnDevice on(device);
  cudaIpcMemHandle_t made{};
  check_alone(cudaIpcGetMemHandle(&made, base), "exporting a GPU's memory to other processes");
  MemoryHandle handle{};
  std::memcpy(handle.data(), &made, sizeof handle);
  return handle;
}

MappedMemory::MappedMemory(int device, const MemoryHandle& handle) : device_(device) {
  const OnDevice on(device);
  cudaIpcMemHandle_t given{};
  std::memcpy(&given, handle.data(), sizeof given);
  void* base = nullptr;
  check_alone(cudaIpcOpenMemHandle(&base, given, cudaIpcMemLazyEnablePeerAccess),
              "opening the GPU memory of another process");
  base_ = static_cast<std::byte*>(base);
}

MappedMemory::~MappedMemory() {
  int before = 0;
  cudaGetDevice(&before);
  cudaSetDevice(device_);
  if (cudaIpcCloseMemHandle(base_) != cudaSuccess) cudaGetLastError();
  cudaSetDevice(before);
}

}  // namespace witan::cuda
