#include "witan/data/samples/mixture.h"

#include <thread>

#include "data/data_support.h"
#include "witan/base/error.h"
#include "witan/data/samples/packed_samples.h"

namespace witan {
namespace {

using ::testing::HasSubstr;
using Counts = std::vector<int64_t>;

std::vector<Mixture::Place> places(const Mixture& mixture, int64_t begin, int64_t end) {
  std::vector<Mixture::Place> found;
  for (int64_t i = begin; i < end; ++i) found.push_back(mixture.at(i));
  return found;
}

MixtureOptions three() {
  return {.per_epoch = {100, 1000, 50}, .phases = {{0, {1, 7, 2}}}};
}

TEST(Mixture, EachSourceHasItsShareOfEveryRun) {
  const Mixture mixture(three());
  Counts taken(3, 0);
  for (int64_t i = 0; i < 20'000; ++i) {
    const Mixture::Place place = mixture.at(i);
    ASSERT_EQ(place.sample, taken[place.source]) << "a source's samples are read in order, each once";
    ++taken[place.source];
    const double shares[] = {0.1, 0.7, 0.2};
    for (size_t s = 0; s < 3; ++s)
      ASSERT_NEAR(static_cast<double>(taken[s]), shares[s] * static_cast<double>(i + 1), 2) << i;
    if (i % 997 == 0) {
      EXPECT_EQ(mixture.taken(i + 1), taken);
    }
  }
  EXPECT_FALSE(mixture.size());
}

TEST(Mixture, IsIndependentOfTheStartingPosition) {
  const Mixture forward(three());
  const auto expected = places(forward, 0, 20'000);
  for (const int64_t at : {19'999, 4096, 4095, 12'345, 0}) {
    const Mixture other(three());
    EXPECT_EQ(other.at(at), expected[static_cast<size_t>(at)]);
  }
  std::vector<std::thread> threads;
  for (int64_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int64_t i = t * 5000; i < (t + 1) * 5000; ++i) ASSERT_EQ(forward.at(i), expected[static_cast<size_t>(i)]);
    });
  for (std::thread& thread : threads) thread.join();
  MixtureOptions reseeded = three();
  reseeded.seed = 5;
  EXPECT_NE(places(Mixture(reseeded), 0, 100), places(forward, 0, 100));
}

// Distant blocks are found by bisection.
TEST(Mixture, SupportsDistantPositions) {
  const Mixture mixture(three());
  constexpr int64_t kFar = 1'000'000'000'000;
  Counts taken = mixture.taken(kFar);
  EXPECT_NEAR(static_cast<double>(taken[1]), 0.7 * kFar, 2);
  EXPECT_EQ(taken[0] + taken[1] + taken[2], kFar);
  for (int64_t i = kFar; i < kFar + 9000; ++i) {
    const Mixture::Place place = mixture.at(i);
    ASSERT_EQ(place.sample, taken[place.source]++) << i;
  }
}

TEST(Mixture, AnExhaustedSourceLeavesItsShareToOthers) {
  MixtureOptions options = three();
  options.max_epochs = 1.5;  // 150, 1500, 75 samples
  const Mixture mixture(options);
  EXPECT_EQ(mixture.size(), 1725);
  Counts taken(3, 0);
  for (const Mixture::Place& place : places(mixture, 0, 1725)) ASSERT_EQ(place.sample, taken[place.source]++);
  EXPECT_EQ(taken, (Counts{150, 1500, 75}));
  EXPECT_EQ(mixture.taken(400)[2], 75) << "it would have given 80 by then";
  EXPECT_THAT(message_of<DataError>([&] { mixture.at(1725); }), HasSubstr("within data_max_epochs"));
}

TEST(Mixture, WeightsChangeWithTheSchedule) {
  MixtureOptions options = three();
  options.phases.push_back({1000, {0, 1, 1}});
  options.phases.push_back({6001, {1, 0, 0}});
  const Mixture mixture(options);
  const Counts before = mixture.taken(1000), middle = mixture.taken(6001), end = mixture.taken(7000);
  EXPECT_NEAR(static_cast<double>(before[0]), 100, 2);
  EXPECT_EQ(middle[0], before[0]);
  EXPECT_NEAR(static_cast<double>(middle[1] - before[1]), 2500.5, 2);
  EXPECT_EQ(end, (Counts{before[0] + 999, middle[1], middle[2]}));
  Counts taken(3, 0);
  for (const Mixture::Place& place : places(mixture, 0, 7000)) ASSERT_EQ(place.sample, taken[place.source]++);
  EXPECT_EQ(taken, end);
  options.max_epochs = 10;  // the third source ends within the second phase, and the last phase has 1000 of the first
  const Mixture capped(options);
  EXPECT_EQ(capped.size(), 6001 + 1000 - before[0]);
}

TEST(Mixture, PhasesAfterTheLastSampleAddNothing) {
  MixtureOptions options = three();
  options.max_epochs = 1;
  options.phases.push_back({2000, {1, 1, 1}});
  const Mixture mixture(options);
  EXPECT_EQ(mixture.size(), 1150);
  EXPECT_EQ(mixture.taken(1150), (Counts{100, 1000, 50}));
}

TEST(Mixture, RefusesInvalidWeights) {
  const auto refused = [](std::vector<MixturePhase> phases) {
    return message_of<ConfigError>([&] { Mixture({.per_epoch = {1, 1}, .phases = std::move(phases)}); });
  };
  EXPECT_THAT(refused({{0, {0, 0}}}), HasSubstr("are all 0"));
  EXPECT_THAT(refused({{0, {1, -1}}}), HasSubstr("is -1"));
  EXPECT_THAT(refused({{0, {1, 1}}, {5, {1, 0}}, {5, {0, 1}}}), HasSubstr("rising steps"));
}

MixedSamples::Source source_of(const std::string& name, const std::vector<int64_t>& lengths) {
  const PackedSamplesOptions options{.sequence_length = 8};
  return {name, std::make_shared<const PackedSamples>(MemoryDataset::counting(lengths), options)};
}

// Sources with the same name are shards of one corpus, whose epoch covers all of them.
TEST(MixedSamples, SourcesWithOneNameShareEpochs) {
  const auto shard = [](int64_t documents) { return std::vector<int64_t>(static_cast<size_t>(documents), 9); };
  const MixedSamples mixed({source_of("a", shard(10)), source_of("a", shard(30)), source_of("b", shard(20))},
                           {{0, {1, 3, 4}}}, 0, 3);
  const std::vector<SourceUse> uses = mixed.use_of(80);
  ASSERT_EQ(uses.size(), 2u);
  EXPECT_EQ(uses[0].samples + uses[1].samples, 80);
  EXPECT_DOUBLE_EQ(uses[0].epochs, static_cast<double>(uses[0].samples) / 40);
  EXPECT_DOUBLE_EQ(uses[1].epochs, static_cast<double>(uses[1].samples) / 20);
}

TEST(MixedSamples, UseEndsWithTheLastSample) {
  const MixedSamples mixed({source_of("a", {9, 9, 9}), source_of("b", {9})}, {{0, {1, 1}}}, 2, 3);
  ASSERT_EQ(mixed.size(), 8);
  const std::vector<SourceUse> uses = mixed.use_of(1000);
  EXPECT_EQ(uses[0].samples, 6);
  EXPECT_EQ(uses[1].samples, 2);
}

TEST(MixedSamples, SizesAreSums) {
  const MixedSamples mixed({source_of("a", {9, 1, 30, 0}), source_of("b", {17, 1})}, {{0, {1, 1}}}, 0, 3);
  const auto size = mixed.packed_size();
  EXPECT_EQ(size.documents, 3);
  EXPECT_EQ(size.left_out, 3);
  EXPECT_EQ(size.cut, 2);
  EXPECT_EQ(size.places, 8 + 29 + 16);
}

}  // namespace
}  // namespace witan
