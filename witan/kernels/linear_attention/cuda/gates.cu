// A thread has a head of a token.
#include "witan/kernels/linear_attention/cuda/documents.cuh"
#include "witan/kernels/linear_attention/gated_delta.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ float exact_exp(float x) {
  return expf(x);
}
__device__ __forceinline__ double exact_exp(double x) {
  return exp(x);
}
__device__ __forceinline__ float exact_log1p(float x) {
  return log1pf(x);
}
__device__ __forceinline__ double exact_log1p(double x) {
  return log1p(x);
}
template <class A>
__device__ __forceinline__ A softplus(A x) {
  return x > A(20) ? x : exact_log1p(exact_exp(x));
}
template <class A>
__device__ __forceinline__ A exact_sigmoid(A x) {
  return A(1) / (A(1) + exact_exp(-x));
}

template <class T>
struct GateInputs {
  const T *a, *b;
  const Acc<T>*A, *bias;
  int64_t H;

  __device__ Acc<T> input(int64_t t, int64_t h) const { return convert<Acc<T>>(a[t * H + h]) + bias[h]; }
  __device__ Acc<T> rate(int64_t h) const { return -exact_exp(A[h]); }
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    delta_gates_forward_kernel(Acc<T>* g, Acc<T>* beta, GateInputs<T> in, int64_t elements) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= elements) return;
  const int64_t t = i / in.H, h = i % in.H;
  g[i] = in.rate(h) * softplus(in.input(t, h));
  beta[i] = exact_sigmoid(convert<Acc<T>>(in.b[i]));
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    delta_gates_backward_kernel(T* da, T* db, const Acc<T>* dg, const Acc<T>* dbeta, GateInputs<T> in,
                                int64_t elements) {
  using A = Acc<T>;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= elements) return;
  const int64_t t = i / in.H, h = i % in.H;
  const A open = exact_sigmoid(convert<A>(in.b[i]));
  da[i] = convert<T>(dg[i] * in.rate(h) * exact_sigmoid(in.input(t, h)));
  db[i] = convert<T>(dbeta[i] * open * (A(1) - open));
}

template <class T>
struct RateTerm {
  GateInputs<T> in;
  const Acc<T>* dg;
  __device__ Acc<T> operator()(int64_t t, int64_t h) const {
    return dg[t * in.H + h] * in.rate(h) * softplus(in.input(t, h));
  }
};
template <class T>
struct BiasTerm {
  GateInputs<T> in;
  const Acc<T>* dg;
  __device__ Acc<T> operator()(int64_t t, int64_t h) const {
    return dg[t * in.H + h] * in.rate(h) * exact_sigmoid(in.input(t, h));
  }
};

unsigned blocks_of_threads(int64_t threads) {
  return static_cast<unsigned>((threads + kThreads - 1) / kThreads);
}

template <class T>
GateInputs<T> gate_inputs(const Tensor& a, const Tensor& b, const Tensor& A, const Tensor& bias) {
  return {ptr<T>(a), ptr<T>(b), ptr<Acc<T>>(A), ptr<Acc<T>>(bias), a.shape().last()};
}

}  // namespace

void delta_gates_forward(Stream& stream, const Tensor& g, const Tensor& beta, const Tensor& a, const Tensor& b,
                         const Tensor& A, const Tensor& bias) {
  if (g.elements() == 0) return;
  dispatch_device(a.dtype(), [&]<class T>() {
    delta_gates_forward_kernel<T><<<blocks_of_threads(g.elements()), kThreads, 0, native(stream)>>>(
        ptr<Acc<T>>(g), ptr<Acc<T>>(beta), gate_inputs<T>(a, b, A, bias), g.elements());
  });
}

void delta_gates_backward(Stream& stream, const DeltaGateGradients& to, const Tensor& dg, const Tensor& dbeta,
                          const Tensor& a, const Tensor& b, const Tensor& A, const Tensor& bias) {
  const auto [rows, H] = a.shape().as_rows();
  dispatch_device(a.dtype(), [&, T_ = rows, elements = rows * H]<class T>() {
    const GateInputs<T> in = gate_inputs<T>(a, b, A, bias);
    const Acc<T>* const of_g = ptr<Acc<T>>(dg);
    if (elements > 0)
      delta_gates_backward_kernel<T><<<blocks_of_threads(elements), kThreads, 0, native(stream)>>>(
          ptr<T>(to.da), ptr<T>(to.db), of_g, ptr<Acc<T>>(dbeta), in, elements);
    if (to.dA.defined()) sum_terms<Acc<T>>(stream, to.dA, to.write_A, T_, RateTerm<T>{in, of_g});
    if (to.dbias.defined()) sum_terms<Acc<T>>(stream, to.dbias, to.write_bias, T_, BiasTerm<T>{in, of_g});
  });
}

}  // namespace witan::kernels::cuda
