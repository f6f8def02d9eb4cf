// What a GPU does at most, on random numbers: zeros would flatter it.
#pragma once

#include "witan/planner/speeds/ceilings.h"

namespace witan {

// fma_flops of all ranks' GPUs together: products of 8192^3 in the load's dtype (2048^3 in float64), as the model's own
// are made; copy_bytes: a copy of 1 GiB within the GPU, read plus written. Medians. Needs 3 GiB of GPU 0. Throws
// DeviceError, OutOfMemoryError.
Ceilings measure_gpu_ceilings(const Load& load);

}  // namespace witan
