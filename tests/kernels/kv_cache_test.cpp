#include "witan/kernels/kv_cache.h"

#include "support/rank.h"

namespace witan {
namespace {

using testing::Rank;
using testing::values;

TEST(AppendToCache, WritesItsPositionsOfEveryRowAndNoOther) {
  Rank rank;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    const int64_t B = 3, most = 7, G = 2, hd = 5, row = G * hd;
    const Tensor cache = rank.normal({B, most, G, hd}, dtype, "cache");
    auto expected = values(cache);
    int64_t past = 0;
    for (const int64_t S : {4, 1, 2, 0}) {  // a prompt, a token, two more until it is full, nothing
      const Tensor x = rank.normal({B, S, G, hd}, dtype, cat("x at ", past));
      kernels::append_to_cache(rank.stream, cache, x, past);
      const auto added = values(x);
      for (int64_t b = 0; b < B; ++b)
        for (int64_t i = 0; i < S * row; ++i)
          expected[size_t((b * most + past) * row + i)] = added[size_t(b * S * row + i)];
      past += S;
      EXPECT_EQ(values(cache), expected) << dtype << ", " << past << " positions";
    }
  }
}

TEST(AppendToCache, NoSequencesAreFine) {
  Rank rank;
  kernels::append_to_cache(rank.stream, rank.stream.empty({0, 4, 1, 2}, DType::f32),
                           rank.stream.empty({0, 2, 1, 2}, DType::f32), 0);
}

}  // namespace
}  // namespace witan
