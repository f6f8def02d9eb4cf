// Measured peak speeds, of which Witan prints shares.
#pragma once

#include "witan/base/threads/threads.h"
#include "witan/tensor/device.h"

namespace witan::kernels {

// GFLOP/s of float32 fused multiply-adds on registers, by all threads of the pool together. Takes about 0.1 s.
double measure_fma_gflops(ThreadPool& pool);
// GB/s of reading one large array and writing another, read plus written. Takes about 0.1 s.
double measure_copy_gbytes(ThreadPool& pool);

// The share of the time in which the pool's threads have a core while they want one: 1 on an idle machine. Takes about
// 0.03 s.
double measure_core_share(ThreadPool& pool);

// Peak speeds of a stream's device, of which `witan bench` prints shares.
struct DeviceCeilings {
  // FLOP/s: products of 8192 x 8192 matrices on a GPU; float32 multiply-adds between registers by all threads of the
  // stream's pool on a CPU.
  double flops = 0;
  double bytes = 0;  // bytes/s of copying a large array of random values, read plus written
};

// Takes less than a second, and on a GPU 2 GiB of the stream's arena. Throws OutOfMemoryError.
DeviceCeilings measure_device(Stream& stream, DType dtype = DType::bf16);

}  // namespace witan::kernels
