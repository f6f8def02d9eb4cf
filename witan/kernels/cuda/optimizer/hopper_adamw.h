// AdamW by Hopper's copy engine: whole chunks of every operand come into the block's memory and go back from there, so
// that memory sees long runs of addresses instead of every warp's own.
#pragma once

#include "witan/kernels/cuda/optimizer/adamw.cuh"

namespace witan::kernels::cuda {

// As adamw_kernel; T and G are float or bfloat16.
template <class T, class G>
void hopper_adamw(Stream& stream, const AdamWRow* table, const AdamWRow& only, int rows, int64_t chunks,
                  const double* step, const Betas& betas);

}  // namespace witan::kernels::cuda
