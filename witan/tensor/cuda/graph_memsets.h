// Memsets of a recorded graph, as kernels.
#pragma once

#include <cuda_runtime_api.h>

namespace witan::cuda {

// Puts a kernel in the place of each small memset of a graph. Kernels of a graph follow each other within a tenth of a
// microsecond; before and after a memset the device does nothing for some four, and libraries record one of a few bytes
// with many of their calls. Throws DeviceError.
void memsets_to_kernels(cudaGraph_t graph);

}  // namespace witan::cuda
