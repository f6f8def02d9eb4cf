// A thread has a channel of a token, but for four taps.
#include "witan/kernels/linear_attention/cuda/short_convolution_packs.cuh"
#include "witan/kernels/linear_attention/short_convolution.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// A row-major tensor of tokens, or some channels of one.
template <class T>
struct Tokens {
  T* at;
  int64_t stride;
  __device__ T& operator()(int64_t t, int64_t c) const { return at[t * stride + c]; }
};
template <class T>
Tokens<T> tokens_of(const Tensor& x) {
  return {ptr<T>(x), x.defined() ? x.stride(x.shape().dims() - 2) : 0};
}

template <class T>
struct Filter {
  Tokens<T> x;
  const T *w, *bias;  // bias: null for 0
  bool silu;
  const int32_t* ids;
  int64_t S, W;

  __device__ const int32_t* ids_of(int64_t row) const { return ids == nullptr ? nullptr : ids + row; }
  __device__ Acc<T> begin(int64_t c) const { return bias == nullptr ? Acc<T>(0) : convert<Acc<T>>(bias[c]); }
  // u of token t of the row that begins at token `row` of all rows
  __device__ Acc<T> value(int64_t row, int64_t t, int64_t c) const {
    const int64_t least = t - W + 1 > 0 ? t - W + 1 : 0;
    Acc<T> u = begin(c);
    for (int64_t s = run_begin(ids_of(row), t, least); s <= t; ++s)
      u += convert<Acc<T>>(w[c * W + W - 1 - (t - s)]) * convert<Acc<T>>(x(row + s, c));
    return u;
  }
};

// The terms of dbias[c].
template <class T>
struct ConvolutionBiasTerm {
  Filter<T> filter;
  Tokens<T> dy;
  __device__ Acc<T> operator()(int64_t at, int64_t c) const {
    const int64_t row = at / filter.S * filter.S;
    return convert<Acc<T>>(dy(at, c)) * activated(filter.value(row, at - row, c), filter.silu).slope;
  }
};

// The terms of dw[c,j], column c W + j.
template <class T>
struct TapTerm {
  Filter<T> filter;
  Tokens<T> dy;
  __device__ Acc<T> operator()(int64_t at, int64_t column) const {
    const int64_t c = column / filter.W, j = column % filter.W, row = at / filter.S * filter.S, t = at - row;
    const int64_t s = t - filter.W + 1 + j;
    if (s < 0 || run_begin(filter.ids_of(row), t, s) > s) return 0;
    const Acc<T> du = convert<Acc<T>>(dy(at, c)) * activated(filter.value(row, t, c), filter.silu).slope;
    return du * convert<Acc<T>>(filter.x(row + s, c));
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    short_convolution_forward_kernel(Tokens<T> y, Filter<T> filter, int64_t tokens, int64_t C) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= tokens * C) return;
  const int64_t at = i / C, c = i % C, row = at / filter.S * filter.S;
  y(at, c) = convert<T>(activated(filter.value(row, at - row, c), filter.silu).value);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    short_convolution_input_kernel(Tokens<T> dx, Tokens<T> dy, Filter<T> filter, int64_t tokens, int64_t C) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= tokens * C) return;
  const int64_t at = i / C, c = i % C, row = at / filter.S * filter.S, s = at - row, W = filter.W;
  const int64_t end = run_end(filter.ids_of(row), s, s + W < filter.S ? s + W : filter.S);
  Acc<T> sum = 0;
  for (int64_t t = s; t < end; ++t) {
    const Acc<T> du = convert<Acc<T>>(dy(row + t, c)) * activated(filter.value(row, t, c), filter.silu).slope;
    sum += convert<Acc<T>>(filter.w[c * W + W - 1 - (t - s)]) * du;
  }
  dx(at, c) = convert<T>(sum);
}

