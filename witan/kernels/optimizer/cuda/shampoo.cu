// Shampoo's elementwise operations: moments, decayed factors, grafting norms, and the update.
#include "witan/kernels/common/cuda/update.cuh"
#include "witan/kernels/optimizer/shampoo.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 256;

unsigned blocks_of(Stream& stream, int64_t elements) {
  return blocks_for(stream, (elements + kThreads - 1) / kThreads);
}

template <class A, class G>
struct MomentOperands {
  A *m, *v;  // may be null
  const G* gradient;
  A *outer, *filtered, *grafted;  // the last may be null
};

template <class A, class G>
__global__ void __launch_bounds__(kThreads)
    moments_kernel(MomentOperands<A, G> t, int64_t elements, const double* step, ShampooMomentArgs args) {
  const bool skip = step[step_value::skip] != 0;
  const double update = step[step_value::update];
  const A scale = A(step[step_value::gradient_scale]), weight = A(sqrt(args.factor_weight)), eps = A(args.eps);
  const A unbias_m = A(1 / (1 - pow(args.beta1, update))), unbias_v = A(1 / (1 - pow(args.beta2, update)));
  const A beta1 = A(args.beta1), beta2 = A(args.beta2), to_m = A(1 - args.beta1), to_v = A(1 - args.beta2);
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < elements; i += stride) {
    if (skip) {
      t.outer[i] = t.filtered[i] = 0;
      if (t.grafted) t.grafted[i] = 0;
      continue;
    }
    const A g = scale * convert<A>(t.gradient[i]);
    t.outer[i] = weight * g;
    A filtered = g;
    if (t.m) filtered = (t.m[i] = beta1 * t.m[i] + to_m * g) * unbias_m;
    t.filtered[i] = filtered;
    if (!t.v) continue;
    const A v = t.v[i] = beta2 * t.v[i] + to_v * g * g;
    t.grafted[i] = filtered / (sqrt(v * unbias_v) + eps);
  }
}

template <class A>
__global__ void __launch_bounds__(kThreads) decay_kernel(A* x, int64_t elements, const double* step, A beta) {
  if (step[step_value::skip] != 0) return;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < elements; i += stride) x[i] *= beta;
}

template <class A>
struct GraftOperands {
  A* direction;
  const A* grafted;
  double* sums;
  int64_t rows, columns, direction_stride, grafted_stride;
};

// Each block takes one row at a time: in steps before `start` it copies the row, later it sums squares.
template <class A>
__global__ void __launch_bounds__(kThreads) graft_rows_kernel(GraftOperands<A> t, const double* step, GraftArgs args) {
  __shared__ double of_warps[kThreads / 32];
  const bool before = step[step_value::update] < static_cast<double>(args.start);
  if (!before && !args.scales) return;
  for (int64_t r = blockIdx.x; r < t.rows; r += gridDim.x) {
    A* direction = t.direction + r * t.direction_stride;
    const A* grafted = t.grafted + r * t.grafted_stride;
    double own = 0, its = 0;
    for (int64_t c = threadIdx.x; c < t.columns; c += kThreads) {
      if (before) {
        direction[c] = grafted[c];
      } else {
        own += static_cast<double>(direction[c]) * static_cast<double>(direction[c]);
        its += static_cast<double>(grafted[c]) * static_cast<double>(grafted[c]);
      }
    }
    if (before) continue;
    own = block_sum(own, of_warps);
    its = block_sum(its, of_warps);
    if (threadIdx.x != 0) continue;
    t.sums[2 * r] = own;
    t.sums[2 * r + 1] = its;
  }
}

