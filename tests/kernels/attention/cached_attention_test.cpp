#include <cstring>

#include "support/rank.h"
#include "witan/kernels/attention/kv_cache.h"

namespace witan {
namespace {

using testing::close;
using testing::Rank;
using testing::values;

// A sequence whose attention is computed as a whole, and once more token by token from a cache.
struct Sequence {
  int64_t S = 150, H = 6, G = 2, hd = 20, hd_v = 12;
  Tensor q, k, v;

  Sequence(Rank& rank, DType dtype, int64_t tokens, int64_t value_dim, const std::string& name)
      : S(tokens),
        hd_v(value_dim),
        q(rank.normal({1, S, H, hd}, dtype, name + " q")),
        k(rank.normal({1, S, G, hd}, dtype, name + " k")),
        v(rank.normal({1, S, G, hd_v}, dtype, name + " v")) {}

  // y and lse of the whole sequence.
  std::pair<std::vector<double>, std::vector<double>> whole(Rank& rank, int64_t window) const {
    const Tensor y = rank.stream.empty({1, S, H, hd_v}, q.dtype());
    const Tensor lse = rank.stream.empty({1, H, S}, accumulator(q.dtype()));
    kernels::attention_forward(rank.stream, y, lse, {q, k, v, {}, 0.3, {}, {}, {}, window});
    return {values(y), values(lse)};
  }
};

// One decoding step for tokens of several sequences, sequence i at positions[i].
struct Step {
  kernels::CacheTokens tokens;
  Tensor q, k, v;
};

Step step_of(Rank& rank, const std::vector<Sequence>& sequences, const std::vector<int64_t>& positions) {
  Step step;
  const auto T = static_cast<int64_t>(sequences.size());
  std::vector<int32_t> rows, at;
  for (int64_t i = 0; i < T; ++i) {
    rows.push_back(static_cast<int32_t>(T - 1 - i));  // the cache's rows are in another order than the tokens
    at.push_back(static_cast<int32_t>(positions[size_t(i)]));
    step.tokens.runs.push_back({T - 1 - i, positions[size_t(i)], 1});
  }
  step.tokens.rows = rank.tensor<int32_t>({T}, rows);
  step.tokens.positions = rank.tensor<int32_t>({T}, at);
  const auto gathered = [&](Tensor Sequence::*which) {
    const Tensor& first = sequences[0].*which;
    const Tensor all = rank.stream.empty({T, 1, first.size(2), first.size(3)}, first.dtype());
    const auto bytes = size_t(all.bytes() / T);
    for (size_t i = 0; i < sequences.size(); ++i)
      std::memcpy(all.raw() + i * bytes, (sequences[i].*which).raw() + size_t(positions[i]) * bytes, bytes);
    return all;
  };
  step.q = gathered(&Sequence::q), step.k = gathered(&Sequence::k), step.v = gathered(&Sequence::v);
  return step;
}

// Caches are poisoned. With a window they are rings, and sequences wrap around several times.
TEST(CachedAttention, GivesTheBitsOfTheFullKernel) {
  Rank rank(3);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64})
    for (const int64_t window : {0, 1, 7, 33, 100})
      for (const int64_t slots : {window == 0 ? 150 : window, window == 0 ? 160 : 2 * window}) {
        SCOPED_TRACE(cat(name_of(dtype), ", a window of ", window, " in ", slots, " slots"));
        const std::vector<Sequence> sequences = {{rank, dtype, 150, 12, "one"}, {rank, dtype, 131, 12, "two"}};
        const auto one = sequences[0].whole(rank, window), two = sequences[1].whole(rank, window);
        const Tensor keys = rank.poisoned({2, slots, 2, 20}, dtype), cached = rank.poisoned({2, slots, 2, 12}, dtype);
        for (int64_t past = 0; past < 131; ++past) {
          // The second sequence has 19 more positions, which it reads alone.
          const std::vector<int64_t> at = {past + 19, past};
          const Step step = step_of(rank, sequences, at);
          if (past == 0)
            for (int64_t early = 0; early < 19; ++early) {
              const Step alone = step_of(rank, {sequences[0], sequences[1]}, {early, 0});
              kernels::append_to_cache(rank.stream, keys, alone.k.narrow(0, 0, 1), alone.tokens.part(0, 1, 0));
              kernels::append_to_cache(rank.stream, cached, alone.v.narrow(0, 0, 1), alone.tokens.part(0, 1, 0));
            }
          kernels::append_to_cache(rank.stream, keys, step.k, step.tokens);
          kernels::append_to_cache(rank.stream, cached, step.v, step.tokens);
          const Tensor y = rank.poisoned({2, 1, 6, 12}, dtype), lse = rank.poisoned({2, 6, 1}, accumulator(dtype));
          kernels::cached_attention(rank.stream, y, lse, {step.q, keys, cached, step.tokens, 0.3, window});
          const auto got = values(y), got_lse = values(lse);
          ASSERT_TRUE(std::equal(got.begin(), got.begin() + 72, one.first.begin() + at[0] * 72)) << at[0];
          ASSERT_TRUE(std::equal(got.begin() + 72, got.end(), two.first.begin() + at[1] * 72)) << at[1];
          for (int64_t h = 0; h < 6; ++h) {
            ASSERT_EQ(got_lse[size_t(h)], one.second[size_t(h * 150 + at[0])]);
            ASSERT_EQ(got_lse[size_t(6 + h)], two.second[size_t(h * 131 + at[1])]);
          }
        }
      }
}