// The tails of rows: position p in slot p mod (W - 1).
template <class T>
struct Tails {
  T* at;
  int64_t of_row, of_slot;
  const int32_t *rows, *positions;
  __device__ T& slot(int64_t t, int64_t position, int64_t slots, int64_t c) const {
    return at[rows[t] * of_row + position % slots * of_slot + c];
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    short_convolution_decode_kernel(Tokens<T> y, Tails<T> tails, Filter<T> filter, int64_t tokens, int64_t C) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= tokens * C) return;
  const int64_t t = i / C, c = i % C, p = tails.positions[t], W = filter.W;
  const Tokens<T>& x = filter.x;
  Acc<T> u = filter.begin(c);
  for (int64_t back = p < W - 1 ? p : W - 1; back >= 0; --back) {
    const bool here = t >= back && tails.rows[t - back] == tails.rows[t] && tails.positions[t - back] == p - back;
    const T in = here ? x(t - back, c) : tails.slot(t, p - back, W - 1, c);
    u += convert<Acc<T>>(filter.w[c * W + W - 1 - back]) * convert<Acc<T>>(in);
  }
  y(t, c) = convert<T>(activated(u, filter.silu).value);
}

// The last W - 1 tokens of each run are kept.
template <class T>
__global__ void __launch_bounds__(kThreads)
    keep_tails_kernel(Tails<T> tails, Tokens<T> x, int64_t tokens, int64_t C, int64_t slots) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= tokens * C) return;
  const int64_t t = i / C, c = i % C;
  if (t + slots < tokens && tails.rows[t + slots] == tails.rows[t]) return;
  tails.slot(t, tails.positions[t], slots, c) = x(t, c);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    multiply_columns_kernel(Tokens<T> y, Tokens<const T> a, Tokens<const T> b, int64_t elements, int64_t C) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= elements) return;
  const int64_t t = i / C, c = i % C;
  y(t, c) = convert<T>(convert<Acc<T>>(a(t, c)) * convert<Acc<T>>(b(t, c)));
}

unsigned blocks_of(int64_t elements) {
  return static_cast<unsigned>((elements + kThreads - 1) / kThreads);
}

template <class T>
Filter<T> filter_of(const Tensor& x, const ConvolutionFilters& of, const Tensor& ids) {
  return {tokens_of<T>(x), ptr<T>(of.w), ptr<T>(of.bias), of.silu, ptr<int32_t>(ids), x.size(1), of.w.size(1)};
}

template <class T>
PackRows<T> pack_rows(const Tensor& x) {
  return {ptr<std::remove_const_t<T>>(x), x.defined() ? x.stride(1) : 0};
}

// Whether each of these, as far as it is defined, moves in packs of channels.
template <class T>
bool moves_in_packs(const Tensor& w, std::initializer_list<const Tensor*> all) {
  return w.size(1) == kPackTaps && w.size(0) % kConvolutionPack<T> == 0 && packs<T>(w.raw(), kPackTaps, kPackTaps) &&
         std::ranges::all_of(all, [](const Tensor* x) {
           return !x->defined() || packs<T>(x->raw(), x->stride(1), kConvolutionPack<T>);
         });
}

// With strips of `strip` tokens.
template <class T>
PackConvolution<T> pack_convolution(const Tensor& x, const ConvolutionFilters& of, const Tensor& ids, int64_t strip) {
  const int64_t tokens = x.size(0) * x.size(1);
  return {pack_rows<const T>(x),
          ptr<T>(of.w),
          ptr<T>(of.bias),
          of.silu,
          ptr<int32_t>(ids),
          tokens,
          x.size(1),
          x.size(2),
          strip};
}

template <class T>
dim3 pack_grid(const PackConvolution<T>& of) {
  const int64_t packs = of.C / kConvolutionPack<T>;
  return {static_cast<unsigned>((packs + kPackThreads - 1) / kPackThreads),
          static_cast<unsigned>((of.tokens + of.strip - 1) / of.strip)};
}

template <class T>
void backward_of_packs(Stream& stream, const ConvolutionGradients& to, const Tensor& dy, const Tensor& x,
                       const ConvolutionFilters& filters, const Tensor& ids) {
  constexpr int64_t kLeastStrip = 32, kMostStrips = 256;
  const int64_t tokens = x.size(0) * x.size(1);
  const PackConvolution<T> in =
      pack_convolution<T>(x, filters, ids, std::max(kLeastStrip, (tokens + kMostStrips - 1) / kMostStrips));
  const dim3 grid = pack_grid(in);
  const auto run = [&](Acc<T>* partials) {
    short_convolution_pack_backward_kernel<T>
        <<<grid, kPackThreads, 0, native(stream)>>>(pack_rows<T>(to.dx), partials, pack_rows<const T>(dy), in);
  };
  if (!to.dw.defined()) return run(nullptr);
  const Strips<Acc<T>> partials(stream, grid.y, to.dw.elements());
  run(partials.strips);
  add_strips(stream, to.dw, to.write_w, partials);
}

}  // namespace

