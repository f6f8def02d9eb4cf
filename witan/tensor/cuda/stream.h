// What CUDA code needs of a stream. Included by CUDA builds alone.
#pragma once

#include <cuda_runtime_api.h>

#include "witan/tensor/cuda.h"
#include "witan/tensor/device.h"

namespace witan::cuda {

inline cudaStream_t native(Stream& stream) {
  return static_cast<cudaStream_t>(stream.queue()->native());
}

// Throws DeviceError: what failed, and CUDA's words.
void check(cudaError_t status, const char* what);

// Makes `device` the calling thread's own until the guard goes.
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
