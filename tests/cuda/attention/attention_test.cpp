#include "witan/kernels/attention/attention.h"

#include <cmath>

#include "support/attention.h"
#include "support/cuda_rank.h"
#include "support/dropout.h"
#include "witan/kernels/attention/attention_path.h"
#include "witan/kernels/attention/cuda/attention_backend.h"
#include "witan/tensor/cuda/stream.h"

namespace witan {
namespace {

using testing::CudaTest;
using testing::dropout_of;
using testing::Rank;
using testing::values;

using Size = testing::AttentionSize;
using Results = testing::AttentionResults;

struct Backend {
  const char* name;
  void (*forward)(Stream&, const Tensor&, const Tensor&, const kernels::AttentionInputs&);
  void (*backward)(Stream&, const kernels::AttentionGradients&, const Tensor&, const Tensor&, const Tensor&,
                   const kernels::AttentionInputs&);
};
constexpr Backend kDefault{"default", kernels::attention_forward, kernels::attention_backward};
constexpr Backend kOwn{"own", kernels::cuda::own::attention_forward, kernels::cuda::own::attention_backward};

class CudaAttention : public CudaTest {
 protected:
  kernels::AttentionInputs inputs(const Size& s, DType dtype, const Tensor& ids = {}) {
    return {.q = host.normal(s.queries(), dtype, "q"),
            .k = host.normal(s.keys(), dtype, "k"),
            .v = host.normal(s.values(), dtype, "v"),
            .sequence_ids = ids,
            .scale = 1 / std::sqrt(static_cast<double>(s.hd)),
            .window = s.window};
  }
  kernels::AttentionInputs to_gpu(kernels::AttentionInputs in) {
    for (Tensor* tensor : {&in.q, &in.k, &in.v, &in.sequence_ids, &in.dropout.step})
      *tensor = CudaTest::to_gpu(*tensor);
    return in;
  }
  using CudaTest::to_gpu;

  Results on_cpu(const Size& s, const kernels::AttentionInputs& in, const Tensor& dy) {
    const DType dtype = in.q.dtype();
    Results r{host.poisoned(s.results(), dtype), host.poisoned(s.lse(), accumulator(dtype)),
              host.poisoned(s.queries(), dtype), host.poisoned(s.keys(), dtype), host.poisoned(s.values(), dtype)};
    kDefault.forward(host.stream, r.y, r.lse, in);
    kDefault.backward(host.stream, {r.dq, r.dk, r.dv}, dy, r.y, r.lse, in);
    return r;
  }
  Results on_gpu(const Backend& backend, const Size& s, const kernels::AttentionInputs& in, const Tensor& dy) {
    const DType dtype = in.q.dtype();
    Results r{poisoned(s.results(), dtype), poisoned(s.lse(), accumulator(dtype)), poisoned(s.queries(), dtype),
              poisoned(s.keys(), dtype), poisoned(s.values(), dtype)};
    backend.forward(gpu(), r.y, r.lse, in);
    backend.backward(gpu(), {r.dq, r.dk, r.dv}, dy, r.y, r.lse, in);
    return r;
  }

  Results to_host(const Results& r) {
    return {CudaTest::to_host(r.y), CudaTest::to_host(r.lse), CudaTest::to_host(r.dq), CudaTest::to_host(r.dk),
            CudaTest::to_host(r.dv)};
  }
  using CudaTest::to_host;

  // With a window of one token, the score gradients are nothing but rounding errors, half of them on each side.
  void compare(const Results& gpu, const Results& cpu, int64_t window) {
    const DType dtype = cpu.y.dtype();
    const double a = size_of(dtype) == 2 ? 2e-2 : dtype == DType::f32 ? 1e-5 : 1e-13;
    EXPECT_TRUE(agree(gpu.y, cpu.y, a, a)) << "y";
    // Tensor cores truncate their addends.
    const double of_lse = dtype == DType::f64 ? 1e-13 : dtype == DType::f32 ? 1e-5 : 1e-4;
    EXPECT_TRUE(agree(gpu.lse, cpu.lse, of_lse, of_lse)) << "lse";
    EXPECT_TRUE(agree(gpu.dq, cpu.dq, window == 1 ? 4 * a : 2 * a, a)) << "dq";
    EXPECT_TRUE(agree(gpu.dk, cpu.dk, 4 * a, a)) << "dk";
    EXPECT_TRUE(agree(gpu.dv, cpu.dv, 4 * a, a)) << "dv";
  }

