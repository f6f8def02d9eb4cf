// Replaces memsets of a CUDA graph by kernels.
#pragma once

#include <cuda_runtime_api.h>

namespace witan::cuda {

// Replaces each small memset of a graph by a kernel. Kernels of a graph follow each other within a tenth of a
// microsecond; before and after a memset the device idles for about four, and libraries record one of a few bytes with
// many of their calls. Throws DeviceError.
void memsets_to_kernels(cudaGraph_t graph);

}  // namespace witan::cuda
