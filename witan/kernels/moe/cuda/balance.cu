#include <type_traits>

#include "witan/kernels/common/cuda/common.cuh"
#include "witan/kernels/moe/router.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kWarps = 32;

// TokenCount on the device.
struct Tokens {
  int64_t rows;
  const int64_t* counted;  // [1], or null

  explicit Tokens(const TokenCount& tokens) : rows(tokens.rows), counted(ptr<const int64_t>(tokens.counted)) {}
  __device__ int64_t count() const { return counted ? *counted : rows; }
};

// E / (tokens N), or 0 without tokens, on all threads of a block. Sums of integers below 2^53 are exact in any order.
__device__ double scale_of(const int64_t* counts, int experts, const Tokens& of, double* of_warps) {
  const int64_t tokens = of.count();
  __shared__ double scale;
  double sum = 0;
  for (int e = threadIdx.x; e < experts; e += kWarps * 32) sum += static_cast<double>(counts[e]);
  sum = block_sum(sum, of_warps);
  if (threadIdx.x == 0) scale = tokens > 0 && sum > 0 ? experts / (static_cast<double>(tokens) * sum) : 0.0;
  __syncthreads();
  return scale;
}

template <class A>
__global__ void __launch_bounds__(kWarps * 32)
    loss_kernel(A* loss, const A* sums, const int64_t* counts, Tokens tokens, int64_t loads, int experts) {
  __shared__ double of_warps[kWarps];
  const double scale = scale_of(counts, experts, tokens, of_warps);
  double sum = 0;
  for (int64_t i = threadIdx.x; i < loads; i += kWarps * 32)
    sum += static_cast<double>(sums[i]) * static_cast<double>(counts[i % experts]);
  sum = block_sum(sum, of_warps);
  if (threadIdx.x == 0) *loss = static_cast<A>(sum * scale);
}

template <class A>
__global__ void __launch_bounds__(kWarps * 32)
    backward_kernel(A* dprobs, const A* dloss, const int64_t* counts, Tokens tokens, int experts, bool accumulate) {
  __shared__ double of_warps[kWarps];
  const double scale = static_cast<double>(*dloss) * scale_of(counts, experts, tokens, of_warps);
  for (int e = threadIdx.x; e < experts; e += kWarps * 32)
    dprobs[e] = (accumulate ? dprobs[e] : A(0)) + static_cast<A>(scale * static_cast<double>(counts[e]));
}

}  // namespace

void balance_loss(Stream& stream, const Tensor& loss, const Tensor& sums, const Tensor& counts,
                  const TokenCount& tokens) {
  dispatch_accumulator(sums.dtype(), [&]<class A>() {
    loss_kernel<<<1, kWarps * 32, 0, native(stream)>>>(ptr<A>(loss), ptr<const A>(sums), ptr<const int64_t>(counts),
                                                       Tokens(tokens), sums.elements() - kTokenSums,
                                                       static_cast<int>(counts.elements()));
  });
}

void balance_backward(Stream& stream, const Tensor& dprobs, const Tensor& dloss, const Tensor& counts,
                      const TokenCount& tokens, Write write) {
  dispatch_accumulator(dprobs.dtype(), [&]<class A>() {
    backward_kernel<<<1, kWarps * 32, 0, native(stream)>>>(
        ptr<A>(dprobs), ptr<const A>(dloss), ptr<const int64_t>(counts), Tokens(tokens),
        static_cast<int>(counts.elements()), write == Write::accumulate);
  });
}

}  // namespace witan::kernels::cuda
