#include "witan/kernels/common/cuda/copy.cuh"
#include "witan/kernels/vocabulary/vocabulary.h"

namespace witan::kernels::cuda {
namespace {

template <class Index>
struct Looked {
  Index row;
  const int32_t* ids;
  uint32_t begin, rows;
  __device__ int64_t operator()(Index i) const {
    const Index t = i / row;
    const uint32_t of_table = static_cast<uint32_t>(ids[t]) - begin;  // ids before `begin` come out too large
    return of_table < rows ? static_cast<int64_t>(of_table * static_cast<uint64_t>(row) + (i - t * row)) : -1;
  }
};

}  // namespace

void embedding_forward(Stream& stream, const Tensor& y, const Tensor& ids, const Tensor& w, int64_t begin) {
  copy_rows(stream, y, w, w.size(1) * size_of(w.dtype()), [&]<class Index>(int64_t row) {
    return Looked<Index>{static_cast<Index>(row), ptr<const int32_t>(ids), static_cast<uint32_t>(begin),
                         static_cast<uint32_t>(w.size(0))};
  });
}

}  // namespace witan::kernels::cuda
