// Generation steps of Mamba-2's recurrence continue what its forward began.
#include "witan/kernels/state_space/ssd.h"

#include "kernels/linear_attention/recurrent_steps.h"

namespace witan {
namespace {

using kernels::CacheRun;
using kernels::CacheTokens;
using kernels::SsdHeads;
using testing::for_steps;
using testing::kChunkSteps;
using testing::kSteps;
using testing::Rank;
using testing::tokens_of;
using testing::values;

TEST(Ssd, StepsAgreeWithTheForward) {
  Rank rank;
  constexpr int64_t S = 9;
  constexpr SsdHeads kHeads{.heads = 4, .groups = 2, .head_dim = 5, .state_dim = 6};
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    const DType wide = accumulator(dtype);
    const Tensor xbc = rank.normal({1, S, kHeads.channels()}, dtype, "xbc"),
                 dt = rank.normal({1, S, kHeads.heads}, wide, "dt", 0.4),
                 a = rank.normal({1, S, kHeads.heads}, wide, "a", 0.2), D = rank.normal({kHeads.heads}, wide, "D");
    const Tensor whole = rank.poisoned({1, S, kHeads.inner()}, dtype);
    const Tensor last = rank.poisoned({1, kHeads.heads, kHeads.state_dim, kHeads.head_dim}, wide);
    kernels::ssd_forward(rank.stream, whole, last, {xbc, dt, a, D, {}, kHeads});
    const double tolerance = dtype == DType::f64 ? 1e-13 : dtype == DType::f32 ? 1e-5 : 1e-2;
    for (const auto& counts : kSteps) {
      const Tensor states = rank.poisoned({2, kHeads.heads, kHeads.state_dim, kHeads.head_dim}, wide);
      const Tensor y = rank.poisoned({S, kHeads.inner()}, dtype);
      for_steps(rank, counts, [&](int64_t past, int64_t count, const CacheTokens& tokens) {
        const auto part = [&](const Tensor& x) { return x.reshape({S, x.shape().last()}).narrow(0, past, count); };
        kernels::ssd_decode(rank.stream, y.narrow(0, past, count), states,
                            {part(xbc), part(dt), part(a), D, {}, kHeads}, tokens);
      });
      EXPECT_TRUE(testing::close(values(y), values(whole), tolerance, tolerance)) << dtype << ", " << counts.size();
      const double of_state = dtype == DType::f64 ? 1e-13 : 1e-5;
      EXPECT_TRUE(testing::close(values(states.narrow(0, 1, 1)), values(last), of_state, of_state)) << dtype;
    }
  }
}

// Steps that end within chunks, at their ends and beyond them, in a row that held another text before.
TEST(Ssd, StepsWithAChunkHaveTheBitsOfTheForward) {
  Rank rank(2);
  constexpr int64_t S = 150;
  constexpr SsdHeads kHeads{.heads = 4, .groups = 2, .head_dim = 5, .state_dim = 6};
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    const DType wide = accumulator(dtype);
    const Tensor xbc = rank.normal({1, S, kHeads.channels()}, dtype, "xbc"),
                 dt = rank.normal({1, S, kHeads.heads}, wide, "dt", 0.4),
                 a = rank.normal({1, S, kHeads.heads}, wide, "a", 0.2), D = rank.normal({kHeads.heads}, wide, "D");
    const Tensor whole = rank.poisoned({1, S, kHeads.inner()}, dtype);
    kernels::ssd_forward(rank.stream, whole, {}, {xbc, dt, a, D, {}, kHeads});
    const auto chunk = [&](int64_t channels, DType of) { return rank.poisoned({2, kernels::kSsdChunk, channels}, of); };
    const kernels::SsdChunk kept{chunk(kHeads.channels(), dtype), chunk(kHeads.heads, wide), chunk(kHeads.heads, wide)};
    const Tensor states = rank.poisoned({2, kHeads.heads, kHeads.state_dim, kHeads.head_dim}, wide);
    for (const auto& counts : kChunkSteps) {
      const Tensor y = rank.poisoned({S, kHeads.inner()}, dtype);
      for_steps(rank, counts, [&](int64_t past, int64_t count, const CacheTokens& tokens) {
        const auto part = [&](const Tensor& x) { return x.reshape({S, x.shape().last()}).narrow(0, past, count); };
        kernels::ssd_decode(rank.stream, y.narrow(0, past, count), states,
                            {part(xbc), part(dt), part(a), D, {}, kHeads}, tokens, kept);
      });
      EXPECT_EQ(values(y), values(whole)) << dtype << ", " << counts.size();
    }
  }
}

// Rows advance by themselves, and one that begins anew forgets its text.
TEST(Ssd, RowsAreApart) {
  Rank rank;
  constexpr SsdHeads kHeads{.heads = 2, .groups = 1, .head_dim = 3, .state_dim = 4};
  const Tensor states = rank.poisoned({3, 2, 4, 3}, DType::f32), D = rank.normal({2}, DType::f32, "D");
  const auto step = [&](const std::vector<CacheRun>& runs) {
    int64_t T = 0;
    for (const CacheRun& run : runs) T += run.count;
    const Tensor y = rank.poisoned({T, 6}, DType::f32);
    kernels::ssd_decode(rank.stream, y, states,
                        {rank.normal({T, 14}, DType::f32, "xbc"),
                         rank.normal({T, 2}, DType::f32, "dt", 0.5),
                         rank.normal({T, 2}, DType::f32, "a", 0.1),
                         D,
                         {},
                         kHeads},
                        tokens_of(rank, runs));
    return values(y);
  };
  const auto first = step({{2, 0, 3}});
  EXPECT_NE(step({{2, 3, 3}}), first);
  EXPECT_EQ(step({{2, 0, 3}}), first);
  const auto both = step({{0, 0, 1}, {2, 3, 1}});
  EXPECT_EQ(std::vector<double>(both.begin(), both.begin() + 6), std::vector<double>(first.begin(), first.begin() + 6));
}

}  // namespace
}  // namespace witan
