// What CUDA code needs of a stream. Included by CUDA builds only.
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

}  // namespace witan::cuda
