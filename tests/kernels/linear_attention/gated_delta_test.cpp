// Generation steps of Gated DeltaNet's kernels continue what their forwards began.
#include "witan/kernels/linear_attention/gated_delta.h"

#include "kernels/linear_attention/recurrent_steps.h"
#include "witan/kernels/linear_attention/short_convolution.h"

namespace witan {
namespace {

using kernels::CacheRun;
using kernels::CacheTokens;
using kernels::DeltaHeads;
using kernels::DeltaInputs;
using testing::for_steps;
using testing::kChunkSteps;
using testing::kSteps;
using testing::Rank;
using testing::tokens_of;
using testing::values;

TEST(ShortConvolution, StepsGiveTheBitsOfTheForward) {
  Rank rank;
  constexpr int64_t S = 9, C = 70;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (const auto& [has_bias, silu] : {std::pair{false, true}, {true, true}, {true, false}}) {
      const Tensor x = rank.normal({1, S, C}, dtype, "x");
      const kernels::ConvolutionFilters filters{rank.normal({C, 4}, dtype, "w"),
                                                has_bias ? rank.normal({C}, dtype, "bias") : Tensor(), silu};
      const Tensor whole = rank.poisoned({1, S, C}, dtype);
      kernels::short_convolution_forward(rank.stream, whole, x, filters, {});
      for (const auto& counts : kSteps) {
        const Tensor tails = rank.poisoned({2, 3, C}, dtype), y = rank.poisoned({S, C}, dtype);
        for_steps(rank, counts, [&](int64_t past, int64_t count, const CacheTokens& tokens) {
          kernels::short_convolution_decode(rank.stream, y.narrow(0, past, count), tails,
                                            x.reshape({S, C}).narrow(0, past, count), filters, tokens);
        });
        EXPECT_EQ(values(y), values(whole)) << dtype << ", " << counts.size() << " steps";
      }
    }
}

// Decays of heads, and of each of their 6 channels.
constexpr std::pair<DType, int64_t> kDecays[] = {{DType::f64, 1}, {DType::f32, 1}, {DType::bf16, 1},
                                                 {DType::f64, 6}, {DType::f32, 6}, {DType::bf16, 6}};

TEST(GatedDelta, StepsAgreeWithTheForward) {
  Rank rank;
  constexpr int64_t S = 9;
  constexpr DeltaHeads kHeads{.keys = 2, .values = 4, .key_dim = 6, .value_dim = 5};
  for (const auto& [dtype, decays] : kDecays) {
    const DType wide = accumulator(dtype);
    const Tensor qkv = rank.normal({1, S, kHeads.channels()}, dtype, "qkv"),
                 beta = rank.normal({1, S, kHeads.values}, wide, "beta", 0.4),
                 g = rank.normal({1, S, decays * kHeads.values}, wide, "g", 0.2);
    const Tensor whole = rank.poisoned({1, S, kHeads.value_channels()}, dtype);
    const Tensor last = rank.poisoned({1, kHeads.values, kHeads.key_dim, kHeads.value_dim}, wide);
    kernels::gated_delta_forward(rank.stream, whole, last, {qkv, g, beta, {}, kHeads});
    const double tolerance = dtype == DType::f64 ? 1e-13 : dtype == DType::f32 ? 1e-5 : 1e-2;
    for (const auto& counts : kSteps) {
      const Tensor states = rank.poisoned({2, kHeads.values, kHeads.key_dim, kHeads.value_dim}, wide);
      const Tensor o = rank.poisoned({S, kHeads.value_channels()}, dtype);
      for_steps(rank, counts, [&](int64_t past, int64_t count, const CacheTokens& tokens) {
        const auto part = [&](const Tensor& x) { return x.reshape({S, x.shape().last()}).narrow(0, past, count); };
        kernels::gated_delta_decode(rank.stream, o.narrow(0, past, count), states,
                                    {part(qkv), part(g), part(beta), {}, kHeads}, tokens);
      });
      EXPECT_TRUE(testing::close(values(o), values(whole), tolerance, tolerance)) << dtype << ", " << counts.size();
      const double of_state = dtype == DType::f64 ? 1e-13 : 1e-5;
      EXPECT_TRUE(testing::close(values(states.narrow(0, 1, 1)), values(last), of_state, of_state)) << dtype;
    }
  }
}

// Steps that end within chunks, at their ends and beyond them, in a row that held another text before.
TEST(GatedDelta, StepsWithAChunkHaveTheBitsOfTheForward) {
  Rank rank(2);
  constexpr int64_t S = 150;
  constexpr DeltaHeads kHeads{.keys = 2, .values = 4, .key_dim = 6, .value_dim = 5};
  for (const auto& [dtype, decays] : kDecays) {
    const DType wide = accumulator(dtype);
    const Tensor qkv = rank.normal({1, S, kHeads.channels()}, dtype, "qkv"),
                 beta = rank.normal({1, S, kHeads.values}, wide, "beta", 0.4),
                 g = rank.normal({1, S, decays * kHeads.values}, wide, "g", 0.2);
    const Tensor whole = rank.poisoned({1, S, kHeads.value_channels()}, dtype);
    kernels::gated_delta_forward(rank.stream, whole, {}, {qkv, g, beta, {}, kHeads});
    const auto chunk = [&](int64_t channels, DType of) {
      return rank.poisoned({2, kernels::kDeltaChunk, channels}, of);
    };
    const kernels::DeltaChunk kept{chunk(kHeads.channels(), dtype), chunk(decays * kHeads.values, wide),
                                   chunk(kHeads.values, wide), chunk(kHeads.value_channels(), wide)};
    const Tensor states = rank.poisoned({2, kHeads.values, kHeads.key_dim, kHeads.value_dim}, wide);
    for (const auto& counts : kChunkSteps) {
      const Tensor o = rank.poisoned({S, kHeads.value_channels()}, dtype);
      for_steps(rank, counts, [&](int64_t past, int64_t count, const CacheTokens& tokens) {
        const auto part = [&](const Tensor& x) { return x.reshape({S, x.shape().last()}).narrow(0, past, count); };
        kernels::gated_delta_decode(rank.stream, o.narrow(0, past, count), states,
                                    {part(qkv), part(g), part(beta), {}, kHeads}, tokens, kept);
      });
      EXPECT_EQ(values(o), values(whole)) << dtype << ", " << counts.size();
    }
  }
}

// Rows advance by themselves, and one that begins anew forgets its text.
TEST(GatedDelta, RowsAreApart) {
  Rank rank;
  constexpr DeltaHeads kHeads{.keys = 1, .values = 2, .key_dim = 4, .value_dim = 3};
  const Tensor states = rank.poisoned({3, 2, 4, 3}, DType::f32);
  const auto step = [&](const std::vector<CacheRun>& runs) {
    int64_t T = 0;
    for (const CacheRun& run : runs) T += run.count;
    const Tensor o = rank.poisoned({T, 6}, DType::f32);
    kernels::gated_delta_decode(rank.stream, o, states,
                                {rank.normal({T, 14}, DType::f32, "qkv"),
                                 rank.normal({T, 2}, DType::f32, "g", 0.1),
                                 rank.normal({T, 2}, DType::f32, "beta", 0.5),
                                 {},
                                 kHeads},
                                tokens_of(rank, runs));
    return values(o);
  };
  const auto first = step({{2, 0, 3}});
  EXPECT_NE(step({{2, 3, 3}}), first);
  EXPECT_EQ(step({{2, 0, 3}}), first);
  const auto both = step({{0, 0, 1}, {2, 3, 1}});
  EXPECT_EQ(std::vector<double>(both.begin(), both.begin() + 6), std::vector<double>(first.begin(), first.begin() + 6));
}

}  // namespace
}  // namespace witan
