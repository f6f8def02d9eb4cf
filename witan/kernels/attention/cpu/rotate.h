// The rotation of rotary position embeddings, and its angles.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "witan/base/threads/threads.h"
#include "witan/kernels/attention/rope.h"
#include "witan/kernels/common/cpu/rows.h"

namespace witan::kernels::cpu {

// Row r of the table is [cos | sin] of position `position(r)` for each of the R/2 pairs.
template <class A, class Position>
void fill_table(Stream& stream, A* table, int64_t rows, const RopeArgs& args, const Position& position) {
  const int64_t pairs = args.dims / 2;
  const std::vector<double> frequency = rope_frequencies(args);
  const double magnitude = args.scaling.magnitude, sine_magnitude = args.inverse ? -magnitude : magnitude;
  constexpr int64_t kGrain = 512;  // sines per task: a sine costs as much as 30 row-wise elements
  stream.pool().for_ranges(rows, kGrain / std::max<int64_t>(pairs, 1), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      A *cosine = table + r * args.dims, *sine = cosine + pairs;
      for (int64_t i = 0; i < pairs; ++i) {
        const double angle = static_cast<double>(position(r)) * frequency[static_cast<size_t>(i)];
        cosine[i] = A(magnitude * std::cos(angle));
        sine[i] = A(sine_magnitude * std::sin(angle));
      }
    }
  });
}

// Rotates one head; `sign` -1 rotates back.
template <class T, class A>
void rotate_halves(T* __restrict out, const T* __restrict in, const A* __restrict cosine, const A* __restrict sine,
                   int64_t pairs, A sign) {
#pragma omp simd
  for (int64_t i = 0; i < pairs; ++i) {
    const A a = A(in[i]), b = A(in[i + pairs]), s = sign * sine[i];
    store(out[i], a * cosine[i] - b * s);
    store(out[i + pairs], a * s + b * cosine[i]);
  }
}

template <class T, class A>
void rotate_interleaved(T* __restrict out, const T* __restrict in, const A* __restrict cosine, const A* __restrict sine,
                        int64_t pairs, A sign) {
#pragma omp simd
  for (int64_t i = 0; i < pairs; ++i) {
    const A a = A(in[2 * i]), b = A(in[2 * i + 1]), s = sign * sine[i];
    store(out[2 * i], a * cosine[i] - b * s);
    store(out[2 * i + 1], a * s + b * cosine[i]);
  }
}

// Rotates the first, or last, args.dims channels of a head of `hd` by the table's row, and copies the others.
template <class T, class A>
void rotate_head(T* out, const T* in, const A* table_row, int64_t hd, const RopeArgs& args, A sign) {
  const int64_t pairs = args.dims / 2, first = args.tail ? hd - args.dims : 0;
  if (args.interleaved)
    rotate_interleaved(out + first, in + first, table_row, table_row + pairs, pairs, sign);
  else
    rotate_halves(out + first, in + first, table_row, table_row + pairs, pairs, sign);
  std::copy(in, in + first, out);
  std::copy(in + first + args.dims, in + hd, out + first + args.dims);
}

}  // namespace witan::kernels::cpu
