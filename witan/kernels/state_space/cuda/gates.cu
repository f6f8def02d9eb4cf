// A thread has a head of a token, or a warp a group of a row.
#include "witan/kernels/linear_attention/cuda/documents.cuh"
#include "witan/kernels/pointwise/cuda/activation.cuh"
#include "witan/kernels/state_space/ssd.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kGateThreads = 256, kGateWarps = kGateThreads / 32;

__device__ __forceinline__ float precise_exp(float x) {
  return expf(x);
}
__device__ __forceinline__ double precise_exp(double x) {
  return exp(x);
}
__device__ __forceinline__ float precise_log1p(float x) {
  return log1pf(x);
}
__device__ __forceinline__ double precise_log1p(double x) {
  return log1p(x);
}

template <class T>
struct StepInputs {
  using A = Acc<T>;
  const T* raw;
  const A *rates, *bias;  // logarithms of rates
  int64_t H;
  A least;

  __device__ A input(int64_t t, int64_t h) const { return convert<A>(raw[t * H + h]) + bias[h]; }
  // dt before its clamp
  __device__ A step(int64_t t, int64_t h) const {
    const A x = input(t, h);
    return x > A(20) ? x : precise_log1p(precise_exp(x));
  }
  __device__ A clamped(int64_t t, int64_t h) const {
    const A found = step(t, h);
    return found < least ? least : found;
  }
  __device__ A rate(int64_t h) const { return -precise_exp(rates[h]); }
};

// The gradient of raw + bias.
template <class T>
struct StepBiasTerm {
  StepInputs<T> in;
  const Acc<T>*ddt, *da;
  __device__ Acc<T> operator()(int64_t t, int64_t h) const {
    using A = Acc<T>;
    if (in.step(t, h) < in.least) return 0;
    return (ddt[t * in.H + h] + in.rate(h) * da[t * in.H + h]) / (A(1) + precise_exp(-in.input(t, h)));
  }
};
template <class T>
struct StepRateTerm {
  StepInputs<T> in;
  const Acc<T>* da;
  __device__ Acc<T> operator()(int64_t t, int64_t h) const { return da[t * in.H + h] * in.rate(h) * in.clamped(t, h); }
};

template <class T>
__global__ void __launch_bounds__(kGateThreads)
    ssd_gates_forward_kernel(Acc<T>* dt, Acc<T>* a, StepInputs<T> in, int64_t elements) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kGateThreads + threadIdx.x;
  if (i >= elements) return;
  dt[i] = in.clamped(i / in.H, i % in.H);
  a[i] = in.rate(i % in.H) * dt[i];
}

template <class T>
__global__ void __launch_bounds__(kGateThreads)
    ssd_gates_backward_kernel(T* draw, StepBiasTerm<T> term, int64_t elements) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kGateThreads + threadIdx.x;
  if (i < elements) draw[i] = convert<T>(term(i / term.in.H, i % term.in.H));
}

// A group of a row: u = x silu(z).
template <class T>
struct GatedGroup {
  using A = Acc<T>;
  const T *x, *z;
  __device__ A gated(int64_t d) const { return convert<A>(x[d]) * Silu::at(convert<A>(z[d])).value; }
};

template <class T>
__global__ void __launch_bounds__(kGateThreads)
    gated_group_rmsnorm_forward_kernel(T* y, Acc<T>* r, const T* x, const T* z, const Acc<T>* w, int64_t rows,
                                       int64_t groups, int64_t of_group, Acc<T> eps) {
  using A = Acc<T>;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kGateWarps + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (at >= rows * groups) return;
  const GatedGroup<T> in{x + at * of_group, z + at * of_group};
  const A* const weight = w + at % groups * of_group;
  A squares = 0;
  for (int64_t d = lane; d < of_group; d += 32) squares += in.gated(d) * in.gated(d);
  const A scale = A(1) / sqrt(warp_sum(squares) / static_cast<A>(of_group) + eps);
  if (lane == 0) r[at] = scale;
  for (int64_t d = lane; d < of_group; d += 32) y[at * of_group + d] = convert<T>(in.gated(d) * scale * weight[d]);
}

template <class T>
__global__ void __launch_bounds__(kGateThreads)
    gated_group_rmsnorm_backward_kernel(T* dx, T* dz, const T* dy, const T* x, const T* z, const Acc<T>* w,
                                        const Acc<T>* r, int64_t rows, int64_t groups, int64_t of_group) {
  using A = Acc<T>;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kGateWarps + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (at >= rows * groups) return;
  const GatedGroup<T> in{x + at * of_group, z + at * of_group};
  const T* const gradient = dy + at * of_group;
  const A* const weight = w + at % groups * of_group;
  const A scale = r[at];
  A dot = 0;
  for (int64_t d = lane; d < of_group; d += 32) dot += weight[d] * convert<A>(gradient[d]) * in.gated(d) * scale;
  const A pull = warp_sum(dot) / static_cast<A>(of_group);
  for (int64_t d = lane; d < of_group; d += 32) {
    const auto open = Silu::at(convert<A>(in.z[d]));
    const A value = convert<A>(in.x[d]);
    const A du = scale * (weight[d] * convert<A>(gradient[d]) - value * open.value * scale * pull);
    dx[at * of_group + d] = convert<T>(du * open.value);
    dz[at * of_group + d] = convert<T>(du * value * open.slope);
  }
}

