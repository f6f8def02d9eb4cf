// Programmatic dependent launch: a kernel begins while the previous one of its stream still runs, so that its launch,
// and the reading of what no kernel writes, take no time of their own. Generation has some 150 kernels a token, most of
// which take little longer than their launch.
//
// Every block of a kernel that is launched so calls wait_for_earlier() before it reads or writes anything that another
// kernel writes or reads, and no block may return without: the next kernel relies on that to come after all earlier
// ones. Without EarlyLaunches, and on GPUs that cannot, both calls do nothing and launch_early() is an ordinary launch.
#pragma once

#include "witan/kernels/common/cuda/common.cuh"
#include "witan/kernels/common/early_launches.h"

namespace witan::kernels::cuda {

// Waits until all earlier kernels of the stream have ended and their results can be read.
__device__ __forceinline__ void wait_for_earlier() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The stream's next kernel may begin when all blocks have called this. Kernels with much to read call it after
// wait_for_earlier(), others first, so that the weights of the next product are read meanwhile.
__device__ __forceinline__ void let_next_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

template <class... Parameters, class... Arguments>
void launch_early(Stream& stream, void (*kernel)(Parameters...), const dim3& blocks, int threads, int64_t shared,
                  const Arguments&... arguments) {
  cudaLaunchAttribute attributes[2]{};
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared);
  config.stream = native(stream);
  config.attrs = attributes;
  if (EarlyLaunches::on() && is_hopper(stream)) {
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    // Two kernels share a multiprocessor only if they divide its memory into cache and shared memory alike.
    attributes[1].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
    attributes[1].val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
    config.numAttrs = 2;
  }
  witan::cuda::check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), "launching a kernel");
}

}  // namespace witan::kernels::cuda
