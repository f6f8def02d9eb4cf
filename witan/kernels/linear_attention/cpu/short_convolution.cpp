// A task takes some channels of a row, token by token. Channels are the inner, vectorised dimension.
#include "witan/kernels/linear_attention/short_convolution.h"

#include <algorithm>
#include <cassert>
#include <vector>

#include "witan/kernels/common/cpu/math.h"
#include "witan/kernels/common/cpu/rows.h"
#include "witan/kernels/pointwise/rules.h"

namespace witan::kernels::cpu {
namespace {

constexpr int64_t kTaskChannels = 64;

// The filters of channels [first, first + columns): taps [W, columns] by their order, and biases [columns].
template <class T>
struct ChannelFilters {
  using A = Accumulator<T>;

  ChannelFilters(const ConvolutionFilters& all, int64_t first, int64_t of)
      : W(all.w.size(1)),
        columns(of),
        silu(all.silu),
        taps(static_cast<size_t>(W * columns)),
        biases(static_cast<size_t>(columns)) {
    const T* const w = all.w.data<T>();
    for (int64_t c = 0; c < columns; ++c) {
      for (int64_t j = 0; j < W; ++j) taps[static_cast<size_t>(j * columns + c)] = A(w[(first + c) * W + j]);
      if (all.bias.defined()) biases[static_cast<size_t>(c)] = A(all.bias.data<T>()[first + c]);
    }
  }
  // The input of the token `back` positions before the computed one.
  const A* tap(int64_t back) const { return taps.data() + (W - 1 - back) * columns; }

  int64_t W, columns;
  bool silu;
  std::vector<A> taps, biases;
};

// sum[c] += tap[c] x[c]
template <class T, class A>
[[gnu::noinline]] void add_tap(A* sum, const A* tap, const T* x, int64_t columns) {
#pragma omp simd
  for (int64_t c = 0; c < columns; ++c) sum[c] += tap[c] * A(x[c]);
}

template <class T, class A>
[[gnu::noinline]] void store_silu(T* y, const A* u, int64_t columns) {
#pragma omp simd
  for (int64_t c = 0; c < columns; ++c) store(y[c], u[c] * fast_sigmoid(u[c]));
}

template <class T, class A>
void store_outputs(T* y, const A* u, const ChannelFilters<T>& by) {
  if (by.silu) return store_silu(y, u, by.columns);
#pragma omp simd
  for (int64_t c = 0; c < by.columns; ++c) store(y[c], u[c]);
}

// Calls body(b, first, columns) for tasks of some channels of each row.
template <class Body>
void for_channels(Stream& stream, int64_t B, int64_t C, const Body& body) {
  const int64_t panels = (C + kTaskChannels - 1) / kTaskChannels;
  stream.pool().run(B * panels, [&](int64_t task) {
    const int64_t first = task % panels * kTaskChannels;
    body(task / panels, first, std::min(kTaskChannels, C - first));
  });
}

// u of token t of a document that begins at `begin`; x points at the row's first token and channel, and its tokens are
// `stride` apart.
template <class T, class A>
void filter(A* u, const ChannelFilters<T>& by, const T* x, int64_t begin, int64_t t, int64_t stride) {
  std::ranges::copy(by.biases, u);
  for (int64_t s = std::max(begin, t - by.W + 1); s <= t; ++s) add_tap(u, by.tap(t - s), x + s * stride, by.columns);
}

// The gradients of some channels, of all rows, so that the sums over tokens have one order.
template <class T>
class ConvolutionBackward {
 public:
  using A = Accumulator<T>;

