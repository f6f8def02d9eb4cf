#include "witan/data/samples/mixed_samples.h"

#include "data/data_support.h"
#include "witan/data/samples/packed_samples.h"

namespace witan {
namespace {

MixedSamples::Source source_of(const std::string& name, const std::vector<int64_t>& lengths) {
  const PackedSamplesOptions options{.sequence_length = 8};
  return {name, std::make_shared<const PackedSamples>(MemoryDataset::counting(lengths), options)};
}

// Sources of one name are shards of one corpus: an epoch of it is one of all of them.
TEST(MixedSamples, EpochsAreThoseOfANamesSources) {
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
