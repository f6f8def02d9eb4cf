// The operands of the lightning indexer's kernels, and those on tensor cores.
#pragma once

#include "witan/kernels/attention/cuda/seen_slots.cuh"

namespace witan::kernels::cuda {

template <class T>
struct IndexCall {
  explicit IndexCall(const IndexInputs& in)
      : q(ptr<const T>(in.q)),
        w(ptr<const T>(in.w)),
        k(ptr<const T>(in.k)),
        tokens(static_cast<int>(in.q.size(0))),
        heads(static_cast<int>(in.q.size(1))),
        d(static_cast<int>(in.q.size(2))),
        scale(static_cast<Acc<T>>(in.scale)),
        view(in.where) {}

  __device__ const T* query(int64_t t, int h) const { return q + (t * heads + h) * d; }
  __device__ const T* key(int64_t row, int j) const { return k + (row * view.slots + j) * d; }

  const T *q, *w, *k;
  int tokens, heads, d;
  Acc<T> scale;
  SlotView view;
};

// Whether tensor cores compute the indexer's products: of 16-bit heads of at most 128 channels, a multiple of 8.
inline bool index_on_tensor_cores(const IndexInputs& in) {
  return size_of(in.q.dtype()) == 2 && in.q.size(2) <= 128 && in.q.size(2) % 8 == 0;
}
// The kernels for that.
void index_scores_by_tiles(Stream& stream, const Tensor& scores, const IndexInputs& in);
void index_gradients_by_tiles(Stream& stream, const IndexGradients& to, const Tensor& dscores, const IndexInputs& in);

}  // namespace witan::kernels::cuda
