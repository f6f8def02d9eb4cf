// The gradient of RMSNorm's input and, optionally, its weight: a row is read once for both. A thread sums its columns
// of dw over all its rows in registers; the sums of a block's threads are a strip.
#include "witan/kernels/norm/cuda/norm_backward.cuh"
#include "witan/kernels/norm/norm.h"

namespace witan::kernels::cuda {
namespace {

// dx = [dsum +] r (w dy - x r^2 mean(w dy x));  with kSums, strips[block, d] = sum over the block's rows of dy x r
template <bool kAdds, bool kSums, class T, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, kFewBlocks<Shape>)
    rmsnorm_backward_kernel(Shape, T* dx, Acc<T>* strips, const T* dsum, const T* dy, const T* x, const T* w,
                            Acc<T> added, const Acc<T>* r, int64_t rows, int64_t D) {
  using A = Acc<T>;
  struct Held {
    RowChunk<T, Shape> g, in, before;
    A scale;
  };
  RowChunk<T, Shape> weight;
  if constexpr (Shape::kWhole) weight.load(w, 0, D);
  ColumnSums<kSums, T, Shape> sums;
  int turn = 0;
  const auto load = [&](int64_t t, Held& held, int64_t first = 0) {
    held.scale = r[t];
    held.g.load(dy + t * D, first, D);
    held.in.load(x + t * D, first, D);
    if constexpr (kAdds) held.before.load(dsum + t * D, first, D);
  };
  for_rows<Shape, Held>(rows, load, [&](int64_t t, Held& held) {
    auto& [g, in, before, scale] = held;
    A dot = 0;
    for_chunks<Shape>(D, [&](int64_t first) {
      if constexpr (!Shape::kWhole) {
        load(t, held, first);
        weight.load(w, first, D);
      }
      weight.stay_packed();
      for_chunk<Shape>([&](int p, int j) {
        const A product = g(p, j) * in(p, j);
        dot += (weight(p, j) + added) * product;
        if constexpr (kSums) sums.at[p][j] += product * scale;
      });
    });
    const A pull = Shape::sum(dot, turn) / static_cast<A>(D) * scale * scale;
    g.stay_packed();
    in.stay_packed();
    weight.stay_packed();
    if constexpr (kAdds) before.stay_packed();
    for_chunks<Shape>(D, [&](int64_t first) {
      if constexpr (!Shape::kWhole) {
        load(t, held, first);
        weight.load(w, first, D);
      }
      for_chunk<Shape>([&](int p, int j) {
        const A pulled = (weight(p, j) + added) * g(p, j) - in(p, j) * pull;
        if constexpr (kAdds)
          g.set(p, j, rounded<T>(scale, pulled) + before(p, j));
        else
          g.set(p, j, scale * pulled);
      });
      g.store(dx + t * D, first, D);
    });
  });
  if constexpr (kSums) sums.store(strips + blockIdx.x * D, D);
}

struct Arguments {
  const Tensor &dx, &dsum, &dy, &x;
  const NormWeight& w;
  const Tensor& r;
};

template <bool kAdds>
void backward_input(Stream& stream, const Arguments& with) {
  const auto& [dx, dsum, dy, x, w, r] = with;
  const auto [rows, D] = x.shape().as_rows();
  if (rows == 0) return;
  dispatch_device(x.dtype(), [&, T_ = rows, D = D]<class T>() {
    with_row_shape<T>(
        D,
        [&](auto shape) {
          rmsnorm_backward_kernel<kAdds, false, T>
              <<<shape.blocks(stream, T_, kFewBlocks<decltype(shape)>), shape.kThreads, 0, native(stream)>>>(
                  shape, ptr<T>(dx), nullptr, ptr<T>(dsum), ptr<T>(dy), ptr<T>(x), ptr<T>(w.values), w.added<Acc<T>>(),
                  ptr<Acc<T>>(r), T_, D);
        },
        dx, dsum, dy, x, w.values);
  });
}

// Returns false if rows do not fit in registers.
template <bool kAdds>
bool backward(Stream& stream, const Arguments& with, const Tensor& dw, Write write) {
  const auto& [dx, dsum, dy, x, w, r] = with;
  const auto [rows, D] = x.shape().as_rows();
  bool fits = true;
  dispatch_device(x.dtype(), [&, T_ = rows, D = D]<class T>() {
    const auto launch = [&]<class Shape>(Shape shape) {
      if constexpr (!Shape::kWhole) {
        fits = false;
      } else {
        const int64_t strips = std::min(kStripThreads / Shape::kThreads, (T_ + Shape::kRows - 1) / Shape::kRows);
        const Strips<Acc<T>> to(stream, strips, D);
        if (strips > 0)
          rmsnorm_backward_kernel<kAdds, true, T>
              <<<static_cast<unsigned>(strips), Shape::kThreads, 0, native(stream)>>>(
                  shape, ptr<T>(dx), to.strips, ptr<T>(dsum), ptr<T>(dy), ptr<T>(x), ptr<T>(w.values),
                  w.added<Acc<T>>(), ptr<Acc<T>>(r), T_, D);
        add_strips(stream, dw, write, to);
      }
    };
    with_row_shape<T>(D, launch, dx, dsum, dy, x, w.values);
  });
  return fits;
}

}  // namespace

void rmsnorm_backward_input(Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& x, const NormWeight& w,
                            const Tensor& r) {
  backward_input<false>(stream, {dx, {}, dy, x, w, r});
}

void add_rmsnorm_backward_input(Stream& stream, const Tensor& dx, const Tensor& dsum, const Tensor& dy,
                                const Tensor& sum, const NormWeight& w, const Tensor& r) {
  if (dsum.defined())
    backward_input<true>(stream, {dx, dsum, dy, sum, w, r});
  else
    backward_input<false>(stream, {dx, dsum, dy, sum, w, r});
}

void rmsnorm_backward(Stream& stream, const Tensor& dx, const Tensor& dw, Write write, const Tensor& dsum,
                      const Tensor& dy, const Tensor& x, const NormWeight& w, const Tensor& r) {
  const Arguments with = {dx, dsum, dy, x, w, r};
  if (dsum.defined() ? backward<true>(stream, with, dw, write) : backward<false>(stream, with, dw, write)) return;
  cuda::rmsnorm_backward_weight(stream, dw, write, dy, x, r);
  cuda::add_rmsnorm_backward_input(stream, dx, dsum, dy, x, w, r);
}

}  // namespace witan::kernels::cuda