  // Compares with the CPU, and repeats our own kernels to compare the bits.
  void check(const Size& s, const kernels::AttentionInputs& in) {
    SCOPED_TRACE(::testing::Message() << s << " " << name_of(in.q.dtype()));
    const Tensor dy = host.normal(s.results(), in.q.dtype(), "dy"), dy_gpu = to_gpu(dy);
    const Results expected = on_cpu(s, in, dy);
    const kernels::AttentionInputs on_device = to_gpu(in);
    const Results once = on_gpu(kOwn, s, on_device, dy_gpu), again = on_gpu(kOwn, s, on_device, dy_gpu);
    compare(once, expected, s.window);
    for (const auto part : {&Results::y, &Results::lse, &Results::dq, &Results::dk, &Results::dv})
      EXPECT_EQ(values(to_host(once.*part)), values(to_host(again.*part)));
  }

  // [B, S] ids of documents of `length` tokens, modulo `modulus`.
  Tensor documents(const Size& s, int64_t length, int64_t modulus = 1000) {
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < s.B * s.S; ++i) ids.push_back(static_cast<int32_t>(i % s.S / length % modulus - 1));
    return host.tensor<int32_t>({s.B, s.S}, ids);
  }
};

// One position; tiles that are not full; odd head sizes; every tile width; groups of one, several and all heads.
const std::vector<Size> kSizes = {{1, 1, 1, 1, 1},     {2, 1, 4, 2, 16},   {1, 5, 2, 1, 3},    {2, 67, 4, 2, 20},
                                  {1, 130, 6, 2, 64},  {1, 300, 2, 2, 32}, {3, 33, 5, 1, 65},  {1, 64, 8, 8, 48},
                                  {2, 150, 4, 1, 128}, {1, 70, 3, 3, 200}, {1, 129, 2, 1, 256}};

const std::vector<int64_t> kWindows = {1, 2, 7, 33, 64, 100, 1000};  // within a tile, a tile, several tiles, everything

// Values narrower and wider than queries and keys, with tiles of the same width and of a larger one.
const std::vector<Size> kSizesOfValues = {{2, 67, 4, 2, 20, 1},   {1, 5, 2, 1, 3, 8},    {1, 130, 6, 2, 96, 64},
                                          {2, 70, 3, 1, 1, 33},   {1, 70, 4, 2, 64, 72}, {1, 129, 4, 4, 192, 128},
                                          {1, 75, 3, 1, 128, 256}};

constexpr DType kTypes[] = {DType::f64, DType::f32, DType::bf16, DType::f16};

// Wider than the kernels on tensor cores take. In float64 no GPU has shared memory for such heads.
TEST_F(CudaAttention, WideHeadsAgreeWithTheCpu) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const Size& size : {Size{1, 70, 4, 1, 512}, Size{2, 33, 2, 2, 300, 512}, Size{1, 90, 4, 2, 512, 512, 40}})
      check(size, inputs(size, dtype));
  const Size size{1, 5, 2, 1, 512};
  const auto in = to_gpu(inputs(size, DType::f64));
  EXPECT_THROW(on_gpu(kOwn, size, in, poisoned(in.q.shape(), DType::f64)), DeviceError);
}

TEST_F(CudaAttention, AgreesWithTheCpu) {
  for (const DType dtype : kTypes)
    for (const Size& size : kSizes) check(size, inputs(size, dtype));
}

TEST_F(CudaAttention, WindowsAgreeWithTheCpu) {
  for (const DType dtype : kTypes)
    for (const Size& size : kSizes)
      for (const int64_t window : kWindows) check(size.with_window(window), inputs(size.with_window(window), dtype));
}

TEST_F(CudaAttention, ValuesOfAnotherHeadSizeAgreeWithTheCpu) {
  for (const DType dtype : kTypes)
    for (const Size& size : kSizesOfValues)
      for (const int64_t window : {0, 40}) check(size.with_window(window), inputs(size.with_window(window), dtype));
}

// Combines both with documents and dropout.
TEST_F(CudaAttention, WindowsWithDocumentsAndDropoutAgree) {
  for (const DType dtype : kTypes)
    for (const int64_t window : kWindows)
      for (const int64_t modulus : {1000, 3}) {
        const Size size{2, 200, 4, 2, 24, 17, window};
        kernels::AttentionInputs in = inputs(size, dtype, documents(size, 37, modulus));
        check(size, in);
        in.dropout = dropout_of(host, 0.3);
        check(size, in);
      }
}