  ConvolutionBackward(const Tensor& dx, const Tensor& dy, const Tensor& x, const ChannelFilters<T>& filters,
                      int64_t first)
      : S_(x.size(1)),
        x_stride_(x.stride(1)),
        dy_stride_(dy.stride(1)),
        dx_stride_(dx.defined() ? dx.stride(1) : 0),
        W_(filters.W),
        columns_(filters.columns),
        dx_(dx.defined() ? dx.data<T>() + first : nullptr),
        dy_(dy.data<T>() + first),
        x_(x.data<T>() + first),
        filters_(filters),
        dw(filters.taps.size()),
        dbias(filters.biases.size()),
        sums_(dw.size()),
        u_(dbias.size()) {}

  void document(int64_t b, int64_t begin, int64_t end) {
    const int64_t row = b * S_;
    du_.resize(static_cast<size_t>((end - begin) * columns_));
    for (int64_t t = begin; t < end; ++t) write_sum(row, begin, t);
    std::ranges::fill(sums_, A(0));
    for (int64_t t = begin; t < end; ++t) add_taps(row, begin, t);
    for (size_t i = 0; i < dw.size(); ++i) dw[i] += sums_[i];
    std::ranges::fill(u_, A(0));
    for (int64_t t = begin; t < end; ++t)
      for (int64_t c = 0; c < columns_; ++c)
        u_[static_cast<size_t>(c)] += du_[static_cast<size_t>((t - begin) * columns_ + c)];
    for (size_t i = 0; i < dbias.size(); ++i) dbias[i] += u_[i];
    if (dx_ != nullptr)
      for (int64_t s = begin; s < end; ++s) write_input(row, begin, s, end);
  }

 private:
  // du of token t
  void write_sum(int64_t row, int64_t begin, int64_t t) {
    const T* g = dy_ + (row + t) * dy_stride_;
    A* const to = du_.data() + (t - begin) * columns_;
    if (!filters_.silu) {
      for (int64_t c = 0; c < columns_; ++c) to[c] = A(g[c]);
      return;
    }
    filter(u_.data(), filters_, x_ + row * x_stride_, begin, t, x_stride_);
#pragma omp simd
    for (int64_t c = 0; c < columns_; ++c) to[c] = A(g[c]) * rules::Silu<Math>::at(u_[static_cast<size_t>(c)]).slope;
  }
  void add_taps(int64_t row, int64_t begin, int64_t t) {
    for (int64_t s = std::max(begin, t - W_ + 1); s <= t; ++s)
      add_tap(sums_.data() + (W_ - 1 - (t - s)) * columns_, du_.data() + (t - begin) * columns_,
              x_ + (row + s) * x_stride_, columns_);
  }
  void write_input(int64_t row, int64_t begin, int64_t s, int64_t end) {
    std::ranges::fill(u_, A(0));
    for (int64_t t = s; t < std::min(end, s + W_); ++t)
      add_tap(u_.data(), filters_.tap(t - s), du_.data() + (t - begin) * columns_, columns_);
    T* const out = dx_ + (row + s) * dx_stride_;
#pragma omp simd
    for (int64_t c = 0; c < columns_; ++c) store(out[c], u_[static_cast<size_t>(c)]);
  }

  int64_t S_, x_stride_, dy_stride_, dx_stride_, W_, columns_;
  T* dx_;
  const T *dy_, *x_;
  const ChannelFilters<T>& filters_;

 public:
  std::vector<A> dw, dbias;  // [W, columns] and [columns]

 private:
  std::vector<A> sums_;  // of one document
  std::vector<A> u_, du_;
};

}  // namespace

void short_convolution_forward(Stream& stream, const Tensor& y, const Tensor& x, const ConvolutionFilters& all,
                               const Tensor& sequence_ids) {
  const int64_t B = x.size(0), S = x.size(1), C = x.size(2);
  dispatch_floating(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    for_channels(stream, B, C, [&](int64_t b, int64_t first, int64_t columns) {
      const ChannelFilters<T> filters(all, first, columns);
      std::vector<A> u(static_cast<size_t>(columns));
      const T* const in = x.data<T>() + b * S * x.stride(1) + first;
      for (int64_t begin = 0, end = 0; begin < S; begin = end) {
        end = document_end(sequence_ids, b, begin, S);
        for (int64_t t = begin; t < end; ++t) {
          filter(u.data(), filters, in, begin, t, x.stride(1));
          store_outputs(y.data<T>() + (b * S + t) * y.stride(1) + first, u.data(), filters);
        }
      }
    });
  });
}

