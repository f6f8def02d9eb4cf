// LayerNorm, optionally with an addition before it: a row is read once, and stays in registers between its sums and its
// result.
#include "witan/kernels/common/cuda/rows.cuh"
#include "witan/kernels/norm/norm.h"

namespace witan::kernels::cuda {
namespace {

// With kAdds, sum = a + b; otherwise the sum is a. The variance is computed around the mean, in a second pass.
template <bool kAdds, class T, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, kManyBlocks<Shape>)
    layernorm_forward_kernel(Shape, T* sum, T* y, Acc<T>* mean, Acc<T>* r, const T* a, const T* b, const T* w,
                             Acc<T> added, const T* bias, int64_t rows, int64_t D, Acc<T> eps) {
  using A = Acc<T>;
  using Chunk = RowChunk<T, Shape>;
  struct Held {
    Chunk a, b;
  };
  Chunk weight, shift;
  const auto load_parameters = [&](int64_t first) {
    weight.load(w, first, D);
    if (bias)
      shift.load(bias, first, D);
    else
      shift = {};
  };
  if constexpr (Shape::kWhole) load_parameters(0);
  int turn = 0;
  const auto load = [&](int64_t t, Held& held, int64_t first = 0) {
    held.a.load(a + t * D, first, D);
    if constexpr (kAdds) held.b.load(b + t * D, first, D);
  };
  const auto reload = [&](int64_t t, Chunk& in, int64_t first) { in.load((kAdds ? sum : a) + t * D, first, D); };
  for_rows<Shape, Held>(rows, load, [&](int64_t t, Held& held) {
    Chunk& in = held.a;
    A total = 0, squares = 0;
    for_chunks<Shape>(D, [&](int64_t first) {
      if constexpr (!Shape::kWhole) load(t, held, first);
      if constexpr (kAdds) {
        for_chunk<Shape>([&](int p, int j) { in.set(p, j, in(p, j) + held.b(p, j)); });
        in.store(sum + t * D, first, D);
      }
      for_chunk<Shape>([&](int p, int j) { total += in(p, j); });
    });
    const A m = Shape::sum(total, turn) / static_cast<A>(D);
    for_chunks<Shape>(D, [&](int64_t first) {
      if constexpr (!Shape::kWhole) reload(t, in, first);
      for_chunk<Shape>([&](int p, int j) {
        const A apart = Shape::element(first, p) < D ? in(p, j) - m : A(0);
        squares += apart * apart;
      });
    });
    const A scale = A(1) / sqrt(Shape::sum(squares, turn) / static_cast<A>(D) + eps);
    if (Shape::element(0, 0) == 0) mean[t] = m, r[t] = scale;
    in.stay_packed();
    for_chunks<Shape>(D, [&](int64_t first) {
      if constexpr (!Shape::kWhole) {
        reload(t, in, first);
        load_parameters(first);
      }
      weight.stay_packed();
      shift.stay_packed();
      for_chunk<Shape>(
          [&](int p, int j) { in.set(p, j, (in(p, j) - m) * scale * (weight(p, j) + added) + shift(p, j)); });
      in.store(y + t * D, first, D);
    });
  });
}

template <bool kAdds>
void forward(Stream& stream, const Tensor& sum, const Tensor& y, const Tensor& mean, const Tensor& r, const Tensor& a,
             const Tensor& b, const NormWeight& w, const Tensor& bias, double eps) {
  const auto [rows, D] = a.shape().as_rows();
  if (rows == 0) return;
  dispatch_device(a.dtype(), [&, T_ = rows, D = D]<class T>() {
    with_row_shape<T>(
        D,
        [&](auto shape) {
          layernorm_forward_kernel<kAdds, T>
              <<<shape.blocks(stream, T_, kManyBlocks<decltype(shape)>), shape.kThreads, 0, native(stream)>>>(
                  shape, ptr<T>(sum), ptr<T>(y), ptr<Acc<T>>(mean), ptr<Acc<T>>(r), ptr<T>(a), ptr<T>(b),
                  ptr<T>(w.values), w.added<Acc<T>>(), ptr<T>(bias), T_, D, static_cast<Acc<T>>(eps));
        },
        sum, y, a, b, w.values, bias);
  });
}

}  // namespace

void layernorm_forward(Stream& stream, const Tensor& y, const Tensor& mean, const Tensor& r, const Tensor& x,
                       const NormWeight& w, const Tensor& b, double eps) {
  forward<false>(stream, {}, y, mean, r, x, {}, w, b, eps);
}

void add_layernorm_forward(Stream& stream, const Tensor& sum, const Tensor& y, const Tensor& mean, const Tensor& r,
                           const Tensor& a, const Tensor& b, const NormWeight& w, const Tensor& bias, double eps) {
  forward<true>(stream, sum, y, mean, r, a, b, w, bias, eps);
}

}  // namespace witan::kernels::cuda
