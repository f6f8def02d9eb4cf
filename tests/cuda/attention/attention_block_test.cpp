// Attention in blocks of a sequence's query-key pairs: our own GPU kernels against the CPU's.
#include <cmath>
#include <limits>

#include "support/cuda_rank.h"
#include "support/dropout.h"
#include "witan/kernels/attention/attention.h"
#include "witan/kernels/attention/cuda/attention_backend.h"

namespace witan {
namespace {

using kernels::PositionRuns;
using testing::CudaTest;
using testing::dropout_of;
using testing::Rank;
using testing::values;

constexpr DType kTypes[] = {DType::f64, DType::f32, DType::bf16, DType::f16};

struct Case {
  int64_t B, Sq, Sk, H, G, hd;
  PositionRuns queries, keys;
  int64_t hd_v = hd;
  int64_t window = 0;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  const auto runs = [](const PositionRuns& p) { return cat(p.first, "..", p.second); };
  return out << "B=" << c.B << " Sq=" << c.Sq << " Sk=" << c.Sk << " H=" << c.H << " G=" << c.G << " hd=" << c.hd
             << " hd_v=" << c.hd_v << " window=" << c.window << " queries at " << runs(c.queries) << " keys at "
             << runs(c.keys);
}

// Runs begin and end at multiples of 4, as dropout requires; tiles have 16 to 64 rows or keys.
const std::vector<Case> kCases = {
    {2, 80, 80, 4, 2, 64, {40, 40, 200}, {40, 40, 200}},  // a rank's own keys
    {2, 80, 80, 4, 2, 64, {40, 40, 200}, {0, 40, 240}},   // those of an earlier rank: every query sees the first half
    {2, 80, 80, 4, 2, 64, {0, 40, 240}, {40, 40, 200}},   // those of a later rank: the second half of the queries sees
                                                          // all
    {1, 136, 136, 6, 2, 128, {0, 68, 340}, {68, 68, 272}},  // the same across tiles
    {1, 100, 172, 3, 1, 20, {0, 52, 300}, {20, 84, 280}},   // interleaved runs
    {1, 70, 33, 2, 2, 65, {500}, {0}},                      // all pairs are visible; a tile of keys is not full
    {1, 33, 70, 5, 1, 136, {0}, {500}},                     // no pair is visible
    {2, 1, 130, 4, 1, 256, {64}, {0}},                      // one query, as in decoding
    {1, 70, 1, 2, 1, 32, {0}, {36}},                        // one key
    {3, 5, 9, 2, 1, 3, {4, 2, 20}, {0, 4, 16}},
};

struct Results {
  Tensor y, lse, dq, dk, dv;
};

class CudaAttentionBlock : public CudaTest {
 protected:
  using CudaTest::to_gpu;
  kernels::AttentionInputs to_gpu(kernels::AttentionInputs in) {
    for (Tensor* tensor : {&in.q, &in.k, &in.v, &in.sequence_ids, &in.dropout.step, &in.block.key_ids})
      *tensor = CudaTest::to_gpu(*tensor);
    return in;
  }

  kernels::AttentionInputs inputs(const Case& c, DType dtype) {
    const Shape keys{c.B, c.Sk, c.G, c.hd};
    return {host.normal({c.B, c.Sq, c.H, c.hd}, dtype, "q"),
            host.normal(keys, dtype, "k"),
            host.normal(keys.with(3, c.hd_v), dtype, "v"),
            {},
            1 / std::sqrt(static_cast<double>(c.hd)),
            {},
            {},
            {c.queries, c.keys, {}, 700},
            c.window};
  }
  // Documents of `length` positions of the whole sequence, with ids modulo `modulus`.
  Tensor ids(int64_t B, int64_t tokens, const PositionRuns& positions, int64_t length, int64_t modulus) {
    std::vector<int32_t> of;
    for (int64_t i = 0; i < B * tokens; ++i)
      of.push_back(static_cast<int32_t>(positions.at(i % tokens) / length % modulus - 1));
    return host.tensor<int32_t>({B, tokens}, of);
  }

