// A thread has a decay of a token, of a head or of one of its channels.
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
  int64_t C, of_head, strengths;  // decays of a token and of a head in it; the elements of b

  __device__ Acc<T> input(int64_t t, int64_t c) const { return convert<Acc<T>>(a[t * C + c]) + bias[c]; }
  __device__ Acc<T> rate(int64_t c) const { return -exact_exp(A[of_head == 1 ? c : c / of_head]); }
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    delta_gates_forward_kernel(Acc<T>* g, Acc<T>* beta, GateInputs<T> in, int64_t elements) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= elements) return;
  const int64_t t = i / in.C, c = i % in.C;
  g[i] = in.rate(c) * softplus(in.input(t, c));
  if (i < in.strengths) beta[i] = exact_sigmoid(convert<Acc<T>>(in.b[i]));
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    delta_gates_backward_kernel(T* da, T* db, const Acc<T>* dg, const Acc<T>* dbeta, GateInputs<T> in,
                                int64_t elements) {
  using A = Acc<T>;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= elements) return;
  const int64_t t = i / in.C, c = i % in.C;
  da[i] = convert<T>(dg[i] * in.rate(c) * exact_sigmoid(in.input(t, c)));
  if (i >= in.strengths) return;
  const A open = exact_sigmoid(convert<A>(in.b[i]));
  db[i] = convert<T>(dbeta[i] * open * (A(1) - open));
}

template <class T>
struct RateTerm {
  GateInputs<T> in;
  const Acc<T>* dg;
  __device__ Acc<T> operator()(int64_t t, int64_t c) const {
    return dg[t * in.C + c] * in.rate(c) * softplus(in.input(t, c));
  }
};
template <class T>
struct BiasTerm {
  GateInputs<T> in;
  const Acc<T>* dg;
  __device__ Acc<T> operator()(int64_t t, int64_t c) const {
    return dg[t * in.C + c] * in.rate(c) * exact_sigmoid(in.input(t, c));
  }
};

// partials[strip, h] = the sum of term(t, c) over the strip's tokens t and the channels c of head h. A block has a head
// of a strip.
template <class T>
__global__ void __launch_bounds__(kThreads)
    sum_heads_kernel(Acc<T>* partials, RateTerm<T> term, int64_t rows, int64_t strip_rows) {
  __shared__ Acc<T> shared[kThreads / 32];
  const int of_head = static_cast<int>(term.in.of_head);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * of_head, begin = blockIdx.y * strip_rows;
  const int elements = static_cast<int>(min(strip_rows, rows - begin)) * of_head;
  Acc<T> sum = 0;
  for (int at = static_cast<int>(threadIdx.x); at < elements; at += kThreads)
    sum += term(begin + at / of_head, first + at % of_head);
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) partials[static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x] = sum;
}

// dA of decays of channels.
template <class T>
void sum_heads(Stream& stream, const Tensor& to, Write write, int64_t rows, const RateTerm<T>& term) {
  constexpr int64_t kLeastRows = 64, kMostStrips = 256;
  const int64_t H = to.elements(), strips = std::clamp<int64_t>((rows + kLeastRows - 1) / kLeastRows, 1, kMostStrips);
  const Strips<Acc<T>> partials(stream, strips, H);
  const dim3 grid(static_cast<unsigned>(H), static_cast<unsigned>(strips));
  sum_heads_kernel<T><<<grid, kThreads, 0, native(stream)>>>(partials.strips, term, rows, (rows + strips - 1) / strips);
  add_strips(stream, to, write, partials);
}

unsigned blocks_of_threads(int64_t threads) {
  return static_cast<unsigned>((threads + kThreads - 1) / kThreads);
}

template <class T>
GateInputs<T> gate_inputs(const Tensor& a, const Tensor& b, const Tensor& A, const Tensor& bias) {
  const int64_t C = a.shape().last();
  return {ptr<T>(a), ptr<T>(b), ptr<Acc<T>>(A), ptr<Acc<T>>(bias), C, C / b.shape().last(), b.elements()};
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
  const auto [rows, C] = a.shape().as_rows();
  dispatch_device(a.dtype(), [&, T_ = rows, elements = rows * C]<class T>() {
    const GateInputs<T> in = gate_inputs<T>(a, b, A, bias);
    const Acc<T>* const of_g = ptr<Acc<T>>(dg);
    if (elements > 0)
      delta_gates_backward_kernel<T><<<blocks_of_threads(elements), kThreads, 0, native(stream)>>>(
          ptr<T>(to.da), ptr<T>(to.db), of_g, ptr<Acc<T>>(dbeta), in, elements);
    const RateTerm<T> of_rate{in, of_g};
    if (to.dA.defined() && in.of_head == 1) sum_terms<Acc<T>>(stream, to.dA, to.write_A, T_, of_rate);
    if (to.dA.defined() && in.of_head > 1) sum_heads<T>(stream, to.dA, to.write_A, T_, of_rate);
    if (to.dbias.defined()) sum_terms<Acc<T>>(stream, to.dbias, to.write_bias, T_, BiasTerm<T>{in, of_g});
  });
}

}  // namespace witan::kernels::cuda
