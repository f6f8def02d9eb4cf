#include "witan/kernels/attention/qk_clip.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>

#include "support/attention.h"
#include "support/optimizer.h"
#include "witan/kernels/common/step_report.h"

namespace witan {
namespace {

using kernels::AttentionInputs;
using testing::AttentionSize;
using testing::close;
using testing::Rank;
using testing::values;

constexpr DType kTypes[] = {DType::f64, DType::f32, DType::bf16, DType::f16};
constexpr double kNone = -std::numeric_limits<double>::infinity();

// Computed by the definition: [H], in float64.
std::vector<double> expected_logits(const AttentionInputs& in) {
  const auto q = values(in.q), k = values(in.k);
  const int64_t B = in.q.size(0), S = in.q.size(1), H = in.q.size(2), hd = in.q.size(3), G = in.k.size(2);
  std::vector<double> largest(static_cast<size_t>(H), kNone);
  for (int64_t b = 0; b < B; ++b)
    for (int64_t h = 0; h < H; ++h)
      for (int64_t i = 0; i < S; ++i)
        for (int64_t j = in.window > 0 ? std::max<int64_t>(0, i - in.window + 1) : 0; j <= i; ++j) {
          if (in.sequence_ids.defined()) {
            const int32_t* ids = in.sequence_ids.data<int32_t>() + b * S;
            if (ids[i] < 0 || ids[i] != ids[j]) continue;
          }
          double s = 0;
          for (int64_t d = 0; d < hd; ++d)
            s += q[static_cast<size_t>(((b * S + i) * H + h) * hd + d)] *
                 k[static_cast<size_t>(((b * S + j) * G + h / (H / G)) * hd + d)];
          largest[static_cast<size_t>(h)] = std::max(largest[static_cast<size_t>(h)], in.scale * s);
        }
  return largest;
}

AttentionInputs inputs(Rank& rank, const AttentionSize& size, DType dtype) {
  AttentionInputs in{rank.normal(size.queries(), dtype, "q"),
                     rank.normal(size.keys(), dtype, "k"),
                     rank.normal(size.values(), dtype, "v"),
                     {}};
  in.scale = 0.3;
  in.window = size.window;
  return in;
}

Tensor none_yet(Rank& rank, int64_t heads, DType dtype) {
  const Tensor largest = rank.stream.empty({heads}, accumulator(dtype));
  dispatch_floating(largest.dtype(), [&]<class A>() { std::ranges::fill(largest.span<A>(), A(kNone)); });
  return largest;
}

TEST(MaxLogits, MatchAPlainLoop) {
  Rank rank;
  for (const AttentionSize& size : std::vector<AttentionSize>{{1, 1, 1, 1, 1},
                                                              {2, 5, 2, 1, 4},
                                                              {1, 70, 3, 3, 8},
                                                              {2, 133, 6, 2, 17},
                                                              {1, 200, 4, 2, 40, 8},
                                                              {2, 150, 4, 1, 16, 16, 9}})
    for (const DType dtype : kTypes) {
      const AttentionInputs in = inputs(rank, size, dtype);
      const Tensor largest = none_yet(rank, size.H, dtype);
      kernels::attention_max_logits(rank.stream, largest, in);
      EXPECT_TRUE(close(values(largest), expected_logits(in), 0, dtype == DType::f64 ? 1e-13 : 1e-5)) << size << dtype;
    }
}

// Two rows whose second half is padding, and one row of padding only.
TEST(MaxLogits, LeavePaddingOut) {
  Rank rank;
  for (const DType dtype : kTypes) {
    const AttentionSize size{3, 90, 4, 2, 8};
    AttentionInputs in = inputs(rank, size, dtype);
    std::vector<int32_t> ids;
    for (int i = 0; i < 3 * 90; ++i) ids.push_back(i % 90 < 70 - i / 90 * 35 ? i % 90 / 20 : -1);
    in.sequence_ids = rank.tensor<int32_t>({3, 90}, ids);
    dispatch_floating(dtype, [&]<class T>() {  // padding's scores would be the largest
      for (int64_t i = 0; i < 3 * 90; ++i)
        if (ids[static_cast<size_t>(i)] < 0)
          for (int64_t j = 0; j < 4 * 8; ++j) in.q.data<T>()[i * 32 + j] = T(100.0F);
    });
    const Tensor largest = none_yet(rank, size.H, dtype);
    kernels::attention_max_logits(rank.stream, largest, in);
    EXPECT_TRUE(close(values(largest), expected_logits(in), 0, dtype == DType::f64 ? 1e-13 : 1e-5)) << dtype;
    std::ranges::fill(in.sequence_ids.span<int32_t>(), -1);
    const Tensor none = none_yet(rank, size.H, dtype);
    kernels::attention_max_logits(rank.stream, none, in);
    EXPECT_EQ(values(none), std::vector<double>(4, kNone)) << dtype;
  }
}

TEST(MaxLogits, SeparateDocumentsAndAccumulateOverMicroBatches) {
  Rank rank;
  const AttentionSize size{2, 90, 4, 2, 8};
  AttentionInputs in = inputs(rank, size, DType::f64);
  std::vector<int32_t> ids;
  for (int i = 0; i < 180; ++i) ids.push_back(i / 37);
  in.sequence_ids = rank.tensor<int32_t>({2, 90}, ids);
  const Tensor largest = none_yet(rank, 4, DType::f64);
  kernels::attention_max_logits(rank.stream, largest, in);
  const std::vector<double> one = expected_logits(in);
  EXPECT_TRUE(close(values(largest), one, 0, 1e-13));
  AttentionInputs other = in;
  other.q = rank.normal(size.queries(), DType::f64, "other q");
  kernels::attention_max_logits(rank.stream, largest, other);
  std::vector<double> both = expected_logits(other);
  for (size_t h = 0; h < both.size(); ++h) both[h] = std::max(both[h], one[h]);
  EXPECT_TRUE(close(values(largest), both, 0, 1e-13));
}

// Processes blocks of keys in the order of ring attention.
TEST(MaxLogits, BlocksCombineToTheWhole) {
  Rank rank;
  const AttentionSize size{2, 96, 4, 2, 8};
  for (const int64_t window : {0, 20}) {
    const AttentionInputs in = inputs(rank, size.with_window(window), DType::f64);
    const Tensor largest = none_yet(rank, 4, DType::f64);
    for (int of = 0; of < 3; ++of)
      for (int from = 0; from < 3; ++from) {
        AttentionInputs part = in;
        part.q = testing::share_of(rank, in.q, 3, of);
        part.k = testing::share_of(rank, in.k, 3, from), part.v = testing::share_of(rank, in.v, 3, from);
        part.block = {testing::zigzag(96, 3, of), testing::zigzag(96, 3, from), {}, 96};
        kernels::attention_max_logits(rank.stream, largest, part);
      }
    EXPECT_TRUE(close(values(largest), expected_logits(in), 0, 1e-13)) << window;
  }
}

TEST(MaxLogits, AreTheSameOnAnyNumberOfThreads) {
  Rank one(1), three(3);
  const AttentionSize size{3, 150, 6, 2, 16};
  for (const DType dtype : kTypes) {
    const Tensor a = none_yet(one, 6, dtype), b = none_yet(three, 6, dtype);
    kernels::attention_max_logits(one.stream, a, inputs(one, size, dtype));
    kernels::attention_max_logits(three.stream, b, inputs(three, size, dtype));
    EXPECT_EQ(values(a), values(b));
  }
}

// The rows of 4 heads of 3 columns in 2 groups, one of which exceeds the threshold, divided into several pieces.
TEST(ClipProjection, ScalesTheGroupsBeyondTheThreshold) {
  Rank rank;
  const Tensor step = rank.tensor<double>({kernels::kStepValues}, {0, 1, 1, 0, 1, 1});
  for (const DType dtype : {DType::f64, DType::f32}) {
    const Tensor largest = none_yet(rank, 4, dtype);
    dispatch_floating(dtype, [&]<class A>() {
      for (const auto& [head, logit] : {std::pair{0, 90.0}, {1, 400.0}, {2, 100.0}, {3, 7.0}})
        largest.data<A>()[head] = A(logit);
    });
    const Tensor whole = rank.normal({24}, dtype, "p");
    std::vector<double> expected = values(whole);
    for (size_t i = 0; i < 12; ++i) expected[i] *= std::pow(0.25, 0.75);
    for (const int64_t cut : {0, 5, 12, 17}) {
      const Tensor p = rank.normal({24}, dtype, "p");
      for (const auto& [first, count] : {std::pair{int64_t{0}, cut}, {cut, 24 - cut}})
        kernels::clip_projection(rank.stream, {p.narrow(0, first, count), {}}, largest, 2, step,
                                 {100, 0.75, first, 12});
      EXPECT_TRUE(close(values(p), expected, 0, dtype == DType::f64 ? 1e-15 : 1e-6)) << cut;
    }
  }
}

// tests/golden/optim/make_qk_clip.py recorded how Megatron-LM clips the projections of latent attention. Pieces begin
// and end anywhere in a head.
TEST(ClipProjection, MatchesMegatronForLatentAttention) {
  Rank rank;
  const Tensor step = rank.tensor<double>({kernels::kStepValues}, {0, 1, 1, 0, 1, 1});
  std::ifstream golden(WITAN_SOURCE_DIR "/tests/golden/optim/qk_clip.tsv");
  int lines = 0;
  for (std::string line; std::getline(golden, line); ++lines) {
    SCOPED_TRACE(line.substr(0, 40));
    std::istringstream in(line);
    std::string what;
    int64_t heads = 0, still = 0, turning = 0, of_values = 0, columns = 0;
    double threshold = 0, alpha = 0;
    in >> what >> heads >> still >> turning >> of_values >> columns >> threshold >> alpha;
    std::vector<double> logits(static_cast<size_t>(heads)), expected;
    for (double& logit : logits) in >> logit;
    for (double weight = 0; in >> weight;) expected.push_back(weight);
    const bool queries = what == "queries";
    const int64_t per_group = (still + (queries ? turning : of_values)) * columns, elements = heads * per_group;
    ASSERT_EQ(std::ssize(expected), elements);
    std::vector<double> weights(expected.size());
    for (size_t i = 0; i < weights.size(); ++i) weights[i] = std::cos(0.7 * static_cast<double>(i) + 0.3);
    for (const int64_t cut : {int64_t{0}, elements / 3, elements / 2 + 1}) {
      const Tensor p = rank.tensor<double>({elements}, weights);
      for (const auto& [first, count] : {std::pair{int64_t{0}, cut}, {cut, elements - cut}})
        kernels::clip_projection(rank.stream, {p.narrow(0, first, count), {}}, rank.tensor<double>({heads}, logits),
                                 heads, step,
                                 {.threshold = threshold,
                                  .exponent = queries ? alpha : 1 - alpha,
                                  .first = first,
                                  .per_group = per_group,
                                  .leading = still * columns,
                                  .exponent_of_rest = queries ? 1.0 : 0.0});
      EXPECT_TRUE(close(values(p), expected, 1e-13, 0)) << cut;  // arguments of cos may be rounded once more
    }
  }
  EXPECT_EQ(lines, 6);
}

TEST(ClipProjection, ScalesMastersButSkipsASkippedStep) {
  Rank rank;
  const Tensor largest = rank.tensor<float>({1}, {400});
  const Tensor step = rank.tensor<double>({kernels::kStepValues}, {0, 1, 1, 0, 1, 1});
  const Tensor skipped = rank.tensor<double>({kernels::kStepValues}, {0, 1, 1, 1, 1, 1});
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const Tensor master = rank.normal({100}, DType::f32, "p");
    const Tensor value = rank.stream.empty({100}, dtype), rest = rank.stream.empty({100}, remainder_dtype(dtype));
    split_from_host(value, rest, 0, master.raw(), 100);
    kernels::clip_projection(rank.stream, {value, rest}, largest, 1, skipped, {100, 0.5, 0, 100});
    EXPECT_EQ(testing::joined(value, rest), values(master));
    kernels::clip_projection(rank.stream, {value, rest}, largest, 1, step, {100, 0.5, 0, 100});
    std::vector<double> half = values(master);
    for (double& p : half) p /= 2;
    EXPECT_EQ(testing::joined(value, rest), half) << "all bits of the masters";
    EXPECT_TRUE(close(values(value), half, 1e-7, dtype == DType::bf16 ? 4e-3 : 5e-4));
  }
}

}  // namespace
}  // namespace witan