TEST_F(CudaAttention, AWindowOfTheWholeSequenceChangesNothing) {
  for (const DType dtype : kTypes) {
    const Size size{2, 150, 4, 1, 64};
    const Tensor dy = to_gpu(host.normal(size.results(), dtype, "dy"));
    const Results expected = on_gpu(kOwn, size, to_gpu(inputs(size, dtype)), dy);
    for (const int64_t window : {int64_t{150}, int64_t{1} << 40}) {
      const Results got = on_gpu(kOwn, size, to_gpu(inputs(size.with_window(window), dtype)), dy);
      for (const auto part : {&Results::y, &Results::lse, &Results::dq, &Results::dk, &Results::dv})
        EXPECT_EQ(values(to_host(got.*part)), values(to_host(expected.*part)));
    }
  }
}

TEST_F(CudaAttention, RefusesHeadsThatAreTooWide) {
  for (const Size& size : {Size{1, 8, 2, 1, 520}, Size{1, 8, 2, 1, 64, 513}}) {
    const auto in = to_gpu(inputs(size, DType::bf16));
    EXPECT_THROW(on_gpu(kDefault, size, in, to_gpu(host.normal(size.results(), DType::bf16, "dy"))), DeviceError);
  }
}

// Few enough tiles for racecheck, which tracks every access to shared memory.
TEST_F(CudaAttention, AgreesOverFewTiles) {
  for (const DType dtype : kTypes) {
    const Size size{1, 131, 2, 1, 48};
    kernels::AttentionInputs in = inputs(size, dtype, documents(size, 71));
    check(size, in);
    in.dropout = dropout_of(host, 0.3);
    check(size, in);
    const Size windowed{1, 131, 2, 1, 48, 32, 45};
    check(windowed, inputs(windowed, dtype));
  }
}

TEST_F(CudaAttention, DocumentsDoNotSeeEachOther) {
  for (const DType dtype : kTypes)
    for (const Size& size : {Size{3, 200, 4, 2, 24}, Size{1, 140, 2, 1, 128}, Size{1, 100, 2, 2, 136}})
      for (const int64_t length : {1, 37, 64, 500})
        for (const int64_t modulus : {1000, 3})  // 3: ids that decrease and recur
          check(size, inputs(size, dtype, documents(size, length, modulus)));
}

// On Hopper warpgroups compute calls of many rows, and warps those of few.
TEST_F(CudaAttention, ARowHasTheSameBitsInCallsOfManyRowsAndOfFew) {
  constexpr int64_t kFewRows = 64;  // of a group
  for (const DType dtype : {DType::bf16, DType::f16})
    for (const Size& size :
         {Size{1, 300, 6, 2, 128}, Size{1, 67, 5, 1, 128}, Size{1, 290, 2, 2, 64}, Size{1, 260, 8, 1, 64, 64, 33},
          Size{1, 310, 8, 2, 128, 128, 100}, Size{1, 1100, 1, 1, 128}})
      for (const int64_t length : {0, 37, 100})
        for (const int64_t modulus : {1000, 3})
          for (const bool by_document : {false, true}) {
            SCOPED_TRACE(::testing::Message()
                         << size << " " << name_of(dtype) << ", documents of " << length << " modulo " << modulus
                         << (by_document ? ", from their first tokens" : ""));
            auto whole = to_gpu(inputs(size, dtype, length > 0 ? documents(size, length, modulus) : Tensor()));
            whole.hints.batch_invariant = by_document;
            const Tensor y = poisoned(size.results(), dtype), lse = poisoned(size.lse(), DType::f32);
            kOwn.forward(gpu(), y, lse, whole);
            const Tensor all = to_host(y), all_lse = to_host(lse);
            for (int64_t at = 0, count = kFewRows * size.G / size.H; at < size.S; at += count) {
              count = std::min(count, size.S - at);
              kernels::AttentionInputs few = whole;
              few.q = whole.q.narrow(1, at, count);
              few.block.queries.first = at;
              if (length > 0)
                few.sequence_ids = whole.sequence_ids.narrow(1, at, count), few.block.key_ids = whole.sequence_ids;
              const Tensor y_few = poisoned(few.q.shape(), dtype), lse_few = poisoned({1, size.H, count}, DType::f32);
              kOwn.forward(gpu(), y_few, lse_few, few);
              EXPECT_EQ(values(to_host(y_few)), values(all.narrow(1, at, count))) << "from token " << at;
              for (int64_t h = 0; h < size.H; ++h)
                EXPECT_EQ(values(to_host(lse_few).narrow(1, h, 1)),
                          values(all_lse.narrow(1, h, 1).narrow(2, at, count)));
            }
          }
}

