// RMSNorm, with the addition in front of it or without: a row is read once and stays in registers between its sum of
// squares and its result.
#include "witan/kernels/cuda/rows.cuh"
#include "witan/kernels/norm.h"

namespace witan::kernels::cuda {
namespace {

// With kAdds: sum = a + b; without, the sum is a.
template <bool kAdds, class T, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    rmsnorm_forward_kernel(Shape, T* sum, T* y, Acc<T>* r, const T* a, const T* b, const T* w, int64_t rows, int64_t D,
                           Acc<T> eps) {
  using A = Acc<T>;
  const int64_t t = Shape::row();
  if (t >= rows) return;
  RowChunk<T, Shape> x, other, weight;
  A squares = 0;
  for_chunks<Shape>(D, [&](int64_t first) {
    x.load(a + t * D, first, D);
    if constexpr (kAdds) other.load(b + t * D, first, D);
    weight.load(w, first, D);
    if constexpr (kAdds) {
      for_chunk<Shape>([&](int p, int j) { x.set(p, j, x(p, j) + other(p, j)); });
      x.store(sum + t * D, first, D);
    }
    for_chunk<Shape>([&](int p, int j) { squares += x(p, j) * x(p, j); });
  });
  squares = Shape::sum(squares);
  const A scale = A(1) / sqrt(squares / static_cast<A>(D) + eps);
  if (Shape::element(0, 0) == 0) r[t] = scale;
  for_chunks<Shape>(D, [&](int64_t first) {
    if constexpr (!Shape::kWhole) {
      x.load((kAdds ? sum : a) + t * D, first, D);
      weight.load(w, first, D);
    }
    for_chunk<Shape>([&](int p, int j) { x.set(p, j, x(p, j) * scale * weight(p, j)); });
    x.store(y + t * D, first, D);
  });
}

// dx = [dsum +] r (w dy - x r^2 mean(w dy x))
template <bool kAdds, class T, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    rmsnorm_backward_kernel(Shape, T* dx, const T* dsum, const T* dy, const T* x, const T* w, const Acc<T>* r,
                            int64_t rows, int64_t D) {
  using A = Acc<T>;
  const int64_t t = Shape::row();
  if (t >= rows) return;
  const A scale = r[t];
  RowChunk<T, Shape> g, in, weight, before;
  A dot = 0;
  for_chunks<Shape>(D, [&](int64_t first) {
    if constexpr (kAdds && Shape::kWhole) before.load(dsum + t * D, first, D);
    g.load(dy + t * D, first, D);
    in.load(x + t * D, first, D);
    weight.load(w, first, D);
    for_chunk<Shape>([&](int p, int j) { dot += weight(p, j) * g(p, j) * in(p, j); });
  });
  const A pull = Shape::sum(dot) / static_cast<A>(D) * scale * scale;
  for_chunks<Shape>(D, [&](int64_t first) {
    if constexpr (!Shape::kWhole) {
      g.load(dy + t * D, first, D);
      in.load(x + t * D, first, D);
      weight.load(w, first, D);
      if constexpr (kAdds) before.load(dsum + t * D, first, D);
    }
    for_chunk<Shape>([&](int p, int j) {
      A value = scale * (weight(p, j) * g(p, j) - in(p, j) * pull);
      if constexpr (kAdds) value += before(p, j);
      g.set(p, j, value);
    });
    g.store(dx + t * D, first, D);
  });
}

template <bool kAdds>
void forward(Stream& stream, const Tensor& sum, const Tensor& y, const Tensor& r, const Tensor& a, const Tensor& b,
             const Tensor& w, double eps) {
  const auto [rows, D] = a.shape().as_rows();
  if (rows == 0) return;
  dispatch_device(a.dtype(), [&, T_ = rows, D = D]<class T>() {
    with_row_shape<T>(
        D,
        [&](auto shape) {
          rmsnorm_forward_kernel<kAdds, T><<<shape.blocks(T_), shape.kThreads, 0, native(stream)>>>(
              shape, ptr<T>(sum), ptr<T>(y), ptr<Acc<T>>(r), ptr<T>(a), ptr<T>(b), ptr<T>(w), T_, D,
              static_cast<Acc<T>>(eps));
        },
        sum, y, a, b, w);
  });
}

template <bool kAdds>
void backward(Stream& stream, const Tensor& dx, const Tensor& dsum, const Tensor& dy, const Tensor& x, const Tensor& w,
              const Tensor& r) {
  const auto [rows, D] = x.shape().as_rows();
  if (rows == 0) return;
  dispatch_device(x.dtype(), [&, T_ = rows, D = D]<class T>() {
    with_row_shape<T>(
        D,
        [&](auto shape) {
          rmsnorm_backward_kernel<kAdds, T><<<shape.blocks(T_), shape.kThreads, 0, native(stream)>>>(
              shape, ptr<T>(dx), ptr<T>(dsum), ptr<T>(dy), ptr<T>(x), ptr<T>(w), ptr<Acc<T>>(r), T_, D);
        },
        dx, dsum, dy, x, w);
  });
}

}  // namespace

void rmsnorm_forward(Stream& stream, const Tensor& y, const Tensor& r, const Tensor& x, const Tensor& w, double eps) {
  forward<false>(stream, {}, y, r, x, {}, w, eps);
}

void add_rmsnorm_forward(Stream& stream, const Tensor& sum, const Tensor& y, const Tensor& r, const Tensor& a,
                         const Tensor& b, const Tensor& w, double eps) {
  forward<true>(stream, sum, y, r, a, b, w, eps);
}

void rmsnorm_backward_input(Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& x, const Tensor& w,
                            const Tensor& r) {
  backward<false>(stream, dx, {}, dy, x, w, r);
}

void add_rmsnorm_backward_input(Stream& stream, const Tensor& dx, const Tensor& dsum, const Tensor& dy,
                                const Tensor& sum, const Tensor& w, const Tensor& r) {
  if (dsum.defined())
    backward<true>(stream, dx, dsum, dy, sum, w, r);
  else
    backward<false>(stream, dx, {}, dy, sum, w, r);
}

}  // namespace witan::kernels::cuda
