// What this machine can do at most, measured: the denominators of every share that Witan prints.
#pragma once

#include "witan/base/threads.h"

namespace witan::kernels {

// GFLOP/s of float32 fused multiply-adds on registers, by all threads of the pool together. Takes about 0.1 s.
double measure_fma_gflops(ThreadPool& pool);
// GB/s of reading one large array and writing another, read plus written. Takes about 0.1 s.
double measure_copy_gbytes(ThreadPool& pool);

// Of the time for which the pool's threads want a core, the share in which they have one: 1 on a machine that does
// nothing else. Takes about 0.03 s.
double measure_core_share(ThreadPool& pool);

}  // namespace witan::kernels