void short_convolution_forward(Stream& stream, const Tensor& y, const Tensor& x, const ConvolutionFilters& filters,
                               const Tensor& sequence_ids) {
  if (x.elements() == 0) return;
  dispatch_device(x.dtype(), [&]<class T>() {
    if (moves_in_packs<T>(filters.w, {&x, &y})) {
      constexpr int64_t kStrip = 32;
      const PackConvolution<T> in = pack_convolution<T>(x, filters, sequence_ids, kStrip);
      short_convolution_pack_forward_kernel<T><<<pack_grid(in), kPackThreads, 0, native(stream)>>>(pack_rows<T>(y), in);
      return;
    }
    short_convolution_forward_kernel<T><<<blocks_of(x.elements()), kThreads, 0, native(stream)>>>(
        tokens_of<T>(y), filter_of<T>(x, filters, sequence_ids), x.size(0) * x.size(1), x.size(2));
  });
}

void short_convolution_backward(Stream& stream, const ConvolutionGradients& to, const Tensor& dy, const Tensor& x,
                                const ConvolutionFilters& filters, const Tensor& sequence_ids) {
  const int64_t tokens = x.size(0) * x.size(1);
  dispatch_device(x.dtype(), [&]<class T>() {
    const Filter<T> filter = filter_of<T>(x, filters, sequence_ids);
    if (tokens > 0 && moves_in_packs<T>(filters.w, {&x, &to.dx, &dy})) {
      backward_of_packs<T>(stream, to, dy, x, filters, sequence_ids);
    } else {
      if (to.dx.defined() && tokens > 0)
        short_convolution_input_kernel<T><<<blocks_of(x.elements()), kThreads, 0, native(stream)>>>(
            tokens_of<T>(to.dx), tokens_of<T>(dy), filter, tokens, x.size(2));
      if (to.dw.defined()) sum_terms<Acc<T>>(stream, to.dw, to.write_w, tokens, TapTerm<T>{filter, tokens_of<T>(dy)});
    }
    if (to.dbias.defined())
      sum_terms<Acc<T>>(stream, to.dbias, to.write_bias, tokens, ConvolutionBiasTerm<T>{filter, tokens_of<T>(dy)});
  });
}

void short_convolution_decode(Stream& stream, const Tensor& y, const Tensor& tails, const Tensor& x,
                              const ConvolutionFilters& filters, const CacheTokens& tokens) {
  if (x.elements() == 0) return;
  dispatch_device(x.dtype(), [&]<class T>() {
    const Tails<T> to{ptr<T>(tails), tails.stride(0), tails.stride(1), ptr<int32_t>(tokens.rows),
                      ptr<int32_t>(tokens.positions)};
    const unsigned blocks = blocks_of(x.elements());
    const int64_t taps = filters.w.size(1);
    const Filter<T> filter{
        tokens_of<T>(x), ptr<T>(filters.w), ptr<T>(filters.bias), filters.silu, nullptr, x.size(0), taps};
    short_convolution_decode_kernel<T>
        <<<blocks, kThreads, 0, native(stream)>>>(tokens_of<T>(y), to, filter, x.size(0), x.size(1));
    keep_tails_kernel<T><<<blocks, kThreads, 0, native(stream)>>>(to, filter.x, x.size(0), x.size(1), taps - 1);
  });
}

void multiply_columns(Stream& stream, const Tensor& y, const Tensor& a, const Tensor& b) {
  if (y.elements() == 0) return;
  dispatch_device(y.dtype(), [&]<class T>() {
    multiply_columns_kernel<T><<<blocks_of(y.elements()), kThreads, 0, native(stream)>>>(
        tokens_of<T>(y), tokens_of<const T>(a), tokens_of<const T>(b), y.elements(), y.size(1));
  });
}

}  // namespace witan::kernels::cuda
