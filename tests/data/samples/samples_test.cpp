#include "witan/data/samples/samples.h"

#include <algorithm>
#include <set>
#include <thread>

#include "data/data_support.h"
#include "witan/base/error.h"

namespace witan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<int32_t> sample(const Samples& samples, int64_t index) {
  std::vector<int32_t> tokens(static_cast<size_t>(samples.sequence_length()) + 1);
  samples.read(index, tokens);
  return tokens;
}

// Conversations with only the first or only the last token marked as an answer.
class OneMark final : public TokenDataset {
 public:
  int64_t documents() const override { return 2; }
  int64_t tokens() const override { return 10; }
  int64_t length(int64_t) const override { return 5; }
  void read(int64_t, int64_t, std::span<int32_t> out) const override { std::ranges::fill(out, 7); }
  bool conversations() const override { return true; }
  void read_loss(int64_t document, int64_t begin, std::span<float> out) const override {
    for (size_t i = 0; i < out.size(); ++i) out[i] = begin + static_cast<int64_t>(i) == (document == 0 ? 0 : 4) ? 1 : 0;
  }
  std::string name() const override { return "one mark"; }
};

TEST(Samples, TheFirstTokenOfAConversationIsNotATarget) {
  const Samples samples(std::make_shared<const OneMark>(), {.sequence_length = 4});
  EXPECT_EQ(samples.packed_size().left_out, 1);
  EXPECT_EQ(samples.packed_size().documents, 1);
  ASSERT_EQ(samples.per_epoch(), 1);
  EXPECT_EQ(samples.pieces_of(0).front().document, 1);
}

TEST(Samples, WithoutShufflingTheyTileTheDocuments) {
  const Samples samples(MemoryDataset::counting({3, 0, 4, 1, 5}), {.sequence_length = 4, .shuffle = false});
  ASSERT_EQ(samples.per_epoch(), 3);
  EXPECT_EQ(sample(samples, 0), (std::vector<int32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(sample(samples, 1), (std::vector<int32_t>{4, 5, 6, 7, 8}));
  EXPECT_EQ(sample(samples, 2), (std::vector<int32_t>{8, 9, 10, 11, 12}));
  EXPECT_EQ(sample(samples, 3), sample(samples, 0));
}

// In every epoch, each target except the tail is predicted once, and documents stay whole and in one order.
TEST(Samples, EachEpochVisitsEverySampleOnce) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < 50; ++i) lengths.push_back(i * 37 % 23);
  const auto dataset = MemoryDataset::counting(lengths);
  const Samples samples(dataset, {.sequence_length = 7, .seed = 5});
  const int64_t n = samples.per_epoch();
  ASSERT_EQ(n, (dataset->tokens() - 1) / 7);
  std::set<std::vector<int32_t>> first_tokens;
  for (int64_t epoch = 0; epoch < 5; ++epoch) {
    std::multiset<int32_t> targets;
    std::vector<int32_t> starts;
    for (int64_t i = 0; i < n; ++i) {
      const auto tokens = sample(samples, epoch * n + i);
      targets.insert(tokens.begin() + 1, tokens.end());
      starts.push_back(tokens.front());
    }
    EXPECT_EQ(targets.size(), static_cast<size_t>(n * 7));
    EXPECT_EQ(std::set<int32_t>(targets.begin(), targets.end()).size(), targets.size());
    first_tokens.insert(starts);
  }
  EXPECT_EQ(first_tokens.size(), 5u);  // no two epochs are equal
}

// Each epoch shuffles documents, which moves the cuts, and samples.
TEST(Samples, EachEpochHasItsOwnOrder) {
  const auto epochs = [](const std::vector<int64_t>& lengths) {
    const Samples samples(MemoryDataset::counting(lengths), {.sequence_length = 7});
    std::vector<std::vector<std::vector<int32_t>>> found(2);
    for (int64_t i = 0; i < 2 * samples.per_epoch(); ++i)
      found[static_cast<size_t>(i / samples.per_epoch())].push_back(sample(samples, i));
    return found;
  };
  auto one = epochs({300});
  EXPECT_NE(one[0], one[1]);
  for (auto& epoch : one) std::ranges::sort(epoch);
  EXPECT_EQ(one[0], one[1]) << "a single document is always cut at the same places";
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < 40; ++i) lengths.push_back(3 + i * 7 % 11);
  auto many = epochs(lengths);
  for (auto& epoch : many) std::ranges::sort(epoch);
  EXPECT_NE(many[0], many[1]);
}

TEST(Samples, SkipBetweenDocumentsOnlyAtTheirEnds) {
  const std::vector<int64_t> lengths(40, 10);
  const Samples samples(MemoryDataset::counting(lengths), {.sequence_length = 6});
  for (int64_t i = 0; i < samples.per_epoch(); ++i) {
    const auto tokens = sample(samples, i);
    for (size_t s = 1; s < tokens.size(); ++s) {
      if (tokens[s - 1] % 10 == 9)
        EXPECT_EQ(tokens[s] % 10, 0);
      else
        EXPECT_EQ(tokens[s], tokens[s - 1] + 1);
    }
  }
}

TEST(Samples, DependOnlyOnTheIndex) {
  const auto dataset = MemoryDataset::counting({30, 40, 50});
  const Samples forward(dataset, {.sequence_length = 8}), jumping(dataset, {.sequence_length = 8});
  std::vector<std::vector<int32_t>> all;
  for (int64_t i = 0; i < 100; ++i) all.push_back(sample(forward, i));
  for (int64_t i = 0; i < 100; ++i) EXPECT_EQ(sample(jumping, i * 61 % 100), all[static_cast<size_t>(i * 61 % 100)]);
  const int64_t far = int64_t{1} << 50;
  EXPECT_EQ(sample(forward, far), sample(jumping, far));
  EXPECT_NE(sample(Samples(dataset, {.sequence_length = 8, .seed = 9}), 0), all[0]);
}

TEST(Samples, OneSampleIsEnough) {
  const Samples samples(MemoryDataset::counting({9}), {.sequence_length = 8});
  EXPECT_EQ(samples.per_epoch(), 1);
  EXPECT_EQ(sample(samples, 12345).front(), 0);
  EXPECT_THAT(message_of<DataError>([] { Samples(MemoryDataset::counting({8}), {.sequence_length = 8}); }),
              AllOf(HasSubstr("8 tokens"), HasSubstr("needs 9"), HasSubstr("seq_length")));
  EXPECT_THROW(Samples(MemoryDataset::counting({}), {.sequence_length = 1}), DataError);
  EXPECT_THROW(Samples(MemoryDataset::counting({8}), {.sequence_length = 0}), ConfigError);
}

TEST(Samples, SupportManyThreads) {
  const Samples samples(MemoryDataset::counting({100, 200, 300}), {.sequence_length = 10});
  const auto checksum = [&] {
    uint64_t sum = 0;
    for (int64_t i = 0; i < 2000; ++i) sum = sum * 31 + static_cast<uint64_t>(sample(samples, i * 7)[3]);
    return sum;
  };
  const uint64_t alone = checksum();
  std::vector<uint64_t> sums(4);
  std::vector<std::thread> threads;
  for (auto& sum : sums) threads.emplace_back([&] { sum = checksum(); });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(sums, std::vector<uint64_t>(4, alone));
}

}  // namespace
}  // namespace witan