// A cache may hold anything, NaN too, behind its keys.
TEST_F(CudaAttention, ManyRowsReadNothingBehindTheirKeys) {
  const int64_t past = 77;
  for (const int64_t hd : {64, 128}) {
    const Size size{2, 130, 8, 2, hd}, cache{2, 400, 8, 2, hd};
    const auto in = inputs(size, DType::bf16), cached = inputs(cache, DType::bf16);
    const Tensor k = poisoned(cache.keys(), DType::bf16), v = poisoned(cache.values(), DType::bf16);
    for (int64_t b = 0; b < size.B; ++b)
      for (const auto& [to, from] : {std::pair(k, to_gpu(cached.k)), std::pair(v, to_gpu(cached.v))})
        gpu().copy(to.narrow(0, b, 1).narrow(1, 0, past + size.S), from.narrow(0, b, 1).narrow(1, 0, past + size.S));
    const Tensor expected = host.poisoned(size.results(), DType::bf16), y = poisoned(size.results(), DType::bf16);
    kernels::attention_decode(host.stream, expected, in.q, cached.k, cached.v, past, 0.2, 0);
    kernels::attention_decode(gpu(), y, to_gpu(in.q), k, v, past, 0.2, 0);
    EXPECT_TRUE(agree(y, expected, 2e-2, 2e-2));
  }
}

// In deterministic mode tiles begin at a document's first token, and cuDNN is not used for rows with ids.
TEST_F(CudaAttention, ADocumentHasTheSameBitsAloneAndPackedAnywhere) {
  const std::vector<int64_t> lengths = {3, 150, 1, 64, 77, 65, 51};
  std::vector<int32_t> ids;
  for (const int64_t length : lengths)
    ids.insert(ids.end(), static_cast<size_t>(length), ids.empty() ? 0 : ids.back() + 1);
  for (const DType dtype : kTypes)
    for (const Size& packed : {Size{1, 411, 4, 2, 40}, Size{1, 411, 3, 1, 16, 33, 90}, Size{1, 411, 6, 2, 128},
                               Size{1, 411, 2, 2, 192, 128}, Size{1, 411, 2, 1, 24, 16, 5}}) {
      kernels::AttentionInputs whole = inputs(packed, dtype, host.tensor<int32_t>({1, packed.S}, ids));
      whole.hints.repeatable = true;
      const Tensor dy = host.normal(packed.results(), dtype, "dy");
      const Results together = to_host(on_gpu(kDefault, packed, to_gpu(whole), to_gpu(dy)));
      int64_t begin = 0;
      for (const int64_t length : lengths) {
        SCOPED_TRACE(::testing::Message() << packed << " " << name_of(dtype) << ", " << length << " from " << begin);
        const auto part = [&](const Tensor& x) { return x.narrow(1, begin, length); };
        Size size = packed;
        size.S = length;
        kernels::AttentionInputs single = whole;
        for (Tensor* tensor : {&single.q, &single.k, &single.v, &single.sequence_ids}) *tensor = part(*tensor);
        const Results alone = to_host(on_gpu(kDefault, size, to_gpu(single), to_gpu(part(dy))));
        for (const auto output : {&Results::y, &Results::dq, &Results::dk, &Results::dv})
          EXPECT_EQ(values(alone.*output), values(part(together.*output)));
        for (int64_t h = 0; h < packed.H; ++h)
          EXPECT_EQ(values(alone.lse.narrow(1, h, 1)), values(together.lse.narrow(1, h, 1).narrow(2, begin, length)));
        begin += length;
      }
    }
}

TEST_F(CudaAttention, DropsWhatTheCpuDrops) {
  for (const DType dtype : kTypes)
    for (const Size& size : kSizes) {
      kernels::AttentionInputs in = inputs(size, dtype, size.S > 50 ? documents(size, 41) : Tensor());
      in.dropout = dropout_of(host, 0.3);
      check(size, in);
    }
}

