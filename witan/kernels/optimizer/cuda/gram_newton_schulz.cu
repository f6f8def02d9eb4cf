// Newton-Schulz iterations on Gram matrices in float16. X is stored multiplied by kScale: its entries are about 1 /
// sqrt(elements) at first, and those of its Gram matrix smaller still, where float16 has fewer digits.
#include <cuda_fp16.h>

#include <cmath>

#include "witan/kernels/common/cuda/common.cuh"
#include "witan/kernels/common/cuda/tensor_map.h"
#include "witan/kernels/optimizer/cuda/gram_products.h"
#include "witan/kernels/optimizer/gram_newton_schulz.h"
#include "witan/kernels/optimizer/optimizer.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 256, kPackOf = 8;
constexpr double kScale = 32, kGramScale = kScale * kScale;

// In place: x [n, elements] of bfloat16 becomes kScale x / (margin ||x||_F + eps) of float16; `elements` is a multiple
// of the pack. One block per chunk of each matrix.
__global__ void __launch_bounds__(kThreads)
    scale_to_float16_kernel(__nv_bfloat16* x, const double* sums, int64_t elements, int64_t chunks, double margin,
                            double eps) {
  const int64_t matrix = blockIdx.x / chunks, first = blockIdx.x % chunks * kChunkElements;
  __shared__ float shared;
  if (threadIdx.x == 0) {
    double squares = 0;
    for (int64_t c = 0; c < chunks; ++c) squares += sums[2 * (matrix * chunks + c)];
    shared = static_cast<float>(kScale / (margin * sqrt(squares) + eps));
  }
  __syncthreads();
  const float factor = shared;
  __nv_bfloat16* const out = x + matrix * elements + first;
  const int64_t packs = min(kChunkElements, elements - first) / kPackOf;
  for (int64_t u = threadIdx.x; u < packs; u += kThreads) {
    const auto from = load_pack<__nv_bfloat16, kPackOf>(out + u * kPackOf);
    Pack<__half, kPackOf> to;
#pragma unroll
    for (int i = 0; i < kPackOf; ++i) to.at[i] = __float2half_rn(factor * convert<float>(from.at[i]));
    store_pack(reinterpret_cast<__half*>(out + u * kPackOf), to);
  }
}

struct Products {
  Stream& stream;

  void gram(const Tensor& r, const Tensor& x) const { hopper_gram(stream, r, x); }
  void polynomial(const Tensor& p, const Tensor& r, const NewtonSchulzStep& step) const {
    hopper_symmetric_product(stream, p, r, r, r,
                             {static_cast<float>(step.c / (kGramScale * kGramScale)),
                              static_cast<float>(step.b / kGramScale), static_cast<float>(step.a)});
  }
  void product(const Tensor& d, const Tensor& a, const Tensor& b) const {
    hopper_symmetric_product(stream, d, a, b, {}, {});
  }
  void apply(const Tensor& y, const Tensor& q, const Tensor& x, bool last) const {
    hopper_apply(stream, y, q, x, {last ? static_cast<float>(1 / kScale) : 1.0f, last});
  }
};

}  // namespace

bool has_hopper_gram(Stream& stream) {
  return is_hopper(stream);
}

Tensor hopper_gram_newton_schulz(Stream& stream, const GramTensors& t, const GramArgs& args) {
  if (t.x.elements() == 0) return t.x;
  assert(can_map(t.x) && can_map(t.other) && can_map(t.grams));
  const int64_t elements = t.x.elements() / t.x.size(0), chunks = chunks_of(elements);
  static_assert(kChunkElements % kPackOf == 0);
  scale_to_float16_kernel<<<static_cast<unsigned>(t.x.size(0) * chunks), kThreads, 0, native(stream)>>>(
      ptr<__nv_bfloat16>(t.x), ptr<double>(t.sums), elements, chunks, args.margin, args.eps);
  return iterate_on_grams(Products{stream}, args.steps, steps_of_gram_run(2), t.x, t.other, t.grams);
}

}  // namespace witan::kernels::cuda
