// CUDA's side of streams, for CUDA builds only.
#pragma once

#include <cuda_runtime_api.h>

#include "witan/tensor/cuda.h"
#include "witan/tensor/device.h"

namespace witan::cuda {

inline cudaStream_t native(Stream& stream) {
  return static_cast<cudaStream_t>(stream.queue()->native());
}

// Throws DeviceError with what failed and CUDA's message.
void check(cudaError_t status, const char* what);

// Makes `device` current for the calling thread until the guard is destroyed.
class OnDevice {
 public:
  explicit OnDevice(int device);
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = 0;
};

// Replaces each small memset of a graph by a kernel. Kernels of a graph follow each other within a tenth of a
// microsecond; the device idles for about four microseconds before and after a memset, and many library calls record
// one of a few bytes. Throws DeviceError.
void memsets_to_kernels(cudaGraph_t graph);

}  // namespace witan::cuda