  // The block's own y and lse are used as those of the whole, which leaves queries without keys among them. Outputs are
  // poisoned and written twice, and must have the same bits.
  void check(const Case& c, const kernels::AttentionInputs& in) {
    SCOPED_TRACE(::testing::Message() << c << " " << name_of(in.q.dtype()));
    const DType dtype = in.q.dtype(), wide = accumulator(dtype);
    const Shape lse_shape{c.B, c.H, c.Sq};
    const Shape of_y = in.q.shape().with(3, c.hd_v);
    const Tensor dy = host.normal(of_y, dtype, "dy");
    const Results cpu{host.poisoned(of_y, dtype), host.poisoned(lse_shape, wide), host.poisoned(in.q.shape(), dtype),
                      host.poisoned(in.k.shape(), dtype), host.poisoned(in.v.shape(), dtype)};
    kernels::attention_forward(host.stream, cpu.y, cpu.lse, in);
    kernels::attention_backward(host.stream, {cpu.dq, cpu.dk, cpu.dv}, dy, cpu.y, cpu.lse, in);

    const kernels::AttentionInputs on_device = to_gpu(in);
    const Tensor dy_gpu = to_gpu(dy), y_gpu = to_gpu(cpu.y), lse_gpu = to_gpu(cpu.lse);
    const auto run = [&] {
      const Results r{poisoned(of_y, dtype), poisoned(lse_shape, wide), poisoned(in.q.shape(), dtype),
                      poisoned(in.k.shape(), dtype), poisoned(in.v.shape(), dtype)};
      kernels::cuda::own::attention_forward(gpu(), r.y, r.lse, on_device);
      kernels::cuda::own::attention_backward(gpu(), {r.dq, r.dk, r.dv}, dy_gpu, y_gpu, lse_gpu, on_device);
      return r;
    };
    const Results got = run(), again = run();
    const double a = size_of(dtype) == 2 ? 2e-2 : dtype == DType::f32 ? 1e-5 : 1e-13;
    EXPECT_TRUE(agree(got.y, cpu.y, a, a)) << "y";
    EXPECT_TRUE(agree(got.dq, cpu.dq, 2 * a, a)) << "dq";
    EXPECT_TRUE(agree(got.dk, cpu.dk, 4 * a, a)) << "dk";
    EXPECT_TRUE(agree(got.dv, cpu.dv, 4 * a, a)) << "dv";
    const auto lse = values(to_host(got.lse)), expected = values(cpu.lse);
    const double of_lse = size_of(dtype) == 2 ? 1e-4 : a;
    for (size_t i = 0; i < lse.size(); ++i)  // minus infinity must match exactly
      ASSERT_TRUE(lse[i] == expected[i] || std::abs(lse[i] - expected[i]) <= of_lse * (1 + std::abs(expected[i])))
          << "lse " << i << ": " << lse[i] << " against " << expected[i];
    for (const auto part : {&Results::y, &Results::lse, &Results::dq, &Results::dk, &Results::dv})
      EXPECT_EQ(values(to_host(got.*part)), values(to_host(again.*part)));
  }
};

TEST_F(CudaAttentionBlock, AgreesWithTheCpu) {
  for (const DType dtype : kTypes)
    for (const Case& c : kCases) check(c, inputs(c, dtype));
}

// Windows by position, for any runs: none, some or all pairs of a block are visible.
TEST_F(CudaAttentionBlock, WindowsAndValueSizesAgreeWithTheCpu) {
  for (const DType dtype : kTypes)
    for (Case c : kCases)
      for (const int64_t window : {1, 30, 200, 600}) {
        c.window = window;
        c.hd_v = window == 30    ? std::max<int64_t>(c.hd - 3, 1)
                 : window == 200 ? std::min<int64_t>(c.hd + 8, 256)
                                 : c.hd;
        kernels::AttentionInputs in = inputs(c, dtype);
        check(c, in);
        in.dropout = dropout_of(host, 0.3);
        in.sequence_ids = ids(c.B, c.Sq, c.queries, 210, 1000);
        in.block.key_ids = ids(c.B, c.Sk, c.keys, 210, 1000);
        check(c, in);
      }
}

TEST_F(CudaAttentionBlock, DocumentsDoNotSeeEachOther) {
  for (const DType dtype : kTypes)
    for (const Case& c : kCases)
      for (const auto& [length, modulus] :
           {std::pair{1, 1000}, std::pair{37, 1000}, std::pair{210, 1000}, std::pair{50, 2}}) {
        kernels::AttentionInputs in = inputs(c, dtype);
        in.sequence_ids = ids(c.B, c.Sq, c.queries, length, modulus);
        in.block.key_ids = ids(c.B, c.Sk, c.keys, length, modulus);
        check(c, in);
      }
}

TEST_F(CudaAttentionBlock, DropsWhatTheCpuDrops) {
  for (const DType dtype : kTypes)
    for (const Case& c : kCases) {
      kernels::AttentionInputs in = inputs(c, dtype);
      in.dropout = dropout_of(host, 0.3);
      in.sequence_ids = ids(c.B, c.Sq, c.queries, 210, 1000);
      in.block.key_ids = ids(c.B, c.Sk, c.keys, 210, 1000);
      check(c, in);
    }
}

TEST_F(CudaAttentionBlock, AcceptsNoKeysAndNoQueries) {
  for (const DType dtype : kTypes) {
    const Case no_keys{2, 20, 0, 2, 1, 16, {}, {}}, no_queries{2, 0, 20, 2, 1, 16, {}, {}};
    check(no_keys, inputs(no_keys, dtype));
    check(no_queries, inputs(no_queries, dtype));
  }
}

// A block of a sequence whose other keys are in other blocks, so that y and lse are the whole sequence's.
class CudnnBlock : public CudaAttentionBlock {
 protected:
  void SetUp() override {
    CudaAttentionBlock::SetUp();
    if (!IsSkipped() && !kernels::cuda::cudnn::why_none().empty()) GTEST_SKIP() << kernels::cuda::cudnn::why_none();
  }

