// What the device of a stream does at most, measured there: the denominators of `witan bench`.
#pragma once

#include "witan/tensor/device.h"

namespace witan::kernels {

struct DeviceCeilings {
  // FLOP/s: products of 8192 x 8192 matrices on a GPU; float32 multiply-adds between registers by all threads of the
  // stream's pool on a CPU.
  double flops = 0;
  double bytes = 0;  // bytes/s of copying a large array of random values, read plus written
};

// Takes less than a second, and on a GPU 2 GiB of the stream's arena. Throws OutOfMemoryError.
DeviceCeilings measure_device(Stream& stream, DType dtype = DType::bf16);

}  // namespace witan::kernels
