// A mixer that is not attention works like any: gradients, documents that do not see each other, decoding step by step,
// and a state that is copied, truncated and counted.
#include "support/running_mean.h"

#include "nn/mixer/recurrent_support.h"
#include "support/gradcheck.h"
#include "support/module.h"

namespace witan {
namespace {

using testing::attention_builder;
using testing::positions_of;
using testing::Rank;
using testing::RunningMeanKind;
using testing::values;

constexpr int64_t kWidth = 12, kChannels = 10;

std::unique_ptr<TokenMixer> make_mean(Rank& rank, DType dtype = DType::f64) {
  return RunningMeanKind(kChannels).make(attention_builder(rank, dtype), {.width = kWidth}, {});
}

// Documents of 3, 1 and 3 tokens in each row of 7.
Positions packed(Rank& rank, int64_t B) {
  Positions where = positions_of(rank, B, 7);
  std::vector<int32_t> ids;
  for (int64_t b = 0; b < B; ++b) ids.insert(ids.end(), {0, 0, 0, 1, 2, 2, 2});
  where.sequence_ids = rank.tensor<int32_t>({B, 7}, ids);
  return where;
}

TEST(RunningMean, GradientsMatchDifferences) {
  Rank rank;
  testing::gradcheck(rank, "running_mean",
                     [&](Tape& tape, const std::vector<Var>& in) {
                       return std::vector{testing::running_mean(tape, in[0], packed(rank, 2).sequence_ids)};
                     },
                     {rank.normal({2, 7, 5}, DType::f64, "v")});
  const auto mixer = make_mean(rank);
  testing::bind_gradients(rank.stream, *mixer);
  testing::gradcheck(
      rank, "gated running mean",
      [&](Tape& tape, const std::vector<Var>& in) { return std::vector{mixer->forward(tape, in[0], packed(rank, 2))}; },
      {rank.normal({2, 7, kWidth}, DType::f64, "x")});
}

TEST(RunningMean, IsTheMeanOfADocumentsEarlierTokens) {
  Rank rank;
  Tape off(rank.stream, Tape::Mode::off);
  const Var v = off.constant(rank.tensor<double>({1, 7, 1}, {3, 5, 1, 8, 2, 4, 9}));
  EXPECT_EQ(values(testing::running_mean(off, v, packed(rank, 1).sequence_ids).value()),
            (std::vector<double>{3, 4, 3, 8, 2, 3, 5}));
}

// The first token of a document gets the bits of a row's first token: no state crosses document boundaries.
TEST(RunningMean, PackingChangesNoBitOfADocument) {
  Rank rank;
  const auto mixer = make_mean(rank);
  const Tensor x = rank.normal({1, 7, kWidth}, DType::f64, "x");
  Tape off(rank.stream, Tape::Mode::off);
  const auto together = values(mixer->forward(off, off.constant(x), packed(rank, 1)).value());
  for (const auto& [begin, count] : {std::pair<int64_t, int64_t>{0, 3}, {3, 1}, {4, 3}}) {
    const Tensor document = rank.stream.empty({1, count, kWidth}, DType::f64);
    std::copy_n(x.data<double>() + begin * kWidth, count * kWidth, document.data<double>());
    const auto alone = values(mixer->forward(off, off.constant(document), positions_of(rank, 1, count)).value());
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), together.begin() + begin * kWidth)) << "from token " << begin;
  }
}

TEST(RunningMean, DecodingEqualsTheFullForward) {
  Rank rank;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    const auto mixer = make_mean(rank, dtype);
    testing::expect_decoding_equals_forward(rank, *mixer, rank.normal({2, 12, kWidth}, dtype, "x"),
                                            dtype == DType::f64   ? 1e-13
                                            : dtype == DType::f32 ? 1e-5
                                                                  : 2e-2);
  }
}

TEST(RunningMean, RowsCanBeCopiedAndRestarted) {
  Rank rank;
  testing::expect_rows_are_copied_and_restarted(rank, *make_mean(rank), kWidth,
                                                RunningMeanKind(kChannels).state_bytes({3, 9}, DType::f64).of_row());
}

TEST(SequenceStates, ResumeWhereAllLayersCan) {
  Rank rank;
  SequenceStates states;
  EXPECT_EQ(resumable(states, 5, 8, 8), 5);
  states.push_back(nullptr);  // a layer without a mixer
  states.push_back(std::make_unique<KvCache>(rank.stream, StateSize{1, 40}, CachedChannels{1, 2, 2, 3}, DType::f64));
  EXPECT_EQ(resumable(states, 8, 8, 8), 8);
  EXPECT_EQ(resumable(states, 4, 8, 8), 4) << "a window of 3 before position 4 is among the last 6 positions";
  EXPECT_EQ(resumable(states, 3, 8, 8), 0);
  EXPECT_EQ(resumable(states, 8, 8, 20), 0) << "a longer text has written over them";
  states.push_back(std::make_unique<testing::MeanState>(rank.stream, 1, 4, DType::f64));
  EXPECT_EQ(resumable(states, 8, 8, 8), 8);
  EXPECT_EQ(resumable(states, 4, 8, 8), 0);
}

TEST(KvCache, CopiedRowsHaveTheSameKeysAndValues) {
  Rank rank;
  KvCache cache(rank.stream, {2, 3}, {1, 2, 1, 0}, DType::f32);
  const auto fill = [](const Tensor& x) {
    for (int64_t i = 0; i < x.elements(); ++i) x.data<float>()[i] = static_cast<float>(i);
  };
  fill(cache.keys), fill(cache.values);
  cache.copy_row(rank.stream, 1, 0);
  EXPECT_EQ(values(cache.keys), (std::vector<double>{6, 7, 8, 9, 10, 11, 6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(values(cache.values), (std::vector<double>{3, 4, 5, 3, 4, 5}));
}

}  // namespace
}  // namespace witan
