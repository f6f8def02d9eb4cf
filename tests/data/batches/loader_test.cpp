#include "witan/data/batches/loader.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "data/data_support.h"
#include "witan/base/error.h"
#include "witan/data/samples/samples.h"

namespace witan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::shared_ptr<const Samples> some_samples() {
  return std::make_shared<const Samples>(MemoryDataset::counting({50, 70, 30, 90}),
                                         SamplesOptions{.sequence_length = 8});
}

// Token rows of the next `count` global batches, in the order of the samples.
std::vector<std::vector<int32_t>> rows(std::vector<std::unique_ptr<Loader>>& ranks, int count) {
  std::vector<std::vector<int32_t>> all;
  for (int step = 0; step < count; ++step) {
    std::vector<std::vector<Batch>> batches;
    for (auto& rank : ranks) batches.push_back(rank->next());
    for (const auto& of_rank : batches)
      for (const Batch& batch : of_rank)
        for (int64_t b = 0; b < batch.sequences; ++b)
          all.emplace_back(batch.tokens.begin() + b * 8, batch.tokens.begin() + (b + 1) * 8);
  }
  return all;
}

std::vector<std::unique_ptr<Loader>> make_ranks(const std::shared_ptr<const Samples>& samples, int64_t size,
                                                int64_t micro, int64_t cursor = 0) {
  std::vector<std::unique_ptr<Loader>> ranks;
  for (int64_t r = 0; r < size; ++r)
    ranks.push_back(std::make_unique<Loader>(
        samples,
        LoaderOptions{
            .micro_batch_size = micro, .global_batch_size = 12, .data_parallel_rank = r, .data_parallel_size = size},
        cursor));
  return ranks;
}

TEST(Loader, KeepsTheOrderOfSamplesInEveryLayout) {
  const auto samples = some_samples();
  std::vector<std::vector<int32_t>> expected;
  for (int64_t i = 0; i < 60; ++i) {  // crosses epochs, which have 29 samples
    std::vector<int32_t> tokens(9);
    samples->read(i, tokens);
    expected.emplace_back(tokens.begin(), tokens.end() - 1);
  }
  for (const auto& [size, micro] : {std::pair<int64_t, int64_t>{1, 1}, {1, 12}, {2, 3}, {3, 2}, {4, 3}, {12, 1}}) {
    auto ranks = make_ranks(samples, size, micro);
    EXPECT_EQ(ranks[0]->accumulations(), 12 / (size * micro));
    EXPECT_EQ(rows(ranks, 5), expected) << size << " ranks, micro-batches of " << micro;
  }
}

TEST(Loader, ResumesExactlyFromAnyCursor) {
  const auto samples = some_samples();
  auto whole = make_ranks(samples, 2, 3);
  const auto all = rows(whole, 20);
  for (const int stop : {0, 1, 2, 7, 13, 19}) {
    auto before = make_ranks(samples, 2, 3);
    rows(before, stop);
    EXPECT_EQ(before[1]->consumed_samples(), stop * 12);  // batches prepared ahead do not count
    auto after = make_ranks(samples, 2, 3, before[1]->consumed_samples());
    const std::vector<std::vector<int32_t>> expected(all.begin() + stop * 12, all.end());
    EXPECT_EQ(rows(after, 20 - stop), expected);
  }
}

// Samples keep their order in global batches of 4, 4, 8 and then 12.
TEST(Loader, GlobalBatchesMayGrow) {
  const auto samples = some_samples();
  const BatchRamp ramp = BatchRamp::parse("4,4,16", 12);
  auto constant = make_ranks(samples, 1, 1);
  const auto all = rows(constant, 5);
  const auto make = [&](int64_t size, int64_t cursor) {
    std::vector<std::unique_ptr<Loader>> ranks;
    for (int64_t r = 0; r < size; ++r)
      ranks.push_back(std::make_unique<Loader>(
          samples,
          LoaderOptions{
              .micro_batch_size = 2, .ramp = ramp, .data_parallel_rank = r, .data_parallel_size = size, .threads = 3},
          cursor));
    return ranks;
  };
  for (const int64_t size : {1, 2}) {
    auto ranks = make(size, 0);
    std::vector<int64_t> accumulations;
    std::vector<std::vector<int32_t>> found;
    for (int step = 0; step < 6; ++step) {
      accumulations.push_back(ranks[0]->accumulations() * size);
      for (auto& row : rows(ranks, 1)) found.push_back(std::move(row));
    }
    EXPECT_EQ(accumulations, (std::vector<int64_t>{2, 2, 4, 6, 6, 6}));
    ASSERT_EQ(found.size(), 52u);
    EXPECT_TRUE(std::equal(found.begin(), found.end(), all.begin()));
    auto resumed = make(size, 8);  // after two steps
    EXPECT_EQ(rows(resumed, 4), std::vector(all.begin() + 8, all.begin() + 52));
    EXPECT_EQ(resumed[0]->consumed_samples(), 52);
  }
  EXPECT_THAT(message_of<ConfigError>([&] { Loader(samples, {.micro_batch_size = 3, .ramp = ramp}); }),
              HasSubstr("global_batch_size 4 must be a multiple of micro_batch_size 3"));
}

