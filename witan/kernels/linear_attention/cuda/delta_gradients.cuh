// The kernel that runs over chunks to compute gradients of keys, queries, values and decays, by one class for decays of
// heads and one for decays of channels.
#pragma once

#include "witan/kernels/linear_attention/cuda/delta_tiles.cuh"

namespace witan::kernels::cuda {

inline constexpr int kGradientThreads = 512;

struct GradientOutputs {
  Bf16* dqkv;
  float *dg, *dbeta;
  const Bf16* d_o;
};

// Gradients: a class that is made of (inputs, outputs, shared memory), and whose run() takes a chunk's span.
template <class Gradients>
__global__ void __launch_bounds__(kGradientThreads) delta_gradients_kernel(DeltaTensors in, GradientOutputs to) {
  extern __shared__ unsigned char memory[];
  Gradients gradients(in, to, memory);
  const int32_t* const table = in.chunks + blockIdx.z * (in.S + 2);
  for (int n = static_cast<int>(blockIdx.x); n < table[0]; n += static_cast<int>(gridDim.x))
    gradients.run(chunk_span(table[1 + n], table[2 + n]));
}

// Launches a block for each slot of chunks, head (of keys or of values) and row, with Gradients<kColumns>::kBytes of
// shared memory.
template <template <int> class Gradients>
void launch_gradients(Stream& stream, const DeltaGradients& to, const Tensor& d_o, const DeltaInputs& in,
                      int64_t heads) {
  const DeltaTensors tensors = delta_tensors(in, to.memory);
  const GradientOutputs outputs{ptr<Bf16>(to.dqkv), ptr<float>(to.dg), ptr<float>(to.dbeta), ptr<Bf16>(d_o)};
  const dim3 grid(static_cast<unsigned>(tensors.slots), static_cast<unsigned>(heads),
                  static_cast<unsigned>(in.qkv.size(0)));
  dispatch_key_tile(tensors.dk, [&]<int kColumns>() {
    const auto kernel = delta_gradients_kernel<Gradients<kColumns>>;
    take_shared_memory(stream, "gated_delta", kernel, Gradients<kColumns>::kBytes);
    kernel<<<grid, kGradientThreads, Gradients<kColumns>::kBytes, native(stream)>>>(tensors, outputs);
  });
}

}  // namespace witan::kernels::cuda
