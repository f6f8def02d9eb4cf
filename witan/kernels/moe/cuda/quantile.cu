// The choice runs on a warp per token. The quantiles run on a block per expert, which finds the bits of the value from
// the highest down, 8 at a time, by counting the margins that begin with the bits found so far (a radix select).
#include <limits>
#include <type_traits>

#include "witan/kernels/common/step_report.h"
#include "witan/kernels/moe/cuda/choice.cuh"
#include "witan/kernels/moe/selection.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kChooseThreads = 256, kChooseWarps = kChooseThreads / 32;

// Replaces NaN by -inf, so that values have a total order.
template <class A>
__device__ __forceinline__ A ordered(A value) {
  return value != value ? -std::numeric_limits<A>::infinity() : value;
}

template <class A, int kPer>
__global__ void __launch_bounds__(kChooseThreads)
    choose_kernel(int32_t* ids, A* margins, const A* logits, const float* bias, const int32_t* sequence_ids,
                  int64_t tokens, int E, int K) {
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kChooseWarps + threadIdx.x / 32;
  if (token >= tokens) return;
  const int lane = threadIdx.x % 32;
  if (is_padding(sequence_ids, token)) {
    for (int k = lane; k < K; k += 32) ids[token * K + k] = -1;
    if (margins == nullptr) return;
    for (int e = lane; e < E; e += 32) margins[e * tokens + token] = -std::numeric_limits<A>::infinity();
    return;
  }
  A biased[kPer];
#pragma unroll
  for (int j = 0; j < kPer; ++j) {
    const int e = lane + 32 * j;
    biased[j] = e < E ? ordered(logits[token * E + e] + A(bias[e])) : -std::numeric_limits<A>::infinity();
  }
  Candidates<A, kPer> candidates(biased, E);
  A score;
  for (int k = 0; k < K; ++k) {
    const int expert = candidates.take(score);
    if (lane == 0) ids[token * K + k] = expert;
  }
  if (margins == nullptr) return;
  candidates.take(score);
#pragma unroll
  for (int j = 0; j < kPer; ++j) {
    const int e = lane + 32 * j;
    if (e < E) margins[e * tokens + token] = logits[token * E + e] - score;
  }
}

constexpr int kSelectThreads = 1024, kDigits = 256;

// The digit, in a histogram, of the value with this rank counted from the largest; `rank` becomes the rank among the
// values with that digit. Called by one warp.
__device__ int find_digit(const unsigned* histogram, int64_t& rank) {
  const int lane = threadIdx.x % 32;
  unsigned own = 0;  // count of digits 255 - 8 lane down to 248 - 8 lane
  for (int i = 0; i < 8; ++i) own += histogram[kDigits - 1 - 8 * lane - i];
  unsigned before = own;
  for (int apart = 1; apart < 32; apart *= 2) {
    const unsigned other = __shfl_up_sync(kAllLanes, before, apart);
    if (lane >= apart) before += other;
  }
  before -= own;
  int digit = 0;
  int64_t left = rank - before;
  const bool here = left >= 0 && left < own;
  if (here)
    for (digit = kDigits - 1 - 8 * lane; left >= histogram[digit]; --digit) left -= histogram[digit];
  const int owner = __ffs(static_cast<int>(__ballot_sync(kAllLanes, here))) - 1;
  rank = __shfl_sync(kAllLanes, left, owner);
  return __shfl_sync(kAllLanes, digit, owner);
}