namespace {

// to[c, j] (=|+=) sums[j, c] for channels [first, first + columns) of `of` numbers each
template <class A>
void write_sums(const Tensor& to, Write write, const std::vector<A>& sums, int64_t first, int64_t columns, int64_t of) {
  if (!to.defined()) return;
  dispatch_floating(to.dtype(), [&]<class G>() {
    for (int64_t c = 0; c < columns; ++c)
      for (int64_t j = 0; j < of; ++j) {
        G& out = to.data<G>()[(first + c) * of + j];
        const A before = write == Write::accumulate ? A(out) : A(0);
        out = G(before + sums[static_cast<size_t>(j * columns + c)]);
      }
  });
}

}  // namespace

void short_convolution_backward(Stream& stream, const ConvolutionGradients& to, const Tensor& dy, const Tensor& x,
                                const ConvolutionFilters& all, const Tensor& sequence_ids) {
  const int64_t B = x.size(0), S = x.size(1), C = x.size(2);
  dispatch_floating(x.dtype(), [&]<class T>() {
    for_channels(stream, 1, C, [&](int64_t, int64_t first, int64_t columns) {
      const ChannelFilters<T> filters(all, first, columns);
      ConvolutionBackward<T> channels(to.dx, dy, x, filters, first);
      for (int64_t b = 0; b < B; ++b)
        for (int64_t begin = 0, end = 0; begin < S; begin = end) {
          end = document_end(sequence_ids, b, begin, S);
          channels.document(b, begin, end);
        }
      write_sums(to.dw, to.write_w, channels.dw, first, columns, filters.W);
      write_sums(to.dbias, to.write_bias, channels.dbias, first, columns, 1);
    });
  });
}

void short_convolution_decode(Stream& stream, const Tensor& y, const Tensor& tails, const Tensor& x,
                              const ConvolutionFilters& all, const CacheTokens& tokens) {
  const int64_t C = x.size(1), slots = all.w.size(1) - 1;
  assert(tails.size(1) == slots);
  dispatch_floating(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    for_channels(stream, 1, C, [&](int64_t, int64_t first, int64_t columns) {
      const ChannelFilters<T> filters(all, first, columns);
      std::vector<A> u(static_cast<size_t>(columns));
      int64_t token = 0;
      for (const CacheRun& run : tokens.runs) {
        T* const tail = tails.data<T>() + run.row * tails.stride(0) + first;
        for (int64_t p = run.past; p < run.past + run.count; ++p, ++token) {
          const T* const in = x.data<T>() + token * x.stride(0) + first;
          std::ranges::copy(filters.biases, u.data());
          for (int64_t s = std::max<int64_t>(0, p - slots); s <= p; ++s)
            add_tap(u.data(), filters.tap(p - s), s == p ? in : tail + s % slots * tails.stride(1), columns);
          store_outputs(y.data<T>() + token * y.stride(0) + first, u.data(), filters);
          std::copy_n(in, columns, tail + p % slots * tails.stride(1));
        }
      }
    });
  });
}

void multiply_columns(Stream& stream, const Tensor& y, const Tensor& a, const Tensor& b) {
  dispatch_floating(y.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    for_rows(stream, y, [&, C = y.size(1)](int64_t t) {
      const T *left = a.data<T>() + t * a.stride(0), *right = b.data<T>() + t * b.stride(0);
      T* const out = y.data<T>() + t * y.stride(0);
#pragma omp simd
      for (int64_t c = 0; c < C; ++c) store(out[c], A(left[c]) * A(right[c]));
    });
  });
}

}  // namespace witan::kernels::cpu
