#include "witan/kernels/cuda/common/rows.cuh"
#include "witan/kernels/norm.h"

namespace witan::kernels::cuda {
namespace {

// The variance is formed around the mean, in a pass of its own.
template <class T, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, kManyBlocks<Shape>)
    layernorm_forward_kernel(Shape, T* y, Acc<T>* mean, Acc<T>* r, const T* x, const T* w, const T* b, int64_t rows,
                             int64_t D, Acc<T> eps) {
  using A = Acc<T>;
  using Chunk = RowChunk<T, Shape>;
  Chunk weight, bias;
  const auto load_parameters = [&](int64_t first) {
    weight.load(w, first, D);
    if (b)
      bias.load(b, first, D);
    else
      bias = {};
  };
  if constexpr (Shape::kWhole) load_parameters(0);
  int turn = 0;
  const auto load = [&](int64_t t, Chunk& in, int64_t first = 0) { in.load(x + t * D, first, D); };
  for_rows<Shape, Chunk>(rows, load, [&](int64_t t, Chunk& in) {
    A sum = 0, squares = 0;
    for_chunks<Shape>(D, [&](int64_t first) {
      if constexpr (!Shape::kWhole) load(t, in, first);
      for_chunk<Shape>([&](int p, int j) { sum += in(p, j); });
    });
    const A m = Shape::sum(sum, turn) / static_cast<A>(D);
    for_chunks<Shape>(D, [&](int64_t first) {
      if constexpr (!Shape::kWhole) load(t, in, first);
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
        load(t, in, first);
        load_parameters(first);
      }
      weight.stay_packed();
      bias.stay_packed();
      for_chunk<Shape>([&](int p, int j) { in.set(p, j, (in(p, j) - m) * scale * weight(p, j) + bias(p, j)); });
      in.store(y + t * D, first, D);
    });
  });
}

// g = w dy, n = (x - mean) r:  dx = r (g - mean(g) - n mean(g n)). Beyond the row's end g is zero.
template <class T, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, kFewBlocks<Shape>)
    layernorm_backward_kernel(Shape, T* dx, const T* dy, const T* x, const T* w, const Acc<T>* mean, const Acc<T>* r,
                              int64_t rows, int64_t D) {
  using A = Acc<T>;
  struct Held {
    RowChunk<T, Shape> g, in;
    A mean, scale;
  };
  RowChunk<T, Shape> weight;
  if constexpr (Shape::kWhole) weight.load(w, 0, D);
  int turn = 0;
  const auto load = [&](int64_t t, Held& held, int64_t first = 0) {
    held.mean = mean[t];
    held.scale = r[t];
    held.g.load(dy + t * D, first, D);
    held.in.load(x + t * D, first, D);
  };
  for_rows<Shape, Held>(rows, load, [&](int64_t t, Held& held) {
    auto& [g, in, m, scale] = held;
    A sum = 0, dot = 0;
    for_chunks<Shape>(D, [&](int64_t first) {
      if constexpr (!Shape::kWhole) {
        load(t, held, first);
        weight.load(w, first, D);
      }
      weight.stay_packed();
      for_chunk<Shape>([&](int p, int j) {
        const A weighted = weight(p, j) * g(p, j);
        sum += weighted;
        dot += weighted * (in(p, j) - m) * scale;
      });
    });
    const A shift = Shape::sum(sum, turn) / static_cast<A>(D), pull = Shape::sum(dot, turn) / static_cast<A>(D);
    g.stay_packed();
    in.stay_packed();
    weight.stay_packed();
    for_chunks<Shape>(D, [&](int64_t first) {
      if constexpr (!Shape::kWhole) {
        load(t, held, first);
        weight.load(w, first, D);
      }
      for_chunk<Shape>(
          [&](int p, int j) { g.set(p, j, scale * (weight(p, j) * g(p, j) - shift - (in(p, j) - m) * scale * pull)); });
      g.store(dx + t * D, first, D);
    });
  });
}

}  // namespace

void layernorm_forward(Stream& stream, const Tensor& y, const Tensor& mean, const Tensor& r, const Tensor& x,
                       const Tensor& w, const Tensor& b, double eps) {
  const auto [rows, D] = x.shape().as_rows();
  if (rows == 0) return;
  dispatch_device(x.dtype(), [&, T_ = rows, D = D]<class T>() {
    with_row_shape<T>(
        D,
        [&](auto shape) {
          layernorm_forward_kernel<T>
              <<<shape.blocks(stream, T_, kManyBlocks<decltype(shape)>), shape.kThreads, 0, native(stream)>>>(
                  shape, ptr<T>(y), ptr<Acc<T>>(mean), ptr<Acc<T>>(r), ptr<T>(x), ptr<T>(w), ptr<T>(b), T_, D,
                  static_cast<Acc<T>>(eps));
        },
        y, x, w, b);
  });
}

void layernorm_backward_input(Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& x, const Tensor& w,
                              const Tensor& mean, const Tensor& r) {
  const auto [rows, D] = x.shape().as_rows();
  if (rows == 0) return;
  dispatch_device(x.dtype(), [&, T_ = rows, D = D]<class T>() {
    with_row_shape<T>(
        D,
        [&](auto shape) {
          layernorm_backward_kernel<T>
              <<<shape.blocks(stream, T_, kFewBlocks<decltype(shape)>), shape.kThreads, 0, native(stream)>>>(
                  shape, ptr<T>(dx), ptr<T>(dy), ptr<T>(x), ptr<T>(w), ptr<Acc<T>>(mean), ptr<Acc<T>>(r), T_, D);
        },
        dx, dy, x, w);
  });
}

}  // namespace witan::kernels::cuda
