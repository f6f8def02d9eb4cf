#include "witan/kernels/vocabulary/sampling.h"

#include <cmath>
#include <limits>
#include <vector>

#include "support/cuda_rank.h"
#include "witan/base/numbers/rng.h"

namespace witan {
namespace {

using kernels::SamplingFilters;
using kernels::SamplingRow;
using testing::CudaTest;

class SampleTokensOnGpu : public CudaTest {
 protected:
  std::vector<int32_t> sampled(Stream& stream, const Tensor& logits, const std::vector<SamplingRow>& rows) {
    const auto n = static_cast<int64_t>(rows.size());
    const Tensor on_device = stream.empty({n, kernels::kSamplingRowWords}, DType::i32),
                 ids = stream.empty({n}, DType::i32);
    std::vector<int32_t> out(rows.size(), -7);
    stream.write(ids, out.data());
    stream.write(on_device, rows.data());
    kernels::Choice most = kernels::Choice::likeliest;
    for (const SamplingRow& row : rows) most = std::max(most, row.choice);
    kernels::sample_tokens(stream, ids, logits, on_device, most);
    stream.read(out.data(), ids);
    return out;
  }

  void expect_the_cpus(const Tensor& logits, const std::vector<SamplingRow>& rows) {
    const auto expected = sampled(host.stream, logits, rows), found = sampled(gpu(), to_gpu(logits), rows);
    for (size_t t = 0; t < rows.size(); ++t)
      EXPECT_EQ(found[t], expected[t]) << "row " << t << ": top_k " << rows[t].top_k << ", top_p " << rows[t].top_p
                                       << ", octaves " << rows[t].octaves << ", " << rows[t].words << " words";
  }
};

// Filters of all kinds, each with another draw.
std::vector<SamplingRow> mixed_rows(int64_t count, int64_t words, uint64_t seed) {
  const Philox rng(seed, 1);
  uint64_t next = 0;
  const auto one_of = [&](const auto&... values) {
    const std::array all = {static_cast<double>(values)...};
    return all[rng.below(all.size(), 2 * next++)];
  };
  std::vector<SamplingRow> rows;
  for (int64_t t = 0; t < count; ++t) {
    const SamplingFilters filters{.temperature = one_of(0, 1, 1, 0.3, 1.7, 1e-300, 1e300),
                                  .top_k = static_cast<int64_t>(one_of(0, 0, 1, 5, 50, 3000, 1e9)),
                                  .top_p = one_of(1, 1, 0.9, 0.5, 0.9999, 1e-9),
                                  .min_p = one_of(0, 0, 0.05, 1, 1e-12)};
    const uint32_t draw = t % 11 == 0 ? ~0u : t % 13 == 0 ? 0 : rng.bits(1000000 + static_cast<uint64_t>(t));
    rows.push_back(kernels::sampling_row(filters, t % 3 == 0 ? 1 + (words - 1) / (t + 1) : words, draw));
  }
  return rows;
}

// Rows of one piece and of many, in packs and not, with few candidates and with more than a block keeps on chip.
TEST_F(SampleTokensOnGpu, MatchTheCpu) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64})
    for (const int64_t V : {1, 7, 64, 4096, 4097, 50257, 151936})
      for (const double deviation : {0.02, 1.0, 4.0}) {
        SCOPED_TRACE(cat(dtype, ", ", V, " words, deviation ", deviation));
        const int64_t n = V > 100000 ? 48 : 96;
        expect_the_cpus(host.normal({n, V}, dtype, "logits", deviation), mixed_rows(n, V, static_cast<uint64_t>(V)));
      }
}

// A batch in which each kind of choice is the only one.
TEST_F(SampleTokensOnGpu, MatchTheCpuIfAllRowsAreAlike) {
  const int64_t n = 512, V = 32000;
  const Tensor logits = host.normal({n, V}, DType::bf16, "logits", 3.0);
  const Philox rng(5, 1);
  for (const SamplingFilters& filters :
       {SamplingFilters{.temperature = 0}, {}, {.min_p = 0.1}, {.top_k = 50}, {.top_p = 0.95}}) {
    std::vector<SamplingRow> rows;
    for (uint64_t t = 0; t < static_cast<uint64_t>(n); ++t)
      rows.push_back(kernels::sampling_row(filters, V, rng.bits(t)));
    expect_the_cpus(logits, rows);
  }
}

// Equal logits, of both zeros too; tokens that are ruled out; rows without a choice.
TEST_F(SampleTokensOnGpu, MatchTheCpuOnSpecialLogits) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr int64_t n = 96, V = 20000;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Tensor logits = host.normal({n, V}, dtype, "logits", 2.0);
    dispatch_floating(dtype, [&]<class T>() {
      for (int64_t t = 0; t < n; ++t) {
        T* const row = logits.data<T>() + t * V;
        for (int64_t v = 0; v < V; ++v) {
          if (t % 6 == 0) row[v] = T(1.5F);
          if (t % 6 == 1) row[v] = T(v % 2 == 0 ? 0.0F : -0.0F);
          if (t % 6 == 2) row[v] = T(std::round(static_cast<float>(row[v])));
          if (t % 6 == 3 && v % 5 != 0) row[v] = T(-kInf);
        }
        if (t % 12 == 4) row[V / 3] = T(std::nanf(""));
        if (t % 12 == 10) row[V - 1] = T(kInf);
        if (t % 12 == 5) std::fill_n(row, V, T(-kInf));
      }
    });
    expect_the_cpus(logits, mixed_rows(n, V, 11));
  }
}

// A row has the same token wherever it is, beside any others.
TEST_F(SampleTokensOnGpu, DoNotDependOnOtherRows) {
  constexpr int64_t n = 64, V = 50304;
  const Tensor logits = to_gpu(host.normal({n, V}, DType::bf16, "logits", 3.0));
  const auto rows = mixed_rows(n, V, 3);
  const auto together = sampled(gpu(), logits, rows);
  for (int64_t t = 0; t < n; ++t)
    EXPECT_EQ(sampled(gpu(), logits.narrow(0, t, 1), {rows[static_cast<size_t>(t)]})[0], together[size_t(t)]) << t;
}

}  // namespace
}  // namespace witan
