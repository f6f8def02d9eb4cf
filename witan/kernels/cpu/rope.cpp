#include "witan/kernels/rope.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "witan/kernels/cpu/rows.h"
#include "witan/kernels/cpu/store.h"

namespace witan::kernels::cpu {
namespace {

// Row r of the table is [cos | sin] of position `position(r)` for each of the R/2 pairs.
template <class A, class Position>
void fill_table(Stream& stream, A* table, int64_t rows, const RopeArgs& args, const Position& position) {
  const int64_t pairs = args.dims / 2;
  std::vector<double> frequency(static_cast<size_t>(pairs));
  for (int64_t i = 0; i < pairs; ++i)
    frequency[static_cast<size_t>(i)] =
        std::pow(args.base, -2.0 * static_cast<double>(i) / static_cast<double>(args.dims));
  const double sign = args.inverse ? -1.0 : 1.0;
  constexpr int64_t kGrain = 512;  // sines per task: a sine costs as much as 30 row-wise elements
  stream.pool().for_ranges(rows, kGrain / std::max<int64_t>(pairs, 1), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      A *cosine = table + r * args.dims, *sine = cosine + pairs;
      for (int64_t i = 0; i < pairs; ++i) {
        const double angle = static_cast<double>(position(r)) * frequency[static_cast<size_t>(i)];
        cosine[i] = A(std::cos(angle));
        sine[i] = A(sign * std::sin(angle));
      }
    }
  });
}

template <class T, class A>
void rotate_halves(T* __restrict out, const T* __restrict in, const A* __restrict cosine, const A* __restrict sine,
                   int64_t pairs) {
#pragma omp simd
  for (int64_t i = 0; i < pairs; ++i) {
    const A a = A(in[i]), b = A(in[i + pairs]);
    store(out[i], a * cosine[i] - b * sine[i]);
    store(out[i + pairs], a * sine[i] + b * cosine[i]);
  }
}

template <class T, class A>
void rotate_interleaved(T* __restrict out, const T* __restrict in, const A* __restrict cosine, const A* __restrict sine,
                        int64_t pairs) {
#pragma omp simd
  for (int64_t i = 0; i < pairs; ++i) {
    const A a = A(in[2 * i]), b = A(in[2 * i + 1]);
    store(out[2 * i], a * cosine[i] - b * sine[i]);
    store(out[2 * i + 1], a * sine[i] + b * cosine[i]);
  }
}

}  // namespace

void rope(Stream& stream, const Tensor& y, const Tensor& table, const Tensor& x, const Tensor& positions,
          const RopeArgs& args) {
  const int64_t tokens = positions.elements(), heads = x.size(2), hd = x.size(3), pairs = args.dims / 2;
  if (x.elements() == 0) return;
  const int32_t* position = positions.data<int32_t>();
  const int64_t highest = *std::max_element(position, position + tokens);
  // Sequences of a batch share positions, so the table has a row per position; or, where that would take more rows than
  // there are tokens (a late position decoded alone), a row per token.
  const bool by_position = highest < tokens;
  dispatch_floating(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    A* angles = table.data<A>();
    if (by_position)
      fill_table(stream, angles, highest + 1, args, [](int64_t r) { return r; });
    else
      fill_table(stream, angles, tokens, args, [&](int64_t r) { return position[r]; });
    stream.pool().for_ranges(tokens, kTaskElements / (heads * hd), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const A *cosine = angles + (by_position ? position[t] : t) * args.dims, *sine = cosine + pairs;
        for (int64_t row = t * heads; row < (t + 1) * heads; ++row) {
          const T* in = x.data<T>() + row * hd;
          T* out = y.data<T>() + row * hd;
          if (args.interleaved)
            rotate_interleaved(out, in, cosine, sine, pairs);
          else
            rotate_halves(out, in, cosine, sine, pairs);
          std::copy(in + args.dims, in + hd, out + args.dims);
        }
      }
    });
  });
}

}  // namespace witan::kernels::cpu
