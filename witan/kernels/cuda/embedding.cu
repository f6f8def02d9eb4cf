#include "witan/kernels/cuda/copy.cuh"
#include "witan/kernels/embedding.h"

namespace witan::kernels::cuda {
namespace {

template <class Index>
struct Looked {
  Index row;
  const int32_t* ids;
  __device__ int64_t operator()(Index i) const {
    const Index t = i / row;
    return static_cast<int64_t>(ids[t]) * row + (i - t * row);
  }
};

}  // namespace

void embedding_forward(Stream& stream, const Tensor& y, const Tensor& ids, const Tensor& w) {
  copy_rows(stream, y, w, w.size(1) * size_of(w.dtype()), [&]<class Index>(int64_t row) {
    return Looked<Index>{static_cast<Index>(row), ptr<const int32_t>(ids)};
  });
}

}  // namespace witan::kernels::cuda
