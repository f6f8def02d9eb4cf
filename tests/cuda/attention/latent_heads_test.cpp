#include "support/cuda_rank.h"
#include "witan/kernels/attention/heads.h"

namespace witan {
namespace {

struct Case {
  int64_t tokens, heads, still, turning, value;
  bool interleaved, rotates = true;
};

// Channels [first, first + count) of each row.
std::vector<double> channels(const std::vector<double>& x, int64_t row, int64_t first, int64_t count) {
  std::vector<double> some;
  for (auto at = x.begin(); at != x.end(); at += row) some.insert(some.end(), at + first, at + first + count);
  return some;
}

class CudaLatentHeads : public testing::CudaTest {
 protected:
  template <class Make>
  static kernels::Heads heads_of(const Case& c, const Make& make) {
    const Shape key{c.tokens, c.heads, c.still + c.turning};
    return {make(key, "q"), make(key, "k"), make(key.with(2, c.value), "v")};
  }
  template <class Make>
  static kernels::LatentRows rows_of(const Case& c, const Make& make) {
    return {make(Shape{c.tokens, c.heads * (c.still + c.turning)}, "rows of q"),
            make(Shape{c.tokens, c.heads * (c.still + c.value)}, "rows of kv"),
            make(Shape{c.tokens, c.turning}, "rows of the key")};
  }

  void check(const Case& c, DType dtype) {
    SCOPED_TRACE(cat(dtype, " ", c.tokens, " tokens of ", c.heads, " heads of ", c.still, " + ", c.turning, " and ",
                     c.value, c.interleaved ? " interleaved" : "", c.rotates ? "" : " without positions"));
    kernels::RopeArgs args{1e4, c.rotates ? c.turning : 0, c.interleaved, false};
    args.scaling.magnitude = 1.2;
    Tensor table;
    if (c.rotates) {
      std::vector<int32_t> where;
      for (int64_t t = 0; t < c.tokens; ++t) where.push_back(static_cast<int32_t>(t * 37 % 2048));
      table = host.stream.empty({c.tokens, c.turning}, accumulator(dtype));
      kernels::rotary_table(host.stream, table, host.tensor<int32_t>({c.tokens}, where), args);
    }
    const auto normal = [&](const Shape& shape, const char* name) { return host.normal(shape, dtype, name); };
    const auto empty = [&](const Shape& shape, const char*) { return host.poisoned(shape, dtype); };
    const auto unset = [&](const Shape& shape, const char*) { return poisoned(shape, dtype); };
    const Tensor angles = to_gpu(table);
    const double rounding = size_of(dtype) == 2 ? 8e-3 : dtype == DType::f32 ? 1e-6 : 1e-13;

    const auto rows = rows_of(c, normal);
    const auto on_cpu = heads_of(c, empty), on_gpu = heads_of(c, unset);
    kernels::latent_heads(host.stream, on_cpu, rows, table, args);
    kernels::latent_heads(gpu(), on_gpu, {to_gpu(rows.q), to_gpu(rows.kv), to_gpu(rows.rope_key)}, angles, args);
    EXPECT_TRUE(agree(on_gpu.q, on_cpu.q, rounding, rounding));
    EXPECT_TRUE(agree(on_gpu.k, on_cpu.k, rounding, rounding));
    EXPECT_TRUE(agree(on_gpu.v, on_cpu.v, 0, 0));

    const kernels::TurnedChannels turned{poisoned({c.tokens, c.heads, c.turning}, dtype),
                                         poisoned({c.tokens, c.turning}, dtype)};
    kernels::turn_latent_channels(gpu(), turned, to_gpu(rows.q), to_gpu(rows.rope_key), angles, args);
    const int64_t hd = c.still + c.turning;
    EXPECT_EQ(testing::values(to_host(turned.q)), channels(testing::values(to_host(on_gpu.q)), hd, c.still, c.turning));
    EXPECT_EQ(testing::values(to_host(turned.key)),
              channels(testing::values(to_host(on_gpu.k)), c.heads * hd, c.still, c.turning));

    const auto gradients = heads_of(c, normal);
    const auto back = rows_of(c, empty), back_gpu = rows_of(c, unset);
    kernels::latent_heads_backward(host.stream, back, gradients, table, args);
    kernels::latent_heads_backward(gpu(), back_gpu, {to_gpu(gradients.q), to_gpu(gradients.k), to_gpu(gradients.v)},
                                   angles, args);
    EXPECT_TRUE(agree(back_gpu.q, back.q, rounding, rounding));
    EXPECT_TRUE(agree(back_gpu.kv, back.kv, 0, 0));
    EXPECT_TRUE(agree(back_gpu.rope_key, back.rope_key, rounding * 10, rounding * 10));  // a sum over heads
  }
};

// DeepSeek's sizes, in packs; a row that only some packs fit; and odd sizes.
TEST_F(CudaLatentHeads, AgreeWithTheCpu) {
  for (const Case& c : {Case{33, 16, 128, 64, 128, true}, Case{33, 16, 128, 64, 128, false},
                        Case{5, 128, 128, 64, 128, true}, Case{9, 3, 24, 8, 16, true}, Case{9, 3, 24, 8, 16, false},
                        Case{7, 3, 5, 6, 3, true}, Case{7, 3, 5, 6, 3, false}, Case{7, 2, 8, 12, 8, false},
                        Case{17, 4, 16, 8, 8, true, false}, Case{0, 2, 8, 8, 8, true}})
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) check(c, dtype);
}

TEST_F(CudaLatentHeads, ManyTokensAgreeWithTheCpu) {
  check({4099, 8, 128, 64, 128, true}, DType::bf16);
}

}  // namespace
}  // namespace witan
