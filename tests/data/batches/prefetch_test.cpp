// Every source of samples prefetches exactly the pieces that are read later, and on the right rank.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <tuple>

#include "data/data_support.h"
#include "support/comes_true.h"
#include "witan/data/batches/batch.h"
#include "witan/data/batches/loader.h"
#include "witan/data/datasets/conversation_dataset.h"
#include "witan/data/datasets/indexed_dataset.h"
#include "witan/data/datasets/split.h"
#include "witan/data/datasets/token_dataset.h"
#include "witan/data/samples/mixture.h"
#include "witan/data/samples/samples.h"

namespace witan {
namespace {

using Piece = std::tuple<int64_t, int64_t, int64_t>;  // document, begin, tokens

struct Call {
  bool reads = false;  // a read, else a prefetch
  Piece piece;
  std::thread::id thread;
};

// A dataset that records each call.
class Watched final : public TokenDataset {
 public:
  explicit Watched(const std::vector<int64_t>& lengths, bool conversations = false)
      : documents_(MemoryDataset::counting(lengths)), conversations_(conversations) {}

  int64_t documents() const override { return documents_->documents(); }
  int64_t tokens() const override { return documents_->tokens(); }
  int64_t length(int64_t document) const override { return documents_->length(document); }
  void read(int64_t document, int64_t begin, std::span<int32_t> out) const override {
    keep({true, {document, begin, static_cast<int64_t>(out.size())}, std::this_thread::get_id()});
    documents_->read(document, begin, out);
  }
  void prefetch(int64_t document, int64_t begin, int64_t tokens) const override {
    keep({false, {document, begin, tokens}, std::this_thread::get_id()});
  }
  bool conversations() const override { return conversations_; }
  std::string name() const override { return "watched"; }

  std::vector<Call> calls() const {
    const std::lock_guard lock(mutex_);
    return calls_;
  }
  std::vector<Piece> pieces(bool read) const {
    std::vector<Piece> found;
    for (const Call& call : calls())
      if (call.reads == read) found.push_back(call.piece);
    return found;
  }

 private:
  void keep(const Call& call) const {
    const std::lock_guard lock(mutex_);
    calls_.push_back(call);
  }

  std::shared_ptr<const MemoryDataset> documents_;
  bool conversations_;
  mutable std::mutex mutex_;
  mutable std::vector<Call> calls_;
};

void prefetch_and_read(const SampleSource& samples, int64_t count) {
  std::vector<int32_t> tokens(static_cast<size_t>(samples.sequence_length()) + 1);
  for (int64_t i = 0; i < count; ++i) samples.prefetch(i);
  for (int64_t i = 0; i < count; ++i) samples.read(i, tokens);
}

TEST(Prefetch, CoversExactlyThePiecesOfASample) {
  const auto watched = std::make_shared<const Watched>(std::vector<int64_t>{50, 0, 7, 90, 1, 30});
  const Samples samples(watched, {.sequence_length = 16});
  prefetch_and_read(samples, 30);  // of three epochs
  EXPECT_GT(watched->pieces(true).size(), 30u);
  EXPECT_EQ(watched->pieces(false), watched->pieces(true));
}

TEST(Prefetch, PassesThroughSplitsAndMixtures) {
  const auto one = std::make_shared<const Watched>(std::vector<int64_t>{400}),
             other = std::make_shared<const Watched>(std::vector<int64_t>{50, 70, 80, 90});
  const auto source = [](const auto& watched) {
    const Split split = split_documents(watched, {.held_out_fraction = 0.2, .least_tokens = 9});
    return MixedSamples::Source{"one", std::make_shared<const Samples>(split.train, SamplesOptions{8})};
  };
  const MixedSamples mixed({source(one), source(other)}, {{0, {1, 2}}}, 0, 7);
  prefetch_and_read(mixed, 40);
  for (const auto& watched : {one, other}) {
    EXPECT_GT(watched->pieces(true).size(), 10u);
    EXPECT_EQ(watched->pieces(false), watched->pieces(true));
  }
  const JoinedDataset joined({one, other});
  joined.prefetch(3, 5, 6);
  EXPECT_EQ(other->pieces(false).back(), Piece(2, 5, 6));
}

// A rank other than the first reads its own part of each global batch.
TEST(Prefetch, EachRankPrefetchesWhatItReads) {
  const auto watched = std::make_shared<const Watched>(std::vector<int64_t>{4000});
  const auto samples = std::make_shared<const Samples>(watched, SamplesOptions{8});
  {
    Loader loader(samples,
                  {.micro_batch_size = 2,
                   .global_batch_size = 8,
                   .data_parallel_rank = 1,
                   .data_parallel_size = 2,
                   .prefetch = 1},
                  0);
    for (int i = 0; i < 3; ++i) loader.next();
  }
  const std::vector<Piece> asked = watched->pieces(false);
  EXPECT_GE(watched->pieces(true).size(), 12u);
  for (const Piece& piece : watched->pieces(true)) EXPECT_THAT(asked, ::testing::Contains(piece));
}

TEST(Prefetch, CoversConversationsUpToTheirUsedLength) {
  const auto watched = std::make_shared<const Watched>(std::vector<int64_t>{5, 40, 9}, true);
  const Samples samples(watched, {.sequence_length = 16});
  BatchOptions options;
  for (int64_t i = 0; i < samples.per_epoch(); ++i) {
    samples.prefetch(i);
    make_batch(samples, i, 1, options);
  }
  EXPECT_EQ(watched->pieces(false), watched->pieces(true));
  EXPECT_EQ(watched->pieces(true).size(), 3u);
}

// While the first sample of a global batch waits for the disk, the others are already requested.
TEST(Prefetch, CoversAGlobalBatchBeforeItsFirstRead) {
  const auto watched = std::make_shared<const Watched>(std::vector<int64_t>{4000});
  const auto samples = std::make_shared<const Samples>(watched, SamplesOptions{.sequence_length = 10});
  {
    Loader loader(samples, {.micro_batch_size = 2,
                            .global_batch_size = 24,
                            .data_parallel_rank = 1,
                            .data_parallel_size = 3,
                            .prefetch = 1});
    for (int i = 0; i < 3; ++i) loader.next();
  }
  const std::vector<Call> calls = watched->calls();
  ASSERT_GE(calls.size(), 3u * 16);
  for (size_t i = 0; i < 3 * 16; ++i) EXPECT_EQ(calls[i].reads, i % 16 >= 8) << i;  // 8 samples are on this rank
}

TEST(Prefetch, TheCallerOfALoaderNeverReads) {
  for (const int64_t threads : {1, 4, 32}) {
    const auto watched = std::make_shared<const Watched>(std::vector<int64_t>{4000});
    const auto samples = std::make_shared<const Samples>(watched, SamplesOptions{.sequence_length = 10});
    Loader loader(samples, {.micro_batch_size = 2, .global_batch_size = 24, .threads = threads});
    for (int i = 0; i < 20; ++i) loader.next();
    const std::vector<Call> calls = watched->calls();
    EXPECT_GE(calls.size(), 2u * 20 * 24);
    EXPECT_TRUE(
        std::ranges::none_of(calls, [](const Call& call) { return call.thread == std::this_thread::get_id(); }));
  }
}

// Computing the order of an epoch asks for document lengths, where this dataset can be paused.
class Slow final : public TokenDataset {
 public:
  int64_t documents() const override { return 100; }
  int64_t tokens() const override { return 1601; }
  int64_t length(int64_t document) const override {
    std::unique_lock lock(mutex_);
    ++asked_;
    changed_.notify_all();
    changed_.wait_for(lock, std::chrono::seconds(20), [&] { return !holds_; });
    return document == 0 ? 17 : 16;
  }
  void read(int64_t, int64_t, std::span<int32_t> out) const override { std::ranges::fill(out, 1); }
  std::string name() const override { return "slow"; }

