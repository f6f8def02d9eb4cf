#include "witan/kernels/grouped/cuda/batched_gemm_hopper.cuh"
#include "witan/kernels/optimizer/cuda/gram_products.h"

namespace witan::kernels::cuda {
namespace {

using Halves = SymmetricStore<Grouped::m>;
using Square = OperandLayout<Grouped::m, Major::k, Major::k, Columns::adjacent, Element::float16>;

void launch(Stream& stream, const Tensor& a, const Tensor& b, const Halves& store) {
  const BatchedShape shape{static_cast<int>(b.size(0)), store.size, store.size, static_cast<int>(b.size(2)), true};
  launch_batched_gemm<SquareTile, Square>(stream, a.reshape({a.size(0) * a.size(1), a.size(2)}), b, shape, store);
}

}  // namespace

void hopper_symmetric_product(Stream& stream, const Tensor& d, const Tensor& a, const Tensor& b, const Tensor& c,
                              const SymmetricScales& scales) {
  launch(stream, a, b,
         {ptr<__nv_bfloat16>(d), ptr<__nv_bfloat16>(c), static_cast<int>(d.size(2)), scales.alpha, scales.beta,
          scales.identity});
}

void hopper_gram(Stream& stream, const Tensor& r, const Tensor& x) {
  const int m = static_cast<int>(r.size(2));
  if (x.size(1) <= x.size(2)) return launch(stream, x, x, {ptr<__nv_bfloat16>(r), nullptr, m, 1, 0, 0});
  using Rows = OperandLayout<Grouped::sum, Major::mn, Major::mn, Columns::adjacent, Element::float16>;
  const BatchedShape shape{static_cast<int>(x.size(0)), m, m, static_cast<int>(x.size(1)), true};
  const SymmetricStore<Grouped::sum> store{ptr<__nv_bfloat16>(r), nullptr, m, 1, 0, 0};
  const Tensor pool = x.reshape({x.size(0) * x.size(1), x.size(2)});
  launch_batched_gemm<SquareTile, Rows>(stream, pool, pool, shape, store);
}

namespace {

template <Major kMajorB>
void launch_apply(Stream& stream, const Tensor& y, const Tensor& a, const Tensor& b, const ApplyArgs& args) {
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
    launch_apply<Major::mn>(stream, y, q, x, args);
  else
    launch_apply<Major::k>(stream, y, x, q, args);
}

}  // namespace witan::kernels::cuda
