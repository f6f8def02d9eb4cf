// RMSNorm, optionally with an addition before it: a row is read once, and stays in registers between its sum of squares
// and its result.
#include "witan/kernels/common/cuda/early_launch.cuh"
#include "witan/kernels/common/cuda/rows.cuh"
#include "witan/kernels/norm/norm.h"

namespace witan::kernels::cuda {
namespace {

// With kAdds, sum = a + b; otherwise the sum is a.
template <bool kAdds, class T, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, kManyBlocks<Shape>)
    rmsnorm_forward_kernel(Shape, T* sum, T* y, Acc<T>* r, const T* a, const T* b, const T* w, Acc<T> added,
                           int64_t rows, int64_t D, Acc<T> eps) {
  using A = Acc<T>;
  struct Held {
    RowChunk<T, Shape> a, b;
  };
  RowChunk<T, Shape> weight;
  let_next_begin();
  if constexpr (Shape::kWhole) weight.load(w, 0, D);
  wait_for_earlier();
  int turn = 0;
  const auto load = [&](int64_t t, Held& held, int64_t first = 0) {
    held.a.load(a + t * D, first, D);
    if constexpr (kAdds) held.b.load(b + t * D, first, D);
  };
  for_rows<Shape, Held>(rows, load, [&](int64_t t, Held& held) {
    RowChunk<T, Shape>& x = held.a;
    A squares = 0;
    for_chunks<Shape>(D, [&](int64_t first) {
      if constexpr (!Shape::kWhole) load(t, held, first);
      if constexpr (kAdds) {
        for_chunk<Shape>([&](int p, int j) { x.set(p, j, x(p, j) + held.b(p, j)); });
        x.store(sum + t * D, first, D);
      }
      for_chunk<Shape>([&](int p, int j) { squares += x(p, j) * x(p, j); });
    });
    squares = Shape::sum(squares, turn);
    const A scale = A(1) / sqrt(squares / static_cast<A>(D) + eps);
    if (Shape::element(0, 0) == 0) r[t] = scale;
    x.stay_packed();
    for_chunks<Shape>(D, [&](int64_t first) {
      if constexpr (!Shape::kWhole) {
        x.load((kAdds ? sum : a) + t * D, first, D);
        weight.load(w, first, D);
      }
      weight.stay_packed();
      for_chunk<Shape>([&](int p, int j) { x.set(p, j, x(p, j) * scale * (weight(p, j) + added)); });
      x.store(y + t * D, first, D);
    });
  });
}

template <bool kAdds>
void forward(Stream& stream, const Tensor& sum, const Tensor& y, const Tensor& r, const Tensor& a, const Tensor& b,
             const NormWeight& w, double eps) {
  const auto [rows, D] = a.shape().as_rows();
  if (rows == 0) return;
  dispatch_device(a.dtype(), [&, T_ = rows, D = D]<class T>() {
    with_row_shape<T>(
        D,
        [&](auto shape) {
          using Shape = decltype(shape);
          launch_early(stream, rmsnorm_forward_kernel<kAdds, T, Shape>, shape.blocks(stream, T_, kManyBlocks<Shape>),
                       shape.kThreads, 0, shape, ptr<T>(sum), ptr<T>(y), ptr<Acc<T>>(r), ptr<T>(a), ptr<T>(b),
                       ptr<T>(w.values), w.added<Acc<T>>(), T_, D, static_cast<Acc<T>>(eps));
        },
        sum, y, a, b, w.values);
  });
}

}  // namespace

void rmsnorm_forward(Stream& stream, const Tensor& y, const Tensor& r, const Tensor& x, const NormWeight& w,
                     double eps) {
  forward<false>(stream, {}, y, r, x, {}, w, eps);
}

void add_rmsnorm_forward(Stream& stream, const Tensor& sum, const Tensor& y, const Tensor& r, const Tensor& a,
                         const Tensor& b, const NormWeight& w, double eps) {
  forward<true>(stream, sum, y, r, a, b, w, eps);
}

}  // namespace witan::kernels::cuda
