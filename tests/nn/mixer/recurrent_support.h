// Promises about decoding that every mixer with a recurrent state keeps, for the tests of each kind.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "nn/attention/attention_support.h"

namespace witan::testing {

// Decoding x [B, S, D] in any steps gives the forward's outputs.
inline void expect_decoding_equals_forward(Rank& rank, TokenMixer& mixer, const Tensor& x, double tolerance) {
  Tape off(rank.stream, Tape::Mode::off);
  const auto full = values(mixer.forward(off, off.constant(x), positions_of(rank, x.size(0), x.size(1))).value());
  for (const auto& steps : std::vector<std::vector<int64_t>>{{12}, {7, 1, 1, 1, 1, 1}, {1, 4, 7}})
    EXPECT_TRUE(close(decoded(rank, mixer, x, steps), full, tolerance, tolerance))
        << x.dtype() << ", " << steps.size() << " steps";
}

// A copied row continues like the original, independently of it; a row that restarts forgets its text. D: `width`.
inline void expect_rows_are_copied_and_restarted(Rank& rank, TokenMixer& mixer, int64_t width, int64_t row_bytes) {
  const auto state = mixer.make_state(rank.stream, {3, 9}, DType::f64);
  EXPECT_EQ(state->bytes(), 3 * row_bytes);
  Tape off(rank.stream, Tape::Mode::off);
  const auto step = [&](int64_t row, int64_t past, const char* tokens, int64_t count) {
    Positions where = step_positions(rank, 1, count, past);
    where.cached.runs[0].row = row;
    const Tensor x = rank.normal({1, count, width}, DType::f64, tokens);
    return values(mixer.decode(off, off.constant(x), where, *state).value());
  };
  const auto first = step(0, 0, "prompt", 4);
  state->copy_row(rank.stream, 0, 2);
  const auto a = step(0, 4, "a", 2);
  EXPECT_EQ(step(2, 4, "a", 2), a);
  EXPECT_NE(step(0, 6, "b", 1), step(2, 6, "c", 1));
  EXPECT_EQ(step(0, 0, "prompt", 4), first);
  EXPECT_EQ(state->resumable(4, 4, 7), 4);
  EXPECT_EQ(state->resumable(3, 4, 7), 0) << "a recurrent state cannot be cut";
}

}  // namespace witan::testing
