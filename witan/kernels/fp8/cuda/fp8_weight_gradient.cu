#include "witan/kernels/fp8/cuda/fp8_gemm_hopper.cuh"

namespace witan::kernels::cuda {
namespace {

constexpr int kPiece = 64;  // columns of float32 results that a warp stages at a time, so that three stages fit

struct Problem {
  const Fp8Columns &dy, &x;
  const RowGroups& groups;
};

template <class Epilogue>
void launch(Stream& stream, const Tensor& dw, const Problem& p) {
  with_fp8_shape<ColumnScales>(p.dy.format, dw.size(1) * dw.size(0), dw.size(0), dw.size(2), [&]<class Shape>() {
    launch_fp8_weight_gradient<Shape, Epilogue>(stream, dw, p.dy, p.x, p.groups);
  });
}

bool stores_whole_packs(const Tensor& dw) {
  const int64_t pack = 16 / size_of(dw.dtype());
  return reinterpret_cast<uintptr_t>(dw.raw()) % 16 == 0 && dw.stride(0) % pack == 0 && dw.stride(1) % pack == 0;
}

}  // namespace

void fp8_weight_gradient(Stream& stream, const Tensor& dw, Write write, const Fp8Columns& dy, const Fp8Columns& x,
                         const RowGroups& groups) {
  const bool add = write == Write::accumulate, packs = stores_whole_packs(dw);
  assert(x.format == Fp8Format::e4m3);
  require_fp8(stream, dw.size(0));
  if (x.values.elements() == 0) {
    if (!add) stream.zero(dw);
    return;
  }
  const Problem p{dy, x, groups};
  using Bf16 = __nv_bfloat16;
  if (dw.dtype() == DType::f32) {
    if (!packs)
      return add ? launch<StoreEach<float, true>>(stream, dw, p) : launch<StoreEach<float, false>>(stream, dw, p);
    return add ? launch<BulkStore<true, kPiece>>(stream, dw, p) : launch<BulkStore<false, kPiece>>(stream, dw, p);
  }
  assert(dw.dtype() == DType::bf16);
  if (!packs) return add ? launch<StoreEach<Bf16, true>>(stream, dw, p) : launch<StoreEach<Bf16, false>>(stream, dw, p);
  add ? launch<Add<>>(stream, dw, p) : launch<Store<Bf16>>(stream, dw, p);
}

}  // namespace witan::kernels::cuda