template <class A>
__global__ void __launch_bounds__(kSelectThreads)
    quantile_kernel(int64_t* sums, const A* margins, const int64_t* counted, int64_t parts, int64_t tokens, int E,
                    int64_t topk) {
  __shared__ unsigned histogram[kDigits];
  __shared__ Key<A> shared_prefix;
  const int e = static_cast<int>(blockIdx.x);
  const int64_t all = counted ? *counted : parts * tokens;
  if (all == 0) {
    if (threadIdx.x == 0) sums[e] = 0;
    if (threadIdx.x == 0 && e == 0) sums[E] = 0;
    return;
  }
  Key<A> prefix = 0;
  int64_t rank = all * topk / E;
  for (int shift = 8 * static_cast<int>(sizeof(A)) - 8; shift >= 0; shift -= 8) {
    for (int i = threadIdx.x; i < kDigits; i += kSelectThreads) histogram[i] = 0;
    __syncthreads();
    const Key<A> found = shift + 8 < 8 * static_cast<int>(sizeof(A)) ? ~Key<A>(0) << (shift + 8) : Key<A>(0);
    for (int64_t r = 0; r < parts; ++r)
      for (int64_t t = threadIdx.x; t < tokens; t += kSelectThreads) {
        const Key<A> key = key_of(ordered(margins[(r * E + e) * tokens + t]));
        if ((key & found) == prefix) atomicAdd(histogram + (key >> shift & (kDigits - 1)), 1u);
      }
    __syncthreads();
    if (threadIdx.x < 32) {
      const Key<A> digit = static_cast<Key<A>>(find_digit(histogram, rank));
      if (threadIdx.x == 0) shared_prefix = prefix | digit << shift;
    }
    __syncthreads();
    prefix = shared_prefix;
  }
  if (threadIdx.x != 0) return;
  const double limited = fmin(fmax(static_cast<double>(score_of(prefix)), -kMostQuantile), kMostQuantile);
  sums[e] = __double2ll_rn(limited * kQuantileUnit);
  if (e == 0) sums[E] = 1;
}

constexpr int kBiasThreads = 256;

// Runs as one block. Sums of integers are exact in any order.
__global__ void __launch_bounds__(kBiasThreads)
    update_kernel(float* bias, const int64_t* sums, const double* step, int E) {
  __shared__ unsigned long long total;
  if (threadIdx.x == 0) total = 0;
  __syncthreads();
  for (int e = threadIdx.x; e < E; e += kBiasThreads) atomicAdd(&total, static_cast<unsigned long long>(sums[e]));
  __syncthreads();
  if (step[step_value::skip] != 0 || sums[E] == 0) return;
  const double unit = kQuantileUnit * static_cast<double>(sums[E]);
  const double mean = static_cast<double>(static_cast<int64_t>(total)) / E / unit;
  for (int e = threadIdx.x; e < E; e += kBiasThreads)
    bias[e] = static_cast<float>(mean - static_cast<double>(sums[e]) / unit);
}

}  // namespace

void choose_by_quantiles(Stream& stream, const Tensor& ids, const Tensor& margins, const Tensor& logits,
                         const Tensor& bias, const Tensor& sequence_ids) {
  const int64_t T = logits.size(0), E = logits.size(1), K = ids.size(1);
  if (T == 0) return;
  const auto blocks = static_cast<unsigned>((T + kChooseWarps - 1) / kChooseWarps);
  dispatch_accumulator(logits.dtype(), [&]<class A>() {
    dispatch_experts(E, K, [&]<int kPer>() {
      choose_kernel<A, kPer><<<blocks, kChooseThreads, 0, native(stream)>>>(
          ptr<int32_t>(ids), ptr<A>(margins), ptr<const A>(logits), ptr<const float>(bias),
          ptr<const int32_t>(sequence_ids), T, static_cast<int>(E), static_cast<int>(K));
    });
  });
}

void quantile_sums(Stream& stream, const Tensor& sums, const Tensor& margins, int64_t topk, const Tensor& tokens) {
  const int64_t R = margins.size(0), E = margins.size(1), T = margins.size(2);
  dispatch_accumulator(margins.dtype(), [&]<class A>() {
    quantile_kernel<<<static_cast<unsigned>(E), kSelectThreads, 0, native(stream)>>>(
        ptr<int64_t>(sums), ptr<const A>(margins), ptr<const int64_t>(tokens), R, T, static_cast<int>(E), topk);
  });
}

void update_quantile_bias(Stream& stream, const Tensor& bias, const Tensor& sums, const Tensor& step) {
  update_kernel<<<1, kBiasThreads, 0, native(stream)>>>(ptr<float>(bias), ptr<const int64_t>(sums),
                                                        ptr<const double>(step), static_cast<int>(bias.elements()));
}

}  // namespace witan::kernels::cuda
