#include "witan/kernels/attention/kv_cache.h"

#include "support/attention.h"
#include "support/cuda_rank.h"

namespace witan {
namespace {

using kernels::CacheRun;
using kernels::CacheTokens;
using testing::cache_tokens;
using testing::CudaTest;
using testing::values;

class CudaAppendToCache : public CudaTest {
 protected:
  CacheTokens to_gpu(const CacheTokens& tokens) {
    return {tokens.runs, CudaTest::to_gpu(tokens.rows), CudaTest::to_gpu(tokens.positions)};
  }
  using CudaTest::to_gpu;
};

// Three rows at different positions, in a ring.
TEST_F(CudaAppendToCache, WritesOnlyItsPositionsOfEveryRow) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
    for (const int64_t hd : {5, 16, 128}) {  // rows that are packs of 16 bytes, and others
      const Tensor expected = host.normal({3, 7, 2, hd}, dtype, "cache"), cache = to_gpu(expected);
      int64_t past = 0;
      for (const int64_t S : {4, 1, 2, 5, 0}) {
        const CacheTokens tokens = cache_tokens(host, {{2, past, S}, {0, past + 3, S}, {1, past, S}});
        const Tensor x = host.normal({1, 3 * S, 2, hd}, dtype, cat("x at ", past));
        kernels::append_to_cache(host.stream, expected, x, tokens);
        kernels::append_to_cache(gpu(), cache, to_gpu(x), to_gpu(tokens));
        past += S;
        EXPECT_EQ(values(to_host(cache)), values(expected)) << dtype << ", " << past << " positions";
      }
    }
}

TEST_F(CudaAppendToCache, LargeCaches) {
  const Tensor expected = host.normal({4, 600, 4, 128}, DType::bf16, "cache"), cache = to_gpu(expected);
  const Tensor x = host.normal({1, 4 * 513, 4, 128}, DType::bf16, "x");
  const CacheTokens tokens = cache_tokens(host, {{0, 61, 513}, {1, 61, 513}, {2, 400, 513}, {3, 0, 513}});
  kernels::append_to_cache(host.stream, expected, x, tokens);
  kernels::append_to_cache(gpu(), cache, to_gpu(x), to_gpu(tokens));
  EXPECT_EQ(values(to_host(cache)), values(expected));
}

}  // namespace
}  // namespace witan
