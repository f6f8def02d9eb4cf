// Named columns on their way from documents to batches: they are packed, mixed, shifted and cut like tokens.
#include "witan/data/datasets/column.h"

#include <map>

#include "data/data_support.h"
#include "witan/base/error.h"
#include "witan/data/batches/batch.h"
#include "witan/data/batches/loader.h"
#include "witan/data/datasets/split.h"
#include "witan/data/samples/mixture.h"
#include "witan/data/samples/packed_samples.h"
#include "witan/data/samples/samples.h"

namespace witan {
namespace {

using Floats = std::vector<float>;

const ColumnSpec kHalf{"half"}, kReward{"reward", ColumnSpec::Per::sample};

// The column holds half of each target's id and 0 for padding, so it can be computed from the targets.
void expect_half_of_targets(const Batch& batch, const std::string& what) {
  ASSERT_EQ(batch.columns.size(), 1u) << what;
  EXPECT_EQ(batch.columns.front().spec, kHalf) << what;
  Floats expected;
  for (size_t i = 0; i < batch.targets.size(); ++i)
    expected.push_back(batch.sequence_ids[i] == kPadding ? 0 : static_cast<float>(batch.targets[i]) / 2);
  EXPECT_EQ(batch.columns.front().values, expected) << what;
}

std::shared_ptr<const TokenDataset> documents() {
  return MemoryDataset::counting({5, 9, 2, 14, 1, 7, 30, 3, 8, 4});
}

// Samples with one value each, besides the values of tokens.
class Rewarded final : public SampleSource {
 public:
  explicit Rewarded(std::shared_ptr<const SampleSource> samples) : samples_(std::move(samples)) {}
  int64_t sequence_length() const override { return samples_->sequence_length(); }
  int64_t per_epoch() const override { return samples_->per_epoch(); }
  const TokenDataset& dataset() const override { return samples_->dataset(); }
  std::vector<SourceUse> use_of(int64_t samples) const override { return samples_->use_of(samples); }
  void read(int64_t index, std::span<int32_t> out) const override { samples_->read(index, out); }
  void prefetch(int64_t index) const override { samples_->prefetch(index); }
  std::vector<ColumnSpec> columns() const override { return {kReward, kHalf}; }
  void read_column(int64_t index, const ColumnSpec& column, std::span<float> out) const override {
    if (column == kHalf) return samples_->read_column(index, column, out);
    ASSERT_EQ(out.size(), 1u);
    out[0] = static_cast<float>(index);
  }

 private:
  std::shared_ptr<const SampleSource> samples_;
};

TEST(Columns, FollowTheTargetsOfEverySource) {
  const auto end_to_end = std::make_shared<const Samples>(documents(), SamplesOptions{.sequence_length = 6});
  const auto packed = std::make_shared<const PackedSamples>(documents(), PackedSamplesOptions{.sequence_length = 6});
  const auto training = split_documents(documents(), {.held_out_fraction = 0.3, .least_tokens = 8}).train;
  const auto part = std::make_shared<const PackedSamples>(training, PackedSamplesOptions{.sequence_length = 6});
  const MixedSamples mixed({{"a", packed}, {"b", part}}, {{0, {1, 1}}}, 0, 3);
  const std::map<std::string, const SampleSource*> sources = {
      {"end to end", &*end_to_end}, {"packed", &*packed}, {"of a split", &*part}, {"mixed", &mixed}};
  for (const auto& [name, samples] : sources)
    for (int64_t first = 0; first < 2 * samples->per_epoch(); first += 3)
      expect_half_of_targets(make_batch(*samples, first, 3, {.columns = {kHalf}}), name);
  EXPECT_TRUE(make_batch(*packed, 0, 3, {}).columns.empty()) << "columns are read only on request";
}

TEST(Columns, SampleColumnsHaveAValueForEachRow) {
  const Rewarded samples(std::make_shared<const Samples>(documents(), SamplesOptions{.sequence_length = 6}));
  const Batch batch = make_batch(samples, 4, 3, {.columns = {kReward, kHalf}});
  ASSERT_EQ(batch.columns.size(), 2u);
  EXPECT_EQ(batch.columns[0].values, (Floats{4, 5, 6}));
  EXPECT_EQ(batch.columns[1].values.size(), 18u);
  const Batch cut = take_places(batch, {{0, 1}, {4, 2}});
  EXPECT_EQ(cut.columns[0].values, batch.columns[0].values);
  EXPECT_EQ(cut.columns[1].values.size(), 9u);
  EXPECT_EQ(look_ahead(batch, 1).columns[0].values, batch.columns[0].values);
}

TEST(Columns, AreCutAndShiftedLikeTargets) {
  const PackedSamples samples(documents(), {.sequence_length = 6});
  const Batch batch = make_batch(samples, 0, 4, {.columns = {kHalf}});
  expect_half_of_targets(take_places(batch, {{0, 1}, {4, 2}}), "cut");
  for (const int64_t k : {1, 2}) {
    const Batch ahead = look_ahead(batch, k);
    for (size_t i = 0; i < ahead.targets.size(); ++i)
      EXPECT_EQ(ahead.columns[0].values[i], static_cast<float>(ahead.targets[i]) / 2) << "place " << i;
  }
}

TEST(Columns, WorkOnMetaTensors) {
  Batch sizes;
  sizes.sequences = 2;
  sizes.sequence_length = 4;
  sizes.columns = {{kHalf}, {kReward}};
  for (const Batch& other : {take_places(sizes, {{0, 2}}), look_ahead(sizes, 1)}) {
    ASSERT_EQ(other.columns.size(), 2u);
    EXPECT_EQ(other.columns[1].spec, kReward);
    EXPECT_TRUE(other.columns[0].values.empty());
  }
}

TEST(Columns, PassThroughTheLoader) {
  const auto samples = std::make_shared<const PackedSamples>(documents(), PackedSamplesOptions{.sequence_length = 6});
  Loader loader(samples, {.micro_batch_size = 2, .global_batch_size = 4, .batch = {.columns = {kHalf}}});
  for (int step = 0; step < 3; ++step)
    for (const Batch& batch : loader.next()) expect_half_of_targets(batch, cat("step ", step));
}

TEST(Columns, MustExistInTheSource) {
  const Samples samples(documents(), {.sequence_length = 6});
  EXPECT_EQ(
      message_of<DataError>([&] { make_batch(samples, 0, 1, {.columns = {{"advantages"}}}); }),
      "memory: has no column \"advantages\" with a value per token, which the run's objective reads: write it beside "
      "the tokens (docs/formats/indexed_dataset.md), or let the run sample its own answers and rewards (rollouts = "
      "true, with sft and packing = none)");
  EXPECT_EQ(
      message_of<DataError>([&] {
        make_batch(samples, 0, 1, {.columns = {{"half", ColumnSpec::Per::sample}}});
      }),
      "memory: has no column \"half\" with a value per sample, which the run's objective reads: write it beside "
      "the tokens (docs/formats/indexed_dataset.md), or let the run sample its own answers and rewards (rollouts = "
      "true, with sft and packing = none)");
}

}  // namespace
}  // namespace witan