TEST_F(CudaAttention, RowsPromisedToBeOneSequenceNeedNoIds) {
  const Size size{1, 96, 2, 1, 64};
  const Tensor dy = to_gpu(host.normal(size.queries(), DType::f32, "dy"));
  kernels::AttentionInputs in = to_gpu(inputs(size, DType::f32, documents(size, 10)));
  in.hints.one_sequence_per_row = true;
  const Results got = on_gpu(kOwn, size, in, dy);
  in.sequence_ids = Tensor();
  EXPECT_EQ(values(to_host(got.dk)), values(to_host(on_gpu(kOwn, size, in, dy).dk)));
}

TEST_F(CudaAttention, Decodes) {
  for (const DType dtype : kTypes)
    for (const Size& size :
         {Size{2, 150, 4, 2, 64}, Size{3, 40, 5, 1, 17}, Size{1, 90, 8, 1, 256}, Size{2, 150, 4, 2, 64, 40, 20},
          Size{1, 150, 4, 2, 24, 72}, Size{2, 150, 4, 2, 64, 64, 1}, Size{2, 150, 4, 2, 64, 64, 100}})
      for (const int64_t queries : {int64_t{1}, size.S / 3}) {
        SCOPED_TRACE(::testing::Message() << size << " " << name_of(dtype) << " " << queries);
        const Tensor q = host.normal({size.B, queries, size.H, size.hd}, dtype, "q");
        const Tensor k = host.normal(size.keys(), dtype, "k"), v = host.normal(size.values(), dtype, "v");
        const Shape results = q.shape().with(3, size.hd_v);
        const Tensor expected = host.poisoned(results, dtype), y = poisoned(results, dtype);
        const int64_t past = size.S - queries - 3;  // three unused positions that must not be read
        const Tensor k_gpu = to_gpu(k), v_gpu = to_gpu(v), q_gpu = to_gpu(q);
        kernels::attention_decode(host.stream, expected, q, k, v, past, 0.2, size.window);
        kernels::attention_decode(gpu(), y, q_gpu, k_gpu, v_gpu, past, 0.2, size.window);
        const double a = size_of(dtype) == 2 ? 2e-2 : dtype == DType::f32 ? 1e-5 : 1e-13;
        EXPECT_TRUE(agree(y, expected, a, a));
      }
}

TEST_F(CudaAttention, AcceptsEmptyTensors) {
  const Size size{0, 4, 2, 1, 8};
  const auto in = to_gpu(inputs(size, DType::bf16));
  on_gpu(kDefault, size, in, in.q);
  gpu().wait();
}

class Cudnn : public CudaAttention {
 protected:
  void SetUp() override {
    CudaAttention::SetUp();
    if (IsSkipped()) return;
    if (!kernels::cuda::cudnn::why_none().empty()) GTEST_SKIP() << kernels::cuda::cudnn::why_none();
  }
};

TEST_F(Cudnn, AgreesWithTheCpu) {
  for (const Size& size : {Size{2, 256, 4, 1, 128}, Size{1, 192, 4, 4, 64}, Size{3, 130, 6, 2, 32}}) {
    SCOPED_TRACE(::testing::Message() << size);
    const auto in = inputs(size, DType::bf16), on_device = to_gpu(in);
    const Tensor dy = host.normal(size.queries(), DType::bf16, "dy"), dy_gpu = to_gpu(dy);
    EXPECT_EQ(kernels::cuda::attention_backend(gpu(), on_device), cat("cudnn ", kernels::cuda::cudnn::version()));
    compare(on_gpu(kDefault, size, on_device, dy_gpu), on_cpu(size, in, dy), size.window);
  }
}

// The window becomes cuDNN's left bound; a window of the whole sequence is ignored.
TEST_F(Cudnn, WindowsAgreeWithTheCpu) {
  for (const Size& size : {Size{2, 256, 4, 1, 128}, Size{1, 192, 4, 4, 64}, Size{3, 130, 6, 2, 32}})
    for (const int64_t window : {1, 2, 33, 64, 129, 1000}) {
      SCOPED_TRACE(::testing::Message() << size.with_window(window));
      const auto in = inputs(size.with_window(window), DType::bf16), on_device = to_gpu(in);
      const Tensor dy = host.normal(size.results(), DType::bf16, "dy"), dy_gpu = to_gpu(dy);
      EXPECT_EQ(kernels::cuda::attention_backend(gpu(), on_device), cat("cudnn ", kernels::cuda::cudnn::version()));
      compare(on_gpu(kDefault, size, on_device, dy_gpu), on_cpu(size, in, dy), size.window);
    }
}

