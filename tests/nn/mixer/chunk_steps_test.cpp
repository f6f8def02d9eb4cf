#include "witan/nn/mixer/chunk_steps.h"

#include "kernels/linear_attention/recurrent_steps.h"
#include "witan/kernels/linear_attention/gated_delta.h"
#include "witan/kernels/state_space/ssd.h"

namespace witan {
namespace {

using kernels::CacheRun;
using kernels::CacheTokens;
using testing::for_steps;
using testing::kChunkSteps;
using testing::Rank;
using testing::values;

constexpr int64_t kTokens = 150;

Tensor rows_of(const Tensor& x) {  // [1, S, C] -> [S, C]
  return x.reshape({x.size(1), x.size(2)});
}

TEST(ChunkSteps, OfGatedDeltaNetHaveTheBitsOfTheForward) {
  Rank rank(2);
  constexpr kernels::DeltaHeads kHeads{.keys = 2, .values = 4, .key_dim = 6, .value_dim = 5};
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    const DType wide = accumulator(dtype);
    const Tensor qkv = rank.normal({1, kTokens, kHeads.channels()}, dtype, "qkv"),
                 beta = rank.normal({1, kTokens, kHeads.values}, wide, "beta", 0.4),
                 g = rank.normal({1, kTokens, kHeads.values}, wide, "g", 0.2);
    const Tensor whole = rank.poisoned({1, kTokens, kHeads.value_channels()}, dtype);
    kernels::gated_delta_forward(rank.stream, whole, {}, {qkv, g, beta, {}, kHeads});
    const auto kept = [&](const Tensor& x) {
      return rank.stream.zeros({3, kernels::kDeltaChunk, x.size(2)}, x.dtype());
    };
    const std::vector<ChunkInput> in = {{rows_of(qkv), kept(qkv)}, {rows_of(g), kept(g)}, {rows_of(beta), kept(beta)}};
    const Tensor states = rank.poisoned({3, kHeads.values, kHeads.key_dim, kHeads.value_dim}, wide);
    const auto forward = [&](const ChunkPass& pass) {
      kernels::gated_delta_forward(rank.stream, pass.o, pass.last,
                                   {pass.inputs[0], pass.inputs[1], pass.inputs[2], {}, kHeads, pass.first});
    };
    for (const auto& counts : kChunkSteps) {
      const Tensor o = rank.poisoned({kTokens, kHeads.value_channels()}, dtype);
      for_steps(rank, counts, [&](int64_t past, int64_t count, const CacheTokens& tokens) {
        std::vector<ChunkInput> step;
        for (const ChunkInput& input : in) step.push_back({input.x.narrow(0, past, count), input.kept});
        ChunkSteps(rank.stream, o.narrow(0, past, count), states, step, forward).run(tokens);
      });
      EXPECT_EQ(values(o), values(whole)) << dtype << ", " << counts.size();
    }
  }
}

// Prompts beside single tokens, of rows that are at different places of their chunks.
TEST(ChunkSteps, OfMamba2MixRows) {
  Rank rank(2);
  constexpr kernels::SsdHeads kHeads{.heads = 4, .groups = 2, .head_dim = 5, .state_dim = 6};
  const Tensor D = rank.normal({kHeads.heads}, DType::f32, "D");
  struct Text {
    Tensor xbc, dt, a, y, whole;
  };
  std::vector<Text> texts;
  for (const char* name : {"one", "two", "three"}) {
    Text text{rank.normal({1, kTokens, kHeads.channels()}, DType::bf16, cat(name, " xbc")),
              rank.normal({1, kTokens, kHeads.heads}, DType::f32, cat(name, " dt"), 0.4),
              rank.normal({1, kTokens, kHeads.heads}, DType::f32, cat(name, " a"), 0.2),
              rank.poisoned({kTokens, kHeads.inner()}, DType::bf16),
              rank.poisoned({1, kTokens, kHeads.inner()}, DType::bf16)};
    kernels::ssd_forward(rank.stream, text.whole, {}, {text.xbc, text.dt, text.a, D, {}, kHeads});
    texts.push_back(text);
  }
  const auto kept = [&](int64_t channels, DType dtype) {
    return rank.stream.zeros({3, kernels::kSsdChunk, channels}, dtype);
  };
  const Tensor kept_xbc = kept(kHeads.channels(), DType::bf16), kept_dt = kept(kHeads.heads, DType::f32),
               kept_a = kept(kHeads.heads, DType::f32);
  const Tensor states = rank.poisoned({3, kHeads.heads, kHeads.state_dim, kHeads.head_dim}, DType::f32);
  const auto forward = [&](const ChunkPass& pass) {
    kernels::ssd_forward(rank.stream, pass.o, pass.last,
                         {pass.inputs[0], pass.inputs[1], pass.inputs[2], D, {}, kHeads, pass.first});
  };
  // Gathers the runs' tokens of a text's tensor [1, S, C], and scatters outputs back.
  const auto step = [&](const std::vector<CacheRun>& runs) {
    int64_t T = 0;
    for (const CacheRun& run : runs) T += run.count;
    const auto gathered = [&](Tensor Text::*of) {
      const Tensor& like = texts[0].*of;
      const Tensor all = rank.stream.empty({T, like.size(2)}, like.dtype());
      int64_t at = 0;
      for (const CacheRun& run : runs) {
        rank.stream.copy(all.narrow(0, at, run.count),
                         rows_of(texts[static_cast<size_t>(run.row)].*of).narrow(0, run.past, run.count));
        at += run.count;
      }
      return all;
    };
    const Tensor y = rank.poisoned({T, kHeads.inner()}, DType::bf16);
    ChunkSteps(rank.stream, y, states,
               {{gathered(&Text::xbc), kept_xbc}, {gathered(&Text::dt), kept_dt}, {gathered(&Text::a), kept_a}},
               forward)
        .run(testing::tokens_of(rank, runs));
    int64_t at = 0;
    for (const CacheRun& run : runs) {
      rank.stream.copy(texts[static_cast<size_t>(run.row)].y.narrow(0, run.past, run.count),
                       y.narrow(0, at, run.count));
      at += run.count;
    }
  };
  step({{0, 0, 62}});
  step({{0, 62, 1}, {1, 0, 1}, {2, 0, 130}});
  for (int64_t i = 0; i < 20; ++i) step({{1, 1 + i, 1}, {0, 63 + i, 1}, {2, 130 + i, 1}});
  step({{1, 21, 129}, {0, 83, 67}});
  for (const Text& text : texts) EXPECT_EQ(values(text.y), values(text.whole));
}

}  // namespace
}  // namespace witan
