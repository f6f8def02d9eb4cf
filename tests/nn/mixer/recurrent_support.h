// Promises that every mixer with a recurrent state keeps, for the tests of each kind.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <vector>

#include "nn/attention/attention_support.h"
#include "support/attention.h"
#include "support/gradcheck.h"
#include "support/module.h"
#include "support/thread_world.h"
#include "witan/nn/mixer/mixer_kind.h"

namespace witan::testing {

// One row of documents of these lengths.
inline Positions packed_documents(Rank& rank, const std::vector<int64_t>& lengths) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < lengths.size(); ++i)
    ids.insert(ids.end(), static_cast<size_t>(lengths[i]), static_cast<int32_t>(i));
  const auto S = static_cast<int64_t>(ids.size());
  Positions where = positions_of(rank, 1, S);
  where.sequence_ids = rank.tensor<int32_t>({1, S}, ids);
  return where;
}

// The gradient of the input in float64 against differences, over packed documents. D: `width`.
inline void expect_input_gradients_match_differences(Rank& rank, const char* name, TokenMixer& mixer, int64_t width) {
  bind_gradients(rank.stream, mixer);
  const Positions where = packed_documents(rank, {3, 1, 4});
  const auto forward = [&](Tape& tape, const std::vector<Var>& in) {
    return std::vector{mixer.forward(tape, in[0], where)};
  };
  gradcheck(rank, name, forward, {rank.normal({1, 8, width}, DType::f64, "x")});
}

// Each parameter's gradient in float64 against differences of its value, over packed documents. D: `width`.
inline void expect_parameter_gradients_match_differences(Rank& rank, TokenMixer& mixer, int64_t width) {
  bind_gradients(rank.stream, mixer);
  const Positions where = packed_documents(rank, {3, 1, 4});
  const Tensor x = rank.normal({1, 8, width}, DType::f64, "x"), weights = rank.normal({1, 8, width}, DType::f64, "dy");
  {
    Tape tape(rank.stream);
    const Var y = mixer.forward(tape, tape.constant(x), where);
    tape.backward({{y, weights}});
  }
  const auto sum = [&] {
    Tape off(rank.stream, Tape::Mode::off);
    const auto y = values(mixer.forward(off, off.constant(x), where).value()), w = values(weights);
    return std::inner_product(y.begin(), y.end(), w.begin(), 0.0);
  };
  for (Parameter* parameter : mixer.parameters()) {
    SCOPED_TRACE(parameter->name());
    constexpr double kStep = 1e-5;
    const auto gradient = values(parameter->gradient());
    const auto value = parameter->value().span<double>();
    for (size_t i = 0; i < value.size(); i += 7) {
      const double before = value[i];
      value[i] = before + kStep;
      const double above = sum();
      value[i] = before - kStep;
      const double below = sum();
      value[i] = before;
      EXPECT_NEAR(gradient[i], (above - below) / (2 * kStep), 1e-7 * std::max(1.0, std::abs(gradient[i])));
    }
  }
}

// A document has the same bits alone and packed between others.
inline void expect_packing_changes_no_bit(Rank& rank, TokenMixer& mixer, int64_t width, DType dtype) {
  const std::vector<int64_t> lengths = {3, 1, 70, 2};
  const Tensor x = rank.normal({1, 76, width}, dtype, "x");
  Tape off(rank.stream, Tape::Mode::off);
  const Tensor together = mixer.forward(off, off.constant(x), packed_documents(rank, lengths)).value();
  int64_t begin = 0;
  for (const int64_t count : lengths) {
    const Tensor alone =
        mixer.forward(off, off.constant(x.narrow(1, begin, count)), positions_of(rank, 1, count)).value();
    EXPECT_EQ(values(alone), values(together.narrow(1, begin, count))) << dtype << ", from token " << begin;
    begin += count;
  }
}

// A layer's pass over two rows of 16 tokens, in two or in four documents each, which begin anywhere in the ranks'
// chunks.
struct RecurrentPass {
  Tensor y, dx;
  std::vector<std::pair<std::string, Tensor>> gradients;  // of parameters, by name
};
using MakeDivided = std::function<std::unique_ptr<TokenMixer>(Rank&, const ContextAxis&)>;
inline RecurrentPass recurrent_pass(Rank& rank, const MakeDivided& make, const ContextAxis& context, int64_t width,
                                    DType dtype, bool documents) {
  constexpr int64_t kRows = 2, kTokens = 16;
  const auto layer = make(rank, context);
  bind_gradients(rank.stream, *layer);
  std::vector<int32_t> ids;
  for (const std::vector<int>& lengths : {std::vector{5, 11}, std::vector{1, 6, 2, 7}})
    for (size_t i = 0; i < lengths.size(); ++i)
      ids.insert(ids.end(), static_cast<size_t>(lengths[i]), static_cast<int32_t>(i));
  const auto own = [&](const Tensor& x) {
    return context.divides() ? share_of(rank, x, context.group->size(), context.group->rank()) : x;
  };
  Positions where = positions_of(rank, kRows, kTokens);
  if (documents) where.sequence_ids = rank.tensor<int32_t>({kRows, kTokens}, ids);
  where.positions = own(where.positions), where.sequence_ids = own(where.sequence_ids);
  where.hints.one_sequence_per_row = !documents;
  Tape tape(rank.stream);
  const Var x = tape.input(own(rank.normal({kRows, kTokens, width}, dtype, "x")));
  const Var y = layer->forward(tape, x, where);
  tape.backward({{y, own(rank.normal({kRows, kTokens, width}, dtype, "dy"))}});
  RecurrentPass found{y.value(), tape.gradient(x), {}};
  for (Parameter* parameter : layer->parameters())
    found.gradients.emplace_back(parameter->name(), parameter->gradient());
  return found;
}

