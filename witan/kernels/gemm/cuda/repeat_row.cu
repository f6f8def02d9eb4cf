#include "witan/kernels/common/cuda/copy.cuh"
#include "witan/kernels/gemm/gemm.h"

namespace witan::kernels::cuda {
namespace {

template <class Index>
struct Repeated {
  Index row;
  __device__ int64_t operator()(Index i) const { return i % row; }
};

}  // namespace

void repeat_row(Stream& stream, const Tensor& y, const Tensor& row) {
  copy_rows(stream, y, row, row.bytes(),
            [&]<class Index>(int64_t units) { return Repeated<Index>{static_cast<Index>(units)}; });
}

}  // namespace witan::kernels::cuda