  std::string backend(const Case& c) { return kernels::cuda::attention_backend(gpu(), to_gpu(inputs(c, DType::bf16))); }

  void expect_as_ours(const Case& c) {
    SCOPED_TRACE(::testing::Message() << c);
    const auto in = to_gpu(inputs(c, DType::bf16));
    ASSERT_EQ(kernels::cuda::attention_backend(gpu(), in), cat("cudnn ", kernels::cuda::cudnn::version()));
    const auto results = [&] {
      const auto like = [&](const Tensor& t) { return poisoned(t.shape(), t.dtype()); };
      return Results{poisoned(in.q.shape().with(3, c.hd_v), DType::bf16), poisoned({c.B, c.H, c.Sq}, DType::f32),
                     like(in.q), like(in.k), like(in.v)};
    };
    const Results ours = results(), got = results();
    kernels::cuda::own::attention_forward(gpu(), ours.y, ours.lse, in);
    kernels::attention_forward(gpu(), got.y, got.lse, in);
    EXPECT_TRUE(agree(got.y, to_host(ours.y), 2e-2, 2e-2)) << "y";
    std::vector<float> whole;
    const auto lse = values(to_host(got.lse)), expected = values(to_host(ours.lse));
    for (size_t i = 0; i < lse.size(); ++i) {  // minus infinity must match exactly
      ASSERT_TRUE(lse[i] == expected[i] || std::abs(lse[i] - expected[i]) <= 1e-4 * (1 + std::abs(expected[i])))
          << "lse " << i << ": " << lse[i] << " against " << expected[i];
      whole.push_back(std::isinf(expected[i]) ? 3.0F : static_cast<float>(expected[i]) + 0.7F);
    }

    const Tensor of_all = to_gpu(host.tensor<float>({c.B, c.H, c.Sq}, whole));
    const Tensor y = to_gpu(host.normal(in.q.shape().with(3, c.hd_v), DType::bf16, "y"));
    const Tensor dy = to_gpu(host.normal(in.q.shape().with(3, c.hd_v), DType::bf16, "dy"));
    kernels::cuda::own::attention_backward(gpu(), {ours.dq, ours.dk, ours.dv}, dy, y, of_all, in);
    kernels::attention_backward(gpu(), {got.dq, got.dk, got.dv}, dy, y, of_all, in);
    EXPECT_TRUE(agree(got.dq, to_host(ours.dq), 6e-2, 2e-2)) << "dq";
    EXPECT_TRUE(agree(got.dk, to_host(ours.dk), 8e-2, 2e-2)) << "dk";
    EXPECT_TRUE(agree(got.dv, to_host(ours.dv), 8e-2, 2e-2)) << "dv";
  }
};

TEST_F(CudnnBlock, TakesSquaresAndRectangles) {
  expect_as_ours({1, 128, 128, 2, 1, 64, {64, 64, 320}, {64, 64, 320}});    // a rank's own keys
  expect_as_ours({2, 256, 256, 4, 2, 64, {128, 128, 768}, {0, 128, 896}});  // those of an earlier rank: the first half
  expect_as_ours({2, 256, 256, 4, 2, 64, {0, 128, 896}, {128, 128, 768}});  // those of a later rank: the second half of
                                                                            // the queries
  expect_as_ours({1, 160, 160, 4, 4, 128, {0, 80, 560}, {240, 80, 320}});   // not multiples of a tile
  expect_as_ours({3, 136, 200, 6, 1, 128, {500}, {0}});                     // all pairs are visible
}

TEST_F(CudnnBlock, TakesWindowsThatHideNothingOrLieInOneRun) {
  expect_as_ours({1, 128, 128, 2, 1, 64, {192}, {192}, 64, 50});                       // within one run
  expect_as_ours({2, 256, 256, 4, 2, 64, {128, 128, 768}, {0, 128, 896}, 64, 900});    // all pairs are in the window
  expect_as_ours({3, 136, 200, 6, 1, 128, {500}, {0}, 128, 636});                      // just all pairs
  expect_as_ours({2, 256, 256, 4, 2, 64, {128, 128, 768}, {128, 128, 768}, 64, 768});  // a rank's own keys
}

// The workspace is too large for one call.
TEST_F(CudnnBlock, RunsInParts) {
  expect_as_ours({16, 1024, 1024, 16, 4, 128, {0, 512, 3584}, {512, 512, 3072}});
  expect_as_ours({16, 1024, 1024, 16, 4, 128, {512, 512, 3072}, {0, 512, 3584}});
}

TEST_F(CudnnBlock, LeavesTheRestToOurKernels) {
  EXPECT_EQ(backend({1, 256, 256, 2, 1, 64, {0, 128, 896}, {64, 128, 768}}), "witan") << "interleaved runs";
  EXPECT_EQ(backend({1, 128, 128, 2, 1, 64, {100}, {0}}), "witan") << "causal, but not from the first key on";
  EXPECT_EQ(backend({1, 128, 128, 2, 1, 64, {0}, {500}}), "witan") << "no pair is visible";
  EXPECT_EQ(backend({1, 128, 128, 2, 1, 64, {64, 64, 320}, {0, 32, 384}}), "witan") << "too few keys";
  EXPECT_EQ(backend({2, 256, 256, 4, 2, 64, {128, 128, 768}, {128, 128, 768}, 64, 767}), "witan")
      << "a window across a gap";
  EXPECT_EQ(backend({3, 136, 200, 6, 1, 128, {500}, {0}, 128, 635}), "witan") << "a window in a rectangle";
}

TEST_F(CudaAttentionBlock, Merges) {
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  for (const DType dtype : kTypes)
    for (const auto& [H, hd] : {std::pair{3, 1}, std::pair{2, 20}, std::pair{4, 128}, std::pair{1, 200}}) {
      SCOPED_TRACE(::testing::Message() << name_of(dtype) << " hd=" << hd);
      constexpr int64_t B = 2, S = 37;
      const DType wide = accumulator(dtype);
      const Tensor y = host.normal({B, S, H, hd}, wide, "y"), part = host.normal({B, S, H, hd}, dtype, "part");
      const Tensor lse = host.normal({B, H, S}, wide, "lse", 4), lse_part = host.normal({B, H, S}, wide, "lse part", 4);
      dispatch_floating(wide, [&]<class A>() {
        for (int64_t i = 0; i < lse.elements(); ++i) {
          if (i % 5 == 1 || i % 5 == 3) lse_part.data<A>()[i] = A(kNone);
          if (i % 5 == 2 || i % 5 == 3) lse.data<A>()[i] = A(kNone);
        }
      });
      const Tensor y_gpu = to_gpu(y), lse_gpu = to_gpu(lse), part_gpu = to_gpu(part), lse_part_gpu = to_gpu(lse_part);
      kernels::attention_merge(host.stream, y, lse, part, lse_part);
      kernels::attention_merge(gpu(), y_gpu, lse_gpu, part_gpu, lse_part_gpu);
      const double a = wide == DType::f64 ? 1e-14 : 2e-6;
      EXPECT_TRUE(agree(y_gpu, y, a, a));
      const auto got = values(to_host(lse_gpu)), expected = values(lse);
      for (size_t i = 0; i < got.size(); ++i)
        ASSERT_TRUE(got[i] == expected[i] || std::abs(got[i] - expected[i]) <= a * (1 + std::abs(expected[i]))) << i;
    }
}

}  // namespace
}  // namespace witan