  void hold(bool holds) {
    const std::lock_guard lock(mutex_);
    holds_ = holds;
    changed_.notify_all();
  }
  int64_t asked() const {
    const std::lock_guard lock(mutex_);
    return asked_;
  }
  void wait_until_asked(int64_t times) const {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(20), [&] { return asked_ >= times; });
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable int64_t asked_ = 0;
  bool holds_ = false;
};

TEST(Prefetch, ComputesTheNextEpochsOrderEarly) {
  const auto slow = std::make_shared<Slow>();
  const Samples samples(slow, {.sequence_length = 16});
  ASSERT_EQ(samples.per_epoch(), 100);
  samples.prefetch(93);
  EXPECT_EQ(slow->asked(), 100);  // each document of an epoch
  samples.prefetch(94);           // within the last sixteenth
  EXPECT_EQ(slow->asked(), 200);
  std::vector<int32_t> tokens(17);
  samples.read(100, tokens);
  EXPECT_EQ(slow->asked(), 200);
}

TEST(Prefetch, ReadsContinueWhileTheNextEpochsOrderIsComputed) {
  const auto slow = std::make_shared<Slow>();
  const Samples samples(slow, {.sequence_length = 16});
  std::vector<int32_t> tokens(17);
  samples.read(0, tokens);
  const int64_t asked = slow->asked();
  slow->hold(true);
  std::thread ahead([&] { samples.prefetch(99); });
  slow->wait_until_asked(asked + 1);
  samples.read(1, tokens);
  EXPECT_EQ(slow->asked(), asked + 1);  // `ahead` still waits and did not block this read
  slow->hold(false);
  ahead.join();
}

// Whether the first byte of the mapping is resident.
bool is_resident(std::span<const std::byte> mapped, size_t at) {
  static const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  unsigned char here = 0;
  ::mincore(const_cast<std::byte*>(mapped.data() + at / page * page), 1, &here);
  return (here & 1) != 0;
}

TEST(Prefetch, LoadsPagesOfFilesIntoMemory) {
  constexpr size_t kBytes = 8 << 20, kAt = 5 << 20;
  const TempFolder folder;
  const fs::path path = put(folder / "tokens.bin", std::string(kBytes, 'x'));
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(::fsync(fd), 0);
  ASSERT_EQ(::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
  ::close(fd);
  const MappedFile file(path);
  expect_random_reads(file.bytes());
  if (is_resident(file.bytes(), kAt)) GTEST_SKIP() << "this file system is in memory";
  read_ahead(file.bytes().subspan(kAt, 100'000));
  EXPECT_TRUE(
      test::comes_true([&] { return is_resident(file.bytes(), kAt) && is_resident(file.bytes(), kAt + 99'999); }));
  EXPECT_FALSE(is_resident(file.bytes(), 0));  // pages that were not requested stay on disk
}

}  // namespace
}  // namespace witan
