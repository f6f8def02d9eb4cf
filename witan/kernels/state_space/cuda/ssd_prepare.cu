// The decays of tokens within their chunks, which the other kernels read side by side.
#include "witan/kernels/state_space/cuda/ssd_tiles.cuh"

namespace witan::kernels::cuda {
namespace {

constexpr int kPrepareThreads = 256, kPrepareHeads = 32;
constexpr float kLog2e = 1.44269504088896340736f;

// A block has the chunks n, n + gridDim.x … of a row and 32 heads, a warp four of them.
__global__ void __launch_bounds__(kPrepareThreads) ssd_prepare_kernel(SsdTensors in) {
  __shared__ float dt[kTileL][kPrepareHeads + 1], a[kTileL][kPrepareHeads + 1];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = warp_lane();
  const int first_head = static_cast<int>(blockIdx.y) * kPrepareHeads;
  const int64_t b = blockIdx.z;
  const int32_t* const table = in.chunks + b * (in.S + 2);
  for (int n = static_cast<int>(blockIdx.x); n < table[0]; n += static_cast<int>(gridDim.x)) {
    const ChunkSpan span = chunk_span(table[1 + n], table[2 + n]);
    for (int i = warp; i < kTileL; i += kPrepareThreads / 32) {
      const int64_t at = (b * in.S + span.begin + i) * in.H + first_head + lane;
      const bool inside = i < span.L && first_head + lane < in.H;
      dt[i][lane] = inside ? in.dt[at] : 0.0f;
      a[i][lane] = inside ? in.a[at] : 0.0f;
    }
    __syncthreads();
    for (int h = warp; h < kPrepareHeads && first_head + h < in.H; h += kPrepareThreads / 32) {
      const float2 gamma = scan_tokens(a[lane][h], a[lane + 32][h]);
      const float last = __shfl_sync(0xffffffffu, gamma.y, 31);  // tokens beyond the chunk's have a = 0
      SsdScales* const to = in.scales + (b * in.H + first_head + h) * in.S + span.begin;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = lane + 32 * half;
        const float sum = half == 0 ? gamma.x : gamma.y;
        if (i < span.L) to[i] = {sum * kLog2e, dt[i][h], __expf(sum), __expf(last - sum)};
      }
    }
    __syncthreads();
  }
}

}  // namespace

SsdTensors ssd_tensors(const SsdInputs& in, const SsdMemory& memory) {
  const SsdHeads& n = in.heads;
  return {ptr<Bf16>(in.xbc),
          ptr<float>(in.dt),
          ptr<float>(in.a),
          ptr<float>(in.D),
          ptr<int32_t>(in.sequence_ids),
          ptr<int32_t>(memory.chunks),
          ptr<SsdScales>(memory.scales),
          ptr<Bf16>(memory.states),
          ptr<Bf16>(memory.state_gradients),
          ptr<float>(memory.skips),
          in.xbc.size(1),
          n.channels(),
          n.inner(),
          n.of_groups(),
          (in.xbc.size(1) + kSsdChunk - 1) / kSsdChunk,
          static_cast<int>(n.heads),
          static_cast<int>(n.groups),
          static_cast<int>(n.head_dim),
          static_cast<int>(n.state_dim),
          static_cast<int>(n.heads / n.groups)};
}

void ssd_prepare(Stream& stream, const SsdInputs& in, const SsdMemory& memory) {
  const SsdTensors tensors = ssd_tensors(in, memory);
  fill_chunk_table(stream, tensors.chunks, tensors.ids, in.xbc.size(0), tensors.S);
  const dim3 grid(static_cast<unsigned>(tensors.slots),
                  static_cast<unsigned>((tensors.H + kPrepareHeads - 1) / kPrepareHeads),
                  static_cast<unsigned>(in.xbc.size(0)));
  ssd_prepare_kernel<<<grid, kPrepareThreads, 0, native(stream)>>>(tensors);
}

}  // namespace witan::kernels::cuda
