#include "witan/kernels/attention/kv_cache.h"

#include "support/attention.h"
#include "support/rank.h"

namespace witan {
namespace {

using kernels::CacheRun;
using kernels::CacheTokens;
using testing::cache_tokens;
using testing::Rank;
using testing::values;

TEST(AppendToCache, WritesOnlyItsPositionsOfEveryRow) {
  Rank rank;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    const int64_t B = 3, most = 7, G = 2, hd = 5, row = G * hd;
    const Tensor cache = rank.normal({B, most, G, hd}, dtype, "cache");
    auto expected = values(cache);
    int64_t past = 0;
    for (const int64_t S : {4, 1, 2, 0}) {  // a prompt, a token, two more that fill it, nothing
      const Tensor x = rank.normal({1, B * S, G, hd}, dtype, cat("x at ", past));
      std::vector<CacheRun> runs;
      for (int64_t b = 0; b < B; ++b) runs.push_back({b, past, S});
      kernels::append_to_cache(rank.stream, cache, x, cache_tokens(rank, runs));
      const auto added = values(x);
      for (int64_t b = 0; b < B; ++b)
        for (int64_t i = 0; i < S * row; ++i)
          expected[size_t((b * most + past) * row + i)] = added[size_t(b * S * row + i)];
      past += S;
      EXPECT_EQ(values(cache), expected) << dtype << ", " << past << " positions";
    }
  }
}

TEST(AppendToCache, RingsMayBeAtDifferentPositions) {
  Rank rank;
  const Tensor cache = rank.tensor<double>({2, 3, 1, 1}, {0, 0, 0, 0, 0, 0});
  const Tensor x = rank.tensor<double>({4, 1, 1}, {1, 2, 3, 4});
  kernels::append_to_cache(rank.stream, cache, x, cache_tokens(rank, {{1, 0, 1}, {0, 7, 3}}));
  EXPECT_EQ(values(cache), (std::vector<double>{4, 2, 3, 1, 0, 0}));  // positions 9, 7 and 8; 0
}

TEST(AppendToCache, AcceptsNoSequences) {
  Rank rank;
  kernels::append_to_cache(rank.stream, rank.stream.empty({0, 4, 1, 2}, DType::f32),
                           rank.stream.empty({0, 1, 2}, DType::f32), cache_tokens(rank, {}));
}

TEST(CacheTokens, PartsKeepTheirRuns) {
  Rank rank;
  const CacheTokens part = cache_tokens(rank, {{0, 5, 1}, {2, 0, 3}, {1, 9, 1}}).part(1, 2, 1);
  EXPECT_EQ(part.runs.size(), 2u);
  EXPECT_EQ(part.runs[0].row, 2);
  EXPECT_EQ(part.rows.to_vector<int32_t>(), (std::vector<int32_t>{2, 2, 2, 1}));
  EXPECT_EQ(part.positions.to_vector<int32_t>(), (std::vector<int32_t>{0, 1, 2, 9}));
}

}  // namespace
}  // namespace witan