// The results must agree, and repeat where that is asked for, whichever kernels are used: which wide heads and pairs of
// head sizes cuDNN supports depends on its version and the GPU.
TEST_F(Cudnn, OtherHeadSizesAgreeWithTheCpu) {
  for (const Size& size : {Size{2, 256, 4, 2, 128, 64}, Size{1, 192, 4, 4, 64, 128}, Size{2, 256, 4, 4, 192, 128},
                           Size{1, 130, 6, 2, 96, 32}, Size{1, 256, 4, 4, 256, 128}, Size{2, 256, 4, 2, 128, 64, 50},
                           Size{2, 300, 4, 2, 256}, Size{1, 130, 3, 1, 192}, Size{1, 256, 4, 1, 256, 256, 70}}) {
    SCOPED_TRACE(::testing::Message() << size);
    const auto in = inputs(size, DType::bf16);
    auto on_device = to_gpu(in);
    const Tensor dy = host.normal(size.results(), DType::bf16, "dy"), dy_gpu = to_gpu(dy);
    compare(on_gpu(kDefault, size, on_device, dy_gpu), on_cpu(size, in, dy), size.window);
    on_device.hints.repeatable = true;
    const Results first = on_gpu(kDefault, size, on_device, dy_gpu), second = on_gpu(kDefault, size, on_device, dy_gpu);
    compare(first, on_cpu(size, in, dy), size.window);
    for (const auto part : {&Results::y, &Results::dq, &Results::dk, &Results::dv})
      EXPECT_TRUE(values(to_host(first.*part)) == values(to_host(second.*part)));
  }
}

// The workspace is too large for one call, so the batch runs in parts.
TEST_F(Cudnn, LargeBatchesRunInParts) {
  const Size size{8, 1024, 16, 4, 128};
  const Tensor dy = to_gpu(host.normal(size.queries(), DType::bf16, "dy"));
  const auto in = to_gpu(inputs(size, DType::bf16));
  const Results own = on_gpu(kOwn, size, in, dy), got = on_gpu(kDefault, size, in, dy);
  for (const auto part : {&Results::y, &Results::dq, &Results::dk, &Results::dv})
    EXPECT_TRUE(agree(got.*part, to_host(own.*part), 0.06, 2e-2));
}

// The smallest part of these calls, one group of one row, needs more than the stream's scratch: with 32768 positions
// for dq in float32 and each head's dk and dv, and in a deterministic backward with 8192 for the score gradients.
TEST_F(Cudnn, LongSequencesHaveAWorkspaceOfTheirOwn) {
  for (const auto& [size, repeatable] :
       {std::pair(Size{1, 32768, 16, 2, 128}, false), {Size{1, 8192, 8, 1, 128}, true}}) {
    SCOPED_TRACE(::testing::Message() << size);
    const Tensor dy = to_gpu(host.normal(size.queries(), DType::bf16, "dy"));
    auto in = to_gpu(inputs(size, DType::bf16));
    in.hints.repeatable = repeatable;
    ASSERT_GT(kernels::attention_path(in, true).workspace, kernels::kLibraryScratch);
    EXPECT_EQ(kernels::cuda::attention_backend(gpu(), in), cat("cudnn ", kernels::cuda::cudnn::version()));
    const Results own = on_gpu(kOwn, size, in, dy), got = on_gpu(kDefault, size, in, dy);
    for (const auto part : {&Results::y, &Results::dq, &Results::dk, &Results::dv})
      EXPECT_TRUE(agree(got.*part, to_host(own.*part), 0.06, 2e-2));
    EXPECT_NE(values(to_host(got.dk)), values(to_host(own.dk))) << "not cuDNN's";
  }
}