// A dataset whose reads take `milliseconds` each, like a slow disk, and one of which fails.
class Troubled final : public TokenDataset {
 public:
  Troubled(int milliseconds, int fails_at) : milliseconds_(milliseconds), fails_at_(fails_at) {}
  int64_t documents() const override { return 1; }
  int64_t tokens() const override { return 1001; }
  int64_t length(int64_t) const override { return 1001; }
  void read(int64_t, int64_t, std::span<int32_t> out) const override {
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds_));
    const int reads = ++reads_;
    reads_.notify_all();
    if (reads == fails_at_) throw CorruptionError("shard 7 is damaged");
    std::fill(out.begin(), out.end(), 1);
  }
  std::string name() const override { return "troubled"; }
  int reads() const { return reads_; }
  // Waits until this many reads have ended.
  void await_reads(int count) const {
    for (int ended = reads_; ended < count; ended = reads_) reads_.wait(ended);
  }

 private:
  int milliseconds_, fails_at_;
  mutable std::atomic<int> reads_{0};
};

std::shared_ptr<const Samples> samples_of(std::shared_ptr<const Troubled> dataset) {
  return std::make_shared<const Samples>(std::move(dataset), SamplesOptions{.sequence_length = 10});
}

TEST(Loader, RethrowsTheThreadsErrorAfterFinishedBatches) {
  Loader loader(samples_of(std::make_shared<const Troubled>(0, 3)), {});
  EXPECT_EQ(loader.next().size(), 1u);
  EXPECT_EQ(loader.next().size(), 1u);
  EXPECT_THAT(message_of<CorruptionError>([&] { loader.next(); }), HasSubstr("shard 7"));
  EXPECT_THROW(loader.next(), CorruptionError);
  EXPECT_EQ(loader.consumed_samples(), 2);
}

TEST(Loader, StopsPromptly) {
  const auto slow = std::make_shared<const Troubled>(20, 0);
  {
    Loader loader(samples_of(slow), {.global_batch_size = 1000});  // one global batch takes 20 s
    slow->await_reads(1);
  }
  EXPECT_LT(slow->reads(), 1000);
}

TEST(Loader, GivesTheSameBatchesWithManyThreads) {
  const auto samples = some_samples();
  const auto tokens_of = [&](int64_t threads) {
    Loader loader(samples, {.micro_batch_size = 2, .global_batch_size = 12, .threads = threads}, 24);
    std::vector<std::vector<int32_t>> tokens;
    for (int i = 0; i < 20; ++i)
      for (const Batch& batch : loader.next()) tokens.push_back(batch.tokens);
    return tokens;
  };
  const auto alone = tokens_of(1);
  EXPECT_EQ(alone.size(), 120u);
  for (const int64_t threads : {2, 5, 16, 32}) EXPECT_EQ(tokens_of(threads), alone) << threads;
}

// A dataset whose reads wait for each other.
class Meeting final : public TokenDataset {
 public:
  int64_t documents() const override { return 1; }
  int64_t tokens() const override { return 1001; }
  int64_t length(int64_t) const override { return 1001; }
  void read(int64_t, int64_t, std::span<int32_t> out) const override {
    std::ranges::fill(out, 1);
    std::unique_lock lock(mutex_);
    met_ |= ++inside_ > 1;
    changed_.notify_all();
    changed_.wait_for(lock, std::chrono::seconds(20), [&] { return met_; });
    --inside_;
  }
  std::string name() const override { return "meeting"; }
  bool met() const {
    const std::scoped_lock lock(mutex_);
    return met_;
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable int inside_ = 0;
  mutable bool met_ = false;
};

TEST(Loader, ReadsConcurrently) {
  const auto meeting = std::make_shared<const Meeting>();
  const auto samples = std::make_shared<const Samples>(meeting, SamplesOptions{.sequence_length = 10});
  Loader loader(samples, {.global_batch_size = 4, .threads = 2});
  EXPECT_EQ(loader.next().size(), 4u);
  EXPECT_TRUE(meeting->met());
}

// A busy machine lengthens single waits, so the longest and the shortest of many tell whether the loader measures them.
TEST(Loader, MeasuresItsWaits) {
  constexpr int kTries = 20;
  double longest = 0, shortest = 60;
  for (int i = 0; i < kTries; ++i) {
    const auto dataset = std::make_shared<const Troubled>(30, 0);
    Loader loader(std::make_shared<const Samples>(dataset, SamplesOptions{.sequence_length = 10}), {.prefetch = 2});
    loader.next();
    const double before = loader.waited_seconds();
    longest = std::max(longest, before);
    dataset->await_reads(3);  // once the third batch is read, the second is ready
    loader.next();
    shortest = std::min(shortest, loader.waited_seconds() - before);
    if (longest > 0.01 && shortest < 0.01) break;
  }
  EXPECT_GT(longest, 0.01);
  EXPECT_LT(shortest, 0.01);
}

TEST(Loader, RefusesIndivisibleSizes) {
  const auto samples = some_samples();
  EXPECT_THAT(message_of<ConfigError>(
                  [&] { Loader(samples, {.micro_batch_size = 2, .global_batch_size = 6, .data_parallel_size = 2}); }),
              AllOf(HasSubstr("global_batch_size 6"), HasSubstr("micro_batch_size 2"), HasSubstr("2")));
  EXPECT_THROW(Loader(samples, {.micro_batch_size = 0}), ConfigError);
  EXPECT_THROW(Loader(samples, {.data_parallel_rank = 1}), ConfigError);
  EXPECT_THROW(Loader(samples, {}, -1), ConfigError);
  EXPECT_THROW(Loader(samples, {.batch = {.eod_mask_loss = true}}), ConfigError);
}

}  // namespace
}  // namespace witan
