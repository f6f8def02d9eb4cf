// The gradients of LayerNorm's input and, optionally, its weight and bias: a row is read once for all of them.
#include "witan/kernels/norm/cuda/norm_backward.cuh"
#include "witan/kernels/norm/norm.h"

namespace witan::kernels::cuda {
namespace {

// dx = [dsum +] r (g - mean(g) - n mean(g n)), g = w dy, n = (x - mean) r; g is zero beyond the row's end. With kSums,
// weight_strips[block, d] = sum over the block's rows of dy n, and bias_strips the sum of dy.
template <class T>
struct BackwardRows {
  T* dx;
  const T *dsum, *dy, *x, *w;
  Acc<T> added;
  const Acc<T>*mean, *r;
  Acc<T>*weight_strips, *bias_strips;
  int64_t rows, D;
};
template <bool kAdds, bool kSums, class T, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, kFewBlocks<Shape>)
    layernorm_backward_kernel(Shape, BackwardRows<T> of) {
  using A = Acc<T>;
  struct Held {
    RowChunk<T, Shape> g, in, before;
    A mean, scale;
  };
  const int64_t D = of.D;
  RowChunk<T, Shape> weight;
  if constexpr (Shape::kWhole) weight.load(of.w, 0, D);
  ColumnSums<kSums, T, Shape> weight_sums, bias_sums;
  int turn = 0;
  const auto load = [&](int64_t t, Held& held, int64_t first = 0) {
    held.mean = of.mean[t];
    held.scale = of.r[t];
    held.g.load(of.dy + t * D, first, D);
    held.in.load(of.x + t * D, first, D);
    if constexpr (kAdds) held.before.load(of.dsum + t * D, first, D);
  };
  for_rows<Shape, Held>(of.rows, load, [&](int64_t t, Held& held) {
    auto& [g, in, before, m, scale] = held;
    A sum = 0, dot = 0;
    for_chunks<Shape>(D, [&](int64_t first) {
      if constexpr (!Shape::kWhole) {
        load(t, held, first);
        weight.load(of.w, first, D);
      }
      weight.stay_packed();
      for_chunk<Shape>([&](int p, int j) {
        const A normed = (in(p, j) - m) * scale, weighted = (weight(p, j) + of.added) * g(p, j);
        sum += weighted;
        dot += weighted * normed;
        if constexpr (kSums) {
          weight_sums.at[p][j] += g(p, j) * normed;
          bias_sums.at[p][j] += g(p, j);
        }
      });
    });
    const A shift = Shape::sum(sum, turn) / static_cast<A>(D), pull = Shape::sum(dot, turn) / static_cast<A>(D);
    g.stay_packed();
    in.stay_packed();
    weight.stay_packed();
    if constexpr (kAdds) before.stay_packed();
    for_chunks<Shape>(D, [&](int64_t first) {
      if constexpr (!Shape::kWhole) {
        load(t, held, first);
        weight.load(of.w, first, D);
      }
      for_chunk<Shape>([&](int p, int j) {
        const A pulled = (weight(p, j) + of.added) * g(p, j) - shift - (in(p, j) - m) * scale * pull;
        if constexpr (kAdds)
          g.set(p, j, rounded<T>(scale, pulled) + before(p, j));
        else
          g.set(p, j, scale * pulled);
      });
      g.store(of.dx + t * D, first, D);
    });
  });
  if constexpr (kSums) {
    if (of.weight_strips) weight_sums.store(of.weight_strips + blockIdx.x * D, D);
    if constexpr (Shape::kRows > 1) __syncthreads();  // both sums go through the same shared memory
    if (of.bias_strips) bias_sums.store(of.bias_strips + blockIdx.x * D, D);
  }
}

struct Arguments {
  const Tensor &dx, &dsum, &dy, &x;
  const NormWeight& w;
  const Tensor &mean, &r;
};

template <class T>
BackwardRows<T> rows_of(const Arguments& with) {
  using A = Acc<T>;
  const auto [rows, D] = with.x.shape().as_rows();
  return {ptr<T>(with.dx),
          ptr<T>(with.dsum),
          ptr<T>(with.dy),
          ptr<T>(with.x),
          ptr<T>(with.w.values),
          with.w.added<A>(),
          ptr<A>(with.mean),
          ptr<A>(with.r),
          nullptr,
          nullptr,
          rows,
          D};
}

template <bool kAdds>
void backward_input(Stream& stream, const Arguments& with) {
  const auto [rows, D] = with.x.shape().as_rows();
  if (rows == 0) return;
  dispatch_device(with.x.dtype(), [&, T_ = rows, D = D]<class T>() {
    with_row_shape<T>(
        D,
        [&](auto shape) {
          layernorm_backward_kernel<kAdds, false, T>
              <<<shape.blocks(stream, T_, kFewBlocks<decltype(shape)>), shape.kThreads, 0, native(stream)>>>(
                  shape, rows_of<T>(with));
        },
        with.dx, with.dsum, with.dy, with.x, with.w.values);
  });
}

// Returns false if rows do not fit in registers.
template <bool kAdds>
bool backward(Stream& stream, const Arguments& with, const NormGradients& to) {
  const auto [rows, D] = with.x.shape().as_rows();
  bool fits = true;
  dispatch_device(with.x.dtype(), [&, T_ = rows, D = D]<class T>() {
    using A = Acc<T>;
    const auto launch = [&]<class Shape>(Shape shape) {
      if constexpr (!Shape::kWhole) {
        fits = false;
      } else {
        const int64_t strips = std::min(kStripThreads / Shape::kThreads, (T_ + Shape::kRows - 1) / Shape::kRows);
        const Strips<A> both(stream, 2 * strips, D);
        Strips<A> of_weight = both, of_bias = both;
        of_weight.count = of_bias.count = strips;
        of_bias.strips += strips * D;
        BackwardRows<T> of = rows_of<T>(with);
        of.weight_strips = to.dw.defined() ? of_weight.strips : nullptr;
        of.bias_strips = to.db.defined() ? of_bias.strips : nullptr;
        if (strips > 0)
          layernorm_backward_kernel<kAdds, true, T>
              <<<static_cast<unsigned>(strips), Shape::kThreads, 0, native(stream)>>>(shape, of);
        if (to.dw.defined()) add_strips(stream, to.dw, to.write_dw, of_weight);
        if (to.db.defined()) add_strips(stream, to.db, to.write_db, of_bias);
      }
    };
    with_row_shape<T>(D, launch, with.dx, with.dsum, with.dy, with.x, with.w.values);
  });
  return fits;
}

template <bool kAdds>
void backward_all(Stream& stream, const Arguments& with, const NormGradients& to) {
  if ((to.dw.defined() || to.db.defined()) && backward<kAdds>(stream, with, to)) return;
  if (to.dw.defined()) cuda::layernorm_backward_weight(stream, to.dw, to.write_dw, with.dy, with.x, with.mean, with.r);
  if (to.db.defined()) cuda::bias_backward(stream, to.db, to.write_db, with.dy);
  backward_input<kAdds>(stream, with);
}

}  // namespace

void layernorm_backward(Stream& stream, const Tensor& dx, const NormGradients& to, const Tensor& dsum, const Tensor& dy,
                        const Tensor& x, const NormWeight& w, const Tensor& mean, const Tensor& r) {
  const Arguments with = {dx, dsum, dy, x, w, mean, r};
  if (dsum.defined())
    backward_all<true>(stream, with, to);
  else
    backward_all<false>(stream, with, to);
}

}  // namespace witan::kernels::cuda