// Tokens at these positions of as many rows of caches.
kernels::CacheTokens tokens_at(Rank& rank, const std::vector<int32_t>& positions) {
  kernels::CacheTokens tokens;
  std::vector<int32_t> rows;
  for (const int32_t position : positions) {
    rows.push_back(static_cast<int32_t>(rows.size()));
    tokens.runs.push_back({rows.back(), position, 1});
  }
  const auto T = static_cast<int64_t>(positions.size());
  tokens.rows = rank.tensor<int32_t>({T}, rows);
  tokens.positions = rank.tensor<int32_t>({T}, positions);
  return tokens;
}

// a and b side by side in their last dim.
Tensor joined(Rank& rank, const Tensor& a, const Tensor& b) {
  const int64_t M = a.size(3), N = b.size(3);
  const Tensor both = rank.stream.empty(a.shape().with(3, M + N), a.dtype());
  for (int64_t row = 0; row < a.elements() / M; ++row) {
    std::copy_n(a.data<double>() + row * M, M, both.data<double>() + row * (M + N));
    std::copy_n(b.data<double>() + row * N, N, both.data<double>() + row * (M + N) + M);
  }
  return both;
}

// The numbers that a cache in e4m3 stands for.
Tensor numbers_of(Rank& rank, const Tensor& cache, const Tensor& scales) {
  const Tensor numbers = rank.stream.empty(cache.shape(), DType::f64);
  for (int64_t i = 0; i < cache.elements(); ++i)
    numbers.data<double>()[i] = double(float(cache.data<e4m3>()[i])) * double(scales.data<float>()[i / cache.size(3)]);
  return numbers;
}

// Logits of latents: the sum of two products is one product with queries and keys side by side.
TEST(CachedAttention, QueriesOfValuesAddToLogits) {
  for (const int threads : {1, 5})  // few tokens, whose heads several threads share
    for (const int64_t window : {0, 9}) {
      Rank rank(threads);
      const int64_t slots = window == 0 ? 100 : 18, H = 70, hd = 6, hd_v = 20;
      const auto normal = [&](const Shape& shape, const char* name) { return rank.normal(shape, DType::f64, name); };
      const Tensor q = normal({2, 1, H, hd}, "q"), value_q = normal({2, 1, H, hd_v}, "value q"),
                   keys = normal({2, slots, 1, hd}, "k"), cached = normal({2, slots, 1, hd_v}, "v");
      const kernels::CacheTokens tokens = tokens_at(rank, {99, 30});
      const Tensor y = rank.poisoned({2, 1, H, hd_v}, DType::f64), lse = rank.poisoned({2, H, 1}, DType::f64);
      const Tensor expected = rank.poisoned(y.shape(), DType::f64),
                   expected_lse = rank.poisoned(lse.shape(), DType::f64);
      kernels::cached_attention(rank.stream, y, lse, {q, keys, cached, tokens, 0.3, window, false, value_q});
      kernels::cached_attention(rank.stream, expected, expected_lse,
                                {joined(rank, q, value_q), joined(rank, keys, cached), cached, tokens, 0.3, window});
      EXPECT_TRUE(close(values(y), values(expected), 1e-13, 1e-13));
      EXPECT_TRUE(close(values(lse), values(expected_lse), 1e-13, 1e-13));
    }
}

