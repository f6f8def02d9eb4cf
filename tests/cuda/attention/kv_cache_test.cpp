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

// One kernel has the bits of the three that it stands for: a rotation of all, some or none of the channels, packs of 16
// bytes and others, values of another size, rings.
TEST_F(CudaAppendToCache, HeadsHaveTheBitsOfSeparateKernels) {
  struct Case {
    int64_t T, H, G, hd, hd_v, slots;
    kernels::RopeArgs rope;
  };
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const Case& c : {Case{1, 32, 4, 128, 128, 9, {.dims = 128}}, Case{5, 8, 1, 64, 64, 4, {.dims = 32}},
                          Case{3, 6, 3, 40, 24, 9, {.dims = 40, .interleaved = true}}, Case{2, 4, 2, 256, 64, 9, {}},
                          Case{3, 2, 2, 10, 6, 9, {.dims = 10}}, Case{0, 2, 2, 16, 16, 9, {.dims = 16}}}) {
      SCOPED_TRACE(cat(c.T, " tokens, heads of ", c.hd, ", ", dtype));
      std::vector<CacheRun> runs;
      for (int64_t t = 0; t < c.T; ++t) runs.push_back({c.T - 1 - t, 3 * t, 1});
      const CacheTokens tokens = to_gpu(cache_tokens(host, runs));
      const Tensor packed = to_gpu(host.normal({c.T, (c.H + c.G) * c.hd + c.G * c.hd_v}, dtype, "packed"));
      const kernels::NormWeight wq(to_gpu(host.normal({c.hd}, dtype, "wq"))),
          wk(to_gpu(host.normal({c.hd}, dtype, "wk")));
      Tensor table;
      if (c.rope.dims > 0) {
        table = poisoned({c.T, c.rope.dims}, DType::f32);
        kernels::rotary_table(gpu(), table, tokens.positions, c.rope);
      }
      const auto caches = [&](int64_t channels) {
        return to_gpu(host.normal({6, c.slots, c.G, channels}, dtype, "cache"));
      };
      const auto heads = [&](int64_t of, int64_t channels) { return poisoned({1, c.T, of, channels}, dtype); };
      const Tensor q = heads(c.H, c.hd), keys = caches(c.hd), cached = caches(c.hd_v);
      kernels::heads_to_cache(gpu(), q, keys, cached, {packed, wq, wk, table, c.rope, 1e-5}, tokens);

      const kernels::Heads split{heads(c.H, c.hd), heads(c.G, c.hd), heads(c.G, c.hd_v)};
      const Tensor normed_q = heads(c.H, c.hd), normed_k = heads(c.G, c.hd);
      const Tensor keys_apart = caches(c.hd), values_apart = caches(c.hd_v);
      const auto scales = [&](int64_t of) { return poisoned({c.T * of}, DType::f32); };
      kernels::split_heads(gpu(), split, packed, {}, {});
      kernels::head_norms_forward(gpu(), {normed_q, scales(c.H), split.q, wq}, {normed_k, scales(c.G), split.k, wk},
                                  table, c.rope, 1e-5);
      kernels::append_to_cache(gpu(), keys_apart, normed_k, tokens);
      kernels::append_to_cache(gpu(), values_apart, split.v, tokens);
      EXPECT_EQ(values(to_host(q)), values(to_host(normed_q)));
      EXPECT_EQ(values(to_host(keys)), values(to_host(keys_apart)));
      EXPECT_EQ(values(to_host(cached)), values(to_host(values_apart)));
    }
}

}  // namespace
}  // namespace witan
