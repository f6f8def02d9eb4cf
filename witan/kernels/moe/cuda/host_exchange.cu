#include "witan/kernels/common/cuda/common.cuh"
#include "witan/kernels/moe/dispatch.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kNone = 0x7fffffff;  // no host has this number

// One thread per token: it has few experts, which come from the L1 cache after the first read.
__global__ void __launch_bounds__(kThreads)
    choose_hosts_kernel(int32_t* hosts, const int32_t* ids, int64_t tokens, int topk, int copies, int experts) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t t = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; t < tokens; t += stride) {
    const int32_t* of_token = ids + t * topk;
    int last = -1;
    for (int c = 0; c < copies; ++c) {
      int next = kNone;
      for (int k = 0; k < topk; ++k) {
        const int32_t id = of_token[k];
        const int host = id < 0 ? kNone : id / experts;
        if (host > last && host < next) next = host;
      }
      hosts[t * copies + c] = next == kNone ? -1 : next;
      last = next;
    }
  }
}

// One thread per number.
__global__ void __launch_bounds__(kThreads)
    number_on_hosts_kernel(int32_t* numbers, const int32_t* ids, const int32_t* hosts, const int64_t* source, int64_t n,
                           int topk, int copies, int experts) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n; i += stride) {
    const int64_t from = source[i / topk];
    int number = 0;
    if (from >= 0) {
      const int32_t id = ids[from / copies * topk + i % topk];
      const int on_host = id - hosts[from] * experts;
      if (id >= 0 && on_host >= 0 && on_host < experts) number = on_host + 1;
    }
    numbers[i] = number;
  }
}

}  // namespace

void choose_hosts(Stream& stream, const Tensor& hosts, const Tensor& ids, int64_t experts) {
  const int64_t tokens = ids.size(0);
  if (tokens == 0) return;
  choose_hosts_kernel<<<blocks_for(stream, (tokens + kThreads - 1) / kThreads, 8), kThreads, 0, native(stream)>>>(
      ptr<int32_t>(hosts), ptr<int32_t>(ids), tokens, static_cast<int>(ids.size(1)), static_cast<int>(hosts.size(1)),
      static_cast<int>(experts));
}

void number_on_hosts(Stream& stream, const Tensor& numbers, const Tensor& ids, const Tensor& hosts,
                     const Tensor& source, int64_t experts) {
  const int64_t n = numbers.elements();
  if (n == 0) return;
  number_on_hosts_kernel<<<blocks_for(stream, (n + kThreads - 1) / kThreads, 8), kThreads, 0, native(stream)>>>(
      ptr<int32_t>(numbers), ptr<int32_t>(ids), ptr<int32_t>(hosts), ptr<int64_t>(source), n,
      static_cast<int>(ids.size(1)), static_cast<int>(hosts.size(1)), static_cast<int>(experts));
}

}  // namespace witan::kernels::cuda