// Ranks that divide sequences give the whole's outputs at their positions, to the bit, and the input gradients; their
// gradients of parameters add up to the whole's. D: `width`.
inline void expect_divided_sequences_match_the_whole(const MakeDivided& make, const std::vector<int>& ranks,
                                                     int64_t width, DType dtype, double tolerance) {
  for (const int n : ranks)
    for (const bool documents : {false, true})
      on_ranks(n, [&](ThreadRank& rank) {
        SCOPED_TRACE(cat(n, " ranks, ", dtype, documents ? ", documents" : ""));
        const auto group = rank.everyone("context");
        const RecurrentPass whole = recurrent_pass(rank, make, {}, width, dtype, documents),
                            divided = recurrent_pass(rank, make, {group.get()}, width, dtype, documents);
        const auto own = [&](const Tensor& x) { return share_of(rank, x, n, rank.rank); };
        EXPECT_EQ(values(divided.y), values(own(whole.y)));
        EXPECT_TRUE(close(divided.dx, own(whole.dx), tolerance, tolerance));
        ASSERT_EQ(divided.gradients.size(), whole.gradients.size());
        for (size_t i = 0; i < whole.gradients.size(); ++i) {
          group->all_reduce(rank.stream, divided.gradients[i].second);
          EXPECT_TRUE(close(divided.gradients[i].second, whole.gradients[i].second, 10 * tolerance, 10 * tolerance))
              << whole.gradients[i].first;
        }
      });
}

// The channels that a kind says each rank sends another one are those that a forward sends. D: `width`.
inline void expect_exchanged_channels_as_declared(const MixerKind& kind, const MakeDivided& make, int n,
                                                  int64_t width) {
  on_ranks(n, [&](ThreadRank& rank) {
    const auto group = rank.everyone("context");
    const auto layer = make(rank, {group.get()});
    Tape off(rank.stream, Tape::Mode::off);
    constexpr int64_t kTokens = 16;
    const int64_t own = kTokens / n;
    Positions where = positions_of(rank, 1, own);
    where.hints.one_sequence_per_row = true;
    layer->forward(off, off.constant(rank.normal({1, own, width}, DType::f64, "x")), where);
    const ContextUse use = kind.context_use(ContextExchange::ring, 1, n);
    EXPECT_TRUE(use.exchanges_channels);
    EXPECT_EQ(group->sent().at("all_to_all_equal"),
              use.exchanged_channels * static_cast<double>(own * (n - 1)) * sizeof(double));
  });
}

// Decoding x [B, S, D] in any steps gives the forward's outputs.
inline void expect_decoding_equals_forward(Rank& rank, TokenMixer& mixer, const Tensor& x, double tolerance) {
  Tape off(rank.stream, Tape::Mode::off);
  const auto full = values(mixer.forward(off, off.constant(x), positions_of(rank, x.size(0), x.size(1))).value());
  for (const auto& steps : std::vector<std::vector<int64_t>>{{12}, {7, 1, 1, 1, 1, 1}, {1, 4, 7}})
    EXPECT_TRUE(close(decoded(rank, mixer, x, steps), full, tolerance, tolerance))
        << x.dtype() << ", " << steps.size() << " steps";
}

// The same for mixers of each dtype that `make` makes. D: `width`.
using MakeMixer = std::function<std::unique_ptr<TokenMixer>(Rank&, DType)>;
inline void expect_decoding_equals_forward(const MakeMixer& make, int64_t width, double tolerance_of_bf16) {
  Rank rank;
  for (const auto& [dtype, tolerance] :
       {std::pair{DType::f64, 1e-12}, std::pair{DType::f32, 1e-5}, std::pair{DType::bf16, tolerance_of_bf16}})
    expect_decoding_equals_forward(rank, *make(rank, dtype), rank.normal({2, 12, width}, dtype, "x"), tolerance);
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
