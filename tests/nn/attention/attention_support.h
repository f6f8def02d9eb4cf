// Shared by the tests of attention layers: building layers, positions, and decoding in steps.
#pragma once

#include <algorithm>
#include <vector>

#include "support/module.h"
#include "witan/nn/attention/attention.h"
#include "witan/nn/attention/config.h"

namespace witan::testing {

inline Builder attention_builder(Rank& rank, DType dtype) {
  return {.stream = rank.stream, .dtype = dtype, .init_std = 0.3, .output_init_std = 0.2, .path = "attention"};
}

// B sequences of S tokens each, which begin at position `first`.
inline Positions positions_of(Rank& rank, int64_t B, int64_t S, int64_t first = 0) {
  std::vector<int32_t> all;
  for (int64_t b = 0; b < B; ++b)
    for (int64_t s = 0; s < S; ++s) all.push_back(static_cast<int32_t>(first + s));
  return {rank.tensor<int32_t>({B, S}, all), {}};
}

// Positions of the next S tokens of each of B sequences, after the first `past`.
inline Positions step_positions(Rank& rank, int64_t B, int64_t S, int64_t past) {
  Positions where = positions_of(rank, B, S, past);
  where.positions = where.positions.reshape({1, B * S});
  std::vector<int32_t> rows;
  for (int64_t b = 0; b < B; ++b) {
    rows.insert(rows.end(), static_cast<size_t>(S), static_cast<int32_t>(b));
    where.cached.runs.push_back({b, past, S});
  }
  where.cached.rows = rank.tensor<int32_t>({B * S}, rows);
  where.cached.positions = where.positions.reshape({B * S});
  return where;
}

// Decodes x [B, S, D] in steps of these sizes.
inline std::vector<double> decoded(Rank& rank, TokenMixer& mixer, const Tensor& x, const std::vector<int64_t>& steps,
                                   const CacheFormat& cache = {}) {
  const int64_t B = x.size(0), S = x.size(1), D = x.size(2);
  const auto state = mixer.make_state(rank.stream, {.rows = B, .positions = S, .cache = cache}, x.dtype());
  std::vector<double> out(static_cast<size_t>(x.elements()));
  int64_t first = 0;
  for (const int64_t step : steps) {
    const Tensor part = rank.stream.empty({1, B * step, D}, x.dtype());
    dispatch_floating(x.dtype(), [&]<class T>() {
      for (int64_t b = 0; b < B; ++b)
        std::copy_n(x.data<T>() + (b * S + first) * D, step * D, part.data<T>() + b * step * D);
    });
    Tape off(rank.stream, Tape::Mode::off);
    const auto y = values(mixer.decode(off, off.constant(part), step_positions(rank, B, step, first), *state).value());
    for (int64_t b = 0; b < B; ++b) std::copy_n(y.begin() + b * step * D, step * D, out.begin() + (b * S + first) * D);
    first += step;
  }
  return out;
}

}  // namespace witan::testing