template <class T>
struct GroupWeightTerm {
  const T *dy, *x, *z;
  const Acc<T>* r;
  int64_t D, groups;
  __device__ Acc<T> operator()(int64_t t, int64_t d) const {
    const GatedGroup<T> in{x + t * D, z + t * D};
    return convert<Acc<T>>(dy[t * D + d]) * in.gated(d) * r[t * groups + d / (D / groups)];
  }
};

unsigned gate_blocks(int64_t threads) {
  return static_cast<unsigned>((threads + kGateThreads - 1) / kGateThreads);
}

template <class T>
StepInputs<T> step_inputs(const Tensor& raw, const Tensor& A, const Tensor& bias, double least) {
  return {ptr<T>(raw), ptr<Acc<T>>(A), ptr<Acc<T>>(bias), raw.shape().last(), static_cast<Acc<T>>(least)};
}

}  // namespace

void ssd_gates_forward(Stream& stream, const Tensor& dt, const Tensor& a, const Tensor& raw, const Tensor& A,
                       const Tensor& bias, double least) {
  if (dt.elements() == 0) return;
  dispatch_device(raw.dtype(), [&]<class T>() {
    ssd_gates_forward_kernel<T><<<gate_blocks(dt.elements()), kGateThreads, 0, native(stream)>>>(
        ptr<Acc<T>>(dt), ptr<Acc<T>>(a), step_inputs<T>(raw, A, bias, least), dt.elements());
  });
}

void ssd_gates_backward(Stream& stream, const SsdGateGradients& to, const Tensor& ddt, const Tensor& da,
                        const Tensor& raw, const Tensor& A, const Tensor& bias, double least) {
  const auto [rows, H] = raw.shape().as_rows();
  dispatch_device(raw.dtype(), [&, tokens = rows, elements = rows * H]<class T>() {
    const StepInputs<T> in = step_inputs<T>(raw, A, bias, least);
    const StepBiasTerm<T> of_input{in, ptr<Acc<T>>(ddt), ptr<Acc<T>>(da)};
    if (elements > 0)
      ssd_gates_backward_kernel<T>
          <<<gate_blocks(elements), kGateThreads, 0, native(stream)>>>(ptr<T>(to.draw), of_input, elements);
    if (to.dA.defined()) sum_terms<Acc<T>>(stream, to.dA, to.write_A, tokens, StepRateTerm<T>{in, of_input.da});
    if (to.dbias.defined()) sum_terms<Acc<T>>(stream, to.dbias, to.write_bias, tokens, of_input);
  });
}

void gated_group_rmsnorm_forward(Stream& stream, const Tensor& y, const Tensor& r, const Tensor& x, const Tensor& z,
                                 const Tensor& w, double eps) {
  const auto [rows, D] = x.shape().as_rows();
  if (rows == 0) return;
  dispatch_device(x.dtype(), [&, tokens = rows, groups = r.size(1), of_group = D / r.size(1)]<class T>() {
    gated_group_rmsnorm_forward_kernel<T><<<gate_blocks(32 * tokens * groups), kGateThreads, 0, native(stream)>>>(
        ptr<T>(y), ptr<Acc<T>>(r), ptr<T>(x), ptr<T>(z), ptr<Acc<T>>(w), tokens, groups, of_group,
        static_cast<Acc<T>>(eps));
  });
}

void gated_group_rmsnorm_backward(Stream& stream, const GatedGroupNormGradients& to, const Tensor& dy, const Tensor& x,
                                  const Tensor& z, const Tensor& w, const Tensor& r) {
  const auto [rows, D] = x.shape().as_rows();
  dispatch_device(x.dtype(), [&, tokens = rows, width = D, groups = r.size(1)]<class T>() {
    if (tokens > 0)
      gated_group_rmsnorm_backward_kernel<T><<<gate_blocks(32 * tokens * groups), kGateThreads, 0, native(stream)>>>(
          ptr<T>(to.dx), ptr<T>(to.dz), ptr<T>(dy), ptr<T>(x), ptr<T>(z), ptr<Acc<T>>(w), ptr<Acc<T>>(r), tokens,
          groups, width / groups);
    if (to.dw.defined())
      sum_terms<Acc<T>>(stream, to.dw, to.write, tokens,
                        GroupWeightTerm<T>{ptr<T>(dy), ptr<T>(x), ptr<T>(z), ptr<Acc<T>>(r), width, groups});
  });
}

}  // namespace witan::kernels::cuda
