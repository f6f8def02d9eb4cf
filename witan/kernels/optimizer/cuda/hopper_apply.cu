#include "witan/kernels/grouped/cuda/batched_gemm_hopper.cuh"
#include "witan/kernels/optimizer/cuda/gram_products.h"

namespace witan::kernels::cuda {
namespace {

template <Major kMajorB>
void launch(Stream& stream, const Tensor& y, const Tensor& a, const Tensor& b, const ApplyArgs& args) {
  using Both = OperandLayout<Grouped::m, Major::k, kMajorB, Columns::adjacent, Element::float16>;
  const BatchedShape shape{static_cast<int>(y.size(0)), static_cast<int>(y.size(1)), static_cast<int>(y.size(2)),
                           static_cast<int>(a.size(2)), false};
  const ScaledStore store{ptr<__nv_bfloat16>(y), y.size(2), args.scale, args.last};
  const Tensor M = a.reshape({a.size(0) * a.size(1), a.size(2)});
  if (y.size(2) <= SquareTile::kTileN)
    launch_batched_gemm<SquareTile, Both>(stream, M, b, shape, store);
  else
    launch_batched_gemm<TileShape<128, 256, Consumers::cooperative, Multicast::b>, Both>(stream, M, b, shape, store);
}

}  // namespace

void hopper_apply(Stream& stream, const Tensor& y, const Tensor& q, const Tensor& x, const ApplyArgs& args) {
  if (x.size(1) <= x.size(2))
    launch<Major::mn>(stream, y, q, x, args);
  else
    launch<Major::k>(stream, y, x, q, args);
}

}  // namespace witan::kernels::cuda