TEST(CachedAttention, ReadsCachesInFp8) {
  for (const bool latents : {false, true}) {
    Rank rank(3);
    const int64_t T = 2, slots = 80, G = latents ? 1 : 2, H = 6, hd = 20, hd_v = 12;
    const auto normal = [&](const Shape& shape, const char* name) { return rank.normal(shape, DType::f64, name); };
    const Tensor keys = rank.stream.empty({T, slots, G, hd}, DType::f8),
                 key_scales = rank.poisoned({T, slots, G}, DType::f32),
                 cached = rank.stream.empty({T, slots, G, hd_v}, DType::f8),
                 value_scales = rank.poisoned({T, slots, G}, DType::f32);
    kernels::CacheTokens all;
    std::vector<int32_t> rows, positions;
    for (int32_t t = 0; t < T; ++t) {
      all.runs.push_back({t, 0, slots});
      for (int32_t p = 0; p < slots; ++p) rows.push_back(t), positions.push_back(p);
    }
    all.rows = rank.tensor<int32_t>({T * slots}, rows), all.positions = rank.tensor<int32_t>({T * slots}, positions);
    kernels::append_quantised(rank.stream, keys, key_scales, normal({1, T * slots, G, hd}, "k"), all);
    kernels::append_quantised(rank.stream, cached, value_scales, normal({1, T * slots, G, hd_v}, "v"), all);
    const Tensor q = normal({T, 1, H, hd}, "q"), value_q = latents ? normal({T, 1, H, hd_v}, "value q") : Tensor();
    const kernels::CacheTokens tokens = tokens_at(rank, {79, 3});
    const Tensor y = rank.poisoned({T, 1, H, hd_v}, DType::f64), expected = rank.poisoned(y.shape(), DType::f64);
    kernels::cached_attention(rank.stream, y, {},
                              {q, keys, cached, tokens, 0.3, 0, false, value_q, key_scales, value_scales});
    kernels::cached_attention(rank.stream, expected, {},
                              {q, numbers_of(rank, keys, key_scales), numbers_of(rank, cached, value_scales), tokens,
                               0.3, 0, false, value_q});
    EXPECT_EQ(values(y), values(expected)) << "latents " << latents;
  }
}

TEST(CachedAttention, AcceptsNoTokens) {
  Rank rank;
  const Tensor none = rank.tensor<int32_t>({0}, {}), cache = rank.stream.empty({0, 4, 1, 8}, DType::f32);
  const Tensor q = rank.stream.empty({0, 1, 2, 8}, DType::f32);
  kernels::cached_attention(rank.stream, q, {}, {q, cache, cache, {{}, none, none}});
}

// Two products per token with the keys that it sees, which are read once for all heads of a group.
TEST(CachedAttention, CostCountsTheKeysThatTokensSee) {
  Rank rank;
  Stream meta({Device::Kind::meta}, Arena::meta(), rank.pool);
  const auto tensor = [&](const Shape& shape) { return meta.empty(shape, DType::f32); };
  const Tensor q = tensor({2, 1, 4, 8}), y = tensor({2, 1, 4, 6}), keys = tensor({2, 50, 2, 8}),
               cached = tensor({2, 50, 2, 6});
  const kernels::CacheTokens tokens{{{0, 30, 1}, {1, 4, 1}}, meta.empty({2}, DType::i32), meta.empty({2}, DType::i32)};
  for (const auto& [window, seen] : {std::pair<int64_t, double>{0, 31 + 5}, {10, 10 + 5}}) {
    meta.reset_costs();
    kernels::cached_attention(meta, y, {}, {q, keys, cached, tokens, 1, window});
    const Cost& cost = meta.costs().at("other").at("cached_attention");
    EXPECT_EQ(cost.flops, 2 * seen * 4 * (8 + 6));
    EXPECT_EQ(cost.bytes, 4 * (64 + 48 + seen * 2 * (8 + 6)));
  }
  meta.reset_costs();
  const auto fp8 = [&](const Shape& shape) { return meta.empty(shape, DType::f8); };
  kernels::cached_attention(
      meta, y, {},
      {q, fp8(keys.shape()), fp8(cached.shape()), tokens, 1, 0, false, y, tensor({2, 50, 2}), tensor({2, 50, 2})});
  const Cost& cost = meta.costs().at("other").at("cached_attention");
  EXPECT_EQ(cost.flops, 2 * 36 * 4 * (8 + 2 * 6));
  EXPECT_EQ(cost.bytes, 4 * (64 + 2 * 48) + 36 * 2 * (8 + 6 + 8));
}

}  // namespace
}  // namespace witan