// Every block sums the rows, all in the same order.
template <class A>
__global__ void __launch_bounds__(kThreads) graft_scale_kernel(GraftOperands<A> t, const double* step, GraftArgs args) {
  __shared__ double of_warps[kThreads / 32];
  if (step[step_value::update] < static_cast<double>(args.start)) return;
  double own = 0, its = 0;
  for (int64_t r = threadIdx.x; r < t.rows; r += kThreads) {
    own += t.sums[2 * r];
    its += t.sums[2 * r + 1];
  }
  own = block_sum(own, of_warps);
  its = block_sum(its, of_warps);
  const A factor = A(sqrt(its) / (sqrt(own) + 1e-16));
  for (int64_t r = blockIdx.x; r < t.rows; r += gridDim.x)
    for (int64_t c = threadIdx.x; c < t.columns; c += kThreads) t.direction[r * t.direction_stride + c] *= factor;
}

template <class T>
__global__ void __launch_bounds__(kThreads) direction_kernel(Weights<T> weights, const Acc<T>* direction,
                                                             int64_t elements, const double* step, DirectedArgs args) {
  using A = Acc<T>;
  if (step[step_value::skip] != 0 || step[step_value::update] < static_cast<double>(args.first)) return;
  const A lr = A(step[args.rate]), decay = A(args.weight_decay * step[step_value::weight_decay]);
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < elements; i += stride) {
    A p[1];
    weights.load(p, i);
    p[0] -= lr * (direction[i] + decay * p[0]);
    weights.store(p, i);
  }
}

}  // namespace

void shampoo_moments(Stream& stream, const ShampooMoments& t, const Tensor& step, const ShampooMomentArgs& args) {
  const int64_t elements = t.outer.elements();
  if (elements == 0) return;
  dispatch_accumulator(t.outer.dtype(), [&]<class A>() {
    dispatch_gradient(t.gradient.dtype(), [&]<class G>() {
      const MomentOperands<A, G> operands{ptr<A>(t.m),     ptr<A>(t.v),        ptr<G>(t.gradient),
                                          ptr<A>(t.outer), ptr<A>(t.filtered), ptr<A>(t.grafted)};
      moments_kernel<<<blocks_of(stream, elements), kThreads, 0, native(stream)>>>(operands, elements,
                                                                                   ptr<double>(step), args);
    });
  });
}

void decay_factor(Stream& stream, const Tensor& x, const Tensor& step, double beta) {
  if (x.elements() == 0) return;
  dispatch_accumulator(x.dtype(), [&]<class A>() {
    decay_kernel<A><<<blocks_of(stream, x.elements()), kThreads, 0, native(stream)>>>(ptr<A>(x), x.elements(),
                                                                                      ptr<double>(step), A(beta));
  });
}

void graft(Stream& stream, const Tensor& direction, const Tensor& grafted, const Tensor& sums, const Tensor& step,
           const GraftArgs& args) {
  if (direction.elements() == 0) return;
  dispatch_accumulator(direction.dtype(), [&]<class A>() {
    const GraftOperands<A> operands{ptr<A>(direction), ptr<A>(grafted),     ptr<double>(sums), direction.size(0),
                                    direction.size(1), direction.stride(0), grafted.stride(0)};
    const unsigned blocks = blocks_for(stream, direction.size(0));
    graft_rows_kernel<<<blocks, kThreads, 0, native(stream)>>>(operands, ptr<double>(step), args);
    if (args.scales) graft_scale_kernel<<<blocks, kThreads, 0, native(stream)>>>(operands, ptr<double>(step), args);
  });
}

void apply_direction(Stream& stream, const DirectedTensors& t, const Tensor& step, const DirectedArgs& args) {
  const int64_t elements = t.value.elements();
  if (elements == 0) return;
  dispatch_device(t.value.dtype(), [&]<class T>() {
    const Weights<T> weights{ptr<T>(t.value), ptr<Remainder<T>>(t.remainder)};
    direction_kernel<T><<<blocks_of(stream, elements), kThreads, 0, native(stream)>>>(
        weights, ptr<Acc<T>>(t.direction), elements, ptr<double>(step), args);
  });
}

}  // namespace witan::kernels::cuda