// In this mode cuDNN's backward forms its sums in a fixed order.
TEST_F(Cudnn, DeterministicBackwardRepeatsItsBits) {
  for (const Size& size : {Size{8, 1024, 16, 4, 128}, Size{2, 777, 4, 1, 64}, Size{2, 1024, 4, 2, 64, 64, 100}}) {
    SCOPED_TRACE(::testing::Message() << size);
    const Tensor dy = to_gpu(host.normal(size.queries(), DType::bf16, "dy"));
    auto in = to_gpu(inputs(size, DType::bf16));
    in.hints.repeatable = true;
    const Results own = on_gpu(kOwn, size, in, dy), got = on_gpu(kDefault, size, in, dy);
    EXPECT_TRUE(kernels::cuda::cudnn::attention_forward(gpu(), own.y, own.lse, in));
    EXPECT_TRUE(kernels::cuda::cudnn::attention_backward(gpu(), {own.dq, own.dk, own.dv}, dy, own.y, own.lse, in));
    for (int again = 0; again < 5; ++again) {
      const Results other = on_gpu(kDefault, size, in, dy);
      for (const auto part : {&Results::y, &Results::lse, &Results::dq, &Results::dk, &Results::dv}) {
        EXPECT_TRUE(values(to_host(other.*part)) == values(to_host(got.*part))) << again;
        EXPECT_TRUE(values(to_host(own.*part)) == values(to_host(got.*part))) << "not cuDNN's";
      }
    }
  }
}

// Generation must have the bits of our own kernel (CudaCachedAttention), which no library reproduces.
TEST_F(Cudnn, BatchInvariantForwardIsOurOwn) {
  const Size size{2, 777, 4, 1, 64};
  const Tensor dy = to_gpu(host.normal(size.queries(), DType::bf16, "dy"));
  auto in = to_gpu(inputs(size, DType::bf16));
  const Results library = on_gpu(kDefault, size, in, dy);
  in.hints.batch_invariant = true;
  const Results own = on_gpu(kOwn, size, in, dy), got = on_gpu(kDefault, size, in, dy);
  EXPECT_EQ(values(to_host(got.y)), values(to_host(own.y)));
  EXPECT_EQ(values(to_host(got.lse)), values(to_host(own.lse)));
  EXPECT_NE(values(to_host(got.y)), values(to_host(library.y)));
  EXPECT_FALSE(kernels::cuda::cudnn::has_attention(gpu(), in));
}

TEST_F(Cudnn, IsCapturedAndReplayed) {
  const Size size{2, 256, 4, 2, 64};
  const Tensor dy = to_gpu(host.normal(size.queries(), DType::bf16, "dy"));
  const auto in = to_gpu(inputs(size, DType::bf16));
  const Results once = on_gpu(kDefault, size, in, dy);
  Results r{poisoned(size.queries(), DType::bf16), poisoned(size.lse(), DType::f32),
            poisoned(size.queries(), DType::bf16), poisoned(size.keys(), DType::bf16),
            poisoned(size.keys(), DType::bf16)};
  gpu().wait();
  const cudaStream_t stream = cuda::native(gpu());
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  kDefault.forward(gpu(), r.y, r.lse, in);
  kDefault.backward(gpu(), {r.dq, r.dk, r.dv}, dy, r.y, r.lse, in);
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  ASSERT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
  for (const auto part : {&Results::y, &Results::dq, &Results::dk, &Results::dv})
    EXPECT_TRUE(agree(r.*part, to_host(once.*part), 1e-2, 1e-2));
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
}

TEST_F(Cudnn, LeavesTheRestToOurKernels) {
  const Size size{1, 128, 2, 1, 64};
  const auto backend = [&](const kernels::AttentionInputs& in) {
    return kernels::cuda::attention_backend(gpu(), to_gpu(in));
  };
  kernels::AttentionInputs in = inputs(size, DType::bf16, documents(size, 500));
  EXPECT_EQ(backend(in), "witan") << "ids without the promise of one sequence per row";
  in.hints.one_sequence_per_row = true;
  EXPECT_NE(backend(in), "witan");
  in.dropout = dropout_of(host, 0.1);
  EXPECT_EQ(backend(in), "witan") << "dropout";
  EXPECT_EQ(backend(inputs(size, DType::f32)), "witan");
  EXPECT_EQ(backend(inputs({1, 128, 2, 1, 60}, DType::bf16)), "witan") << "a head size that is no multiple of 8";
  EXPECT_EQ(backend(inputs({1, 128, 2, 1, 64, 60}, DType::bf16)), "witan") << "likewise of values";
  EXPECT_EQ(backend(inputs({1, 128, 2, 1, 264}, DType::bf16)), "witan") << "a large head size";
}

}  // namespace
}  // namespace witan
