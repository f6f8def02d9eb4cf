#include "witan/data/samples/packed_samples.h"

#include <algorithm>
#include <map>
#include <set>
#include <thread>

#include "data/data_support.h"
#include "witan/base/error.h"
#include "witan/base/numbers/rng.h"
#include "witan/data/batches/batch.h"
#include "witan/data/batches/loader.h"
#include "witan/data/samples/mixture.h"

namespace witan {
namespace {

using ::testing::HasSubstr;

// Mostly short documents, some many times as long as a sample, some empty, some with one token.
std::vector<int64_t> mixed_lengths(int64_t documents, uint64_t salt) {
  std::vector<int64_t> lengths;
  const Philox rng(salt, 1);
  for (uint64_t i = 0; i < static_cast<uint64_t>(documents); ++i) {
    const auto longest = rng.below(9, 2 * i) == 0 ? 200u : 30u;
    lengths.push_back(static_cast<int64_t>(rng.below(longest, 2 * i + 1)));
  }
  return lengths;
}

using Pieces = std::vector<std::vector<SampleSource::Piece>>;

Pieces epoch_of(const SampleSource& samples, int64_t epoch) {
  Pieces all;
  for (int64_t i = 0; i < samples.per_epoch(); ++i) all.push_back(samples.pieces_of(epoch * samples.per_epoch() + i));
  return all;
}

// The number of samples that first-fit uses for pieces in document order, found by trying each.
int64_t first_fit(const std::vector<int64_t>& lengths, int64_t capacity) {
  std::vector<int64_t> rooms;
  for (const int64_t length : lengths)
    for (int64_t left = length - 1; left > 0; left -= capacity) {
      const int64_t size = std::min(left, capacity);
      const auto found = std::ranges::find_if(rooms, [&](int64_t room) { return room >= size; });
      (found == rooms.end() ? rooms.emplace_back(capacity) : *found) -= size;
    }
  return static_cast<int64_t>(rooms.size());
}

TEST(PackedSamples, AnEpochHasEveryPairOfEveryDocumentOnce) {
  constexpr int64_t kLength = 16;
  for (const int64_t window : {1000, 37}) {
    const std::vector<int64_t> lengths = mixed_lengths(300, 4);
    const auto data = MemoryDataset::counting(lengths);
    const PackedSamples samples(data, {.sequence_length = kLength, .window = window, .threads = 3});
    int64_t pairs = 0;
    for (const int64_t length : lengths) pairs += std::max<int64_t>(length - 1, 0);
    for (const int64_t epoch : {0, 1, 5}) {
      std::set<std::pair<int64_t, int64_t>> seen;
      std::map<int64_t, int64_t> pieces_of_document;
      for (const auto& sample : epoch_of(samples, epoch)) {
        int64_t places = 0;
        for (const auto& [document, begin, size] : sample) {
          EXPECT_GT(size, 0);
          places += size;
          ++pieces_of_document[document];
          for (int64_t i = 0; i < size; ++i) EXPECT_TRUE(seen.emplace(document, begin + i).second);
        }
        EXPECT_GT(places, 0);
        EXPECT_LE(places, kLength);
      }
      EXPECT_EQ(static_cast<int64_t>(seen.size()), pairs);
      for (const auto& [document, offset] : seen) EXPECT_LT(offset + 1, lengths[static_cast<size_t>(document)]);
      for (const auto& [document, pieces] : pieces_of_document)
        EXPECT_EQ(pieces, (lengths[static_cast<size_t>(document)] - 1 + kLength - 1) / kLength)
            << "no unnecessary cuts";
    }
    EXPECT_EQ(samples.packed_size().places, pairs);
  }
}

TEST(PackedSamples, PadAtMostLikeFirstFitAndAlmostOptimally) {
  for (const uint64_t salt : {1, 2, 3, 4, 5, 6}) {
    const std::vector<int64_t> lengths = mixed_lengths(700, salt);
    const PackedSamples samples(MemoryDataset::counting(lengths), {.sequence_length = 24, .seed = salt});
    EXPECT_LE(samples.per_epoch(), first_fit(lengths, 24));
    const int64_t least = (samples.packed_size().places + 23) / 24;
    EXPECT_LE(static_cast<double>(samples.per_epoch()), 11.0 / 9 * static_cast<double>(least) + 1);
  }
}

// Brute force: all cuts of concatenated documents, for all offsets of the first sample.
TEST(PackedSamples, SizesAreCounted) {
  constexpr int64_t kLength = 8;
  const std::vector<int64_t> lengths = {0, 1, 2, 9, 10, 30, 5, 8, 1, 17};
  const PackedSamples samples(MemoryDataset::counting(lengths), {.sequence_length = kLength});
  int64_t divided = 0;
  for (const int64_t length : lengths)
    for (int64_t begin = 0; begin < kLength && length > 1; ++begin)
      divided += begin / kLength != (begin + length - 2) / kLength;
  const auto size = samples.packed_size();
  EXPECT_EQ(size.documents, 7);
  EXPECT_EQ(size.left_out, 3);
  EXPECT_EQ(size.cut, 3) << "10, 30 and 17; 9 tokens are 8 pairs";
  EXPECT_EQ(size.places, 1 + 8 + 9 + 29 + 4 + 7 + 16);
  EXPECT_EQ(size.cut_end_to_end, (divided + kLength / 2) / kLength);
  EXPECT_EQ(samples.per_epoch(), 10) << "whole: 1 + 1 + 3 + 2; ends: 1 + 7, 5, 4 + 1 of 1, 1, 5, 4, 7";
  EXPECT_EQ(samples.use_of(25).front().epochs, 2.5);
  const auto alike = MemoryDataset::counting(std::vector<int64_t>(100, 17));
  EXPECT_EQ(PackedSamples(alike, {.sequence_length = kLength}).packed_size().cut_end_to_end, 100) << "for any offset";
}

TEST(PackedSamples, BatchesSeparateDocumentsAndIgnorePadding) {
  constexpr int64_t kLength = 16;
  const std::vector<int64_t> lengths = mixed_lengths(80, 8);
  const auto data = MemoryDataset::counting(lengths);
  std::vector<int64_t> firsts = {0};
  for (const int64_t length : lengths) firsts.push_back(firsts.back() + length);
  const PackedSamples samples(data, {.sequence_length = kLength});
  int64_t counted = 0;
  for (int64_t index = 0; index < samples.per_epoch(); ++index) {
    const Batch batch = make_batch(samples, index, 1, {.end_of_text = 999'999});
    size_t at = 0;
    int32_t id = 0;
    for (const auto& [document, begin, places] : samples.pieces_of(index)) {
      for (int64_t i = 0; i < places; ++i, ++at) {
        EXPECT_EQ(batch.tokens[at], firsts[static_cast<size_t>(document)] + begin + i);
        EXPECT_EQ(batch.targets[at], batch.tokens[at] + 1);
        EXPECT_EQ(batch.positions[at], i);
        EXPECT_EQ(batch.sequence_ids[at], id);
        EXPECT_EQ(batch.loss_mask[at], 1);
      }
      ++id;
    }
    for (; at < kLength; ++at) {
      EXPECT_EQ(batch.tokens[at], 999'999);
      EXPECT_EQ(batch.sequence_ids[at], kPadding);
      EXPECT_EQ(batch.loss_mask[at], 0);
    }
    counted += batch.loss_tokens;
  }
  EXPECT_EQ(counted, samples.packed_size().places);
}

// llm.c's documents begin with the token that ends the previous one.
TEST(PackedSamples, EndOfTextTokensMayBeExcludedFromPrediction) {
  const auto data = std::make_shared<const MemoryDataset>(std::vector<std::vector<int32_t>>{{7, 1, 2, 3}});
  const PackedSamples samples(data, {.sequence_length = 4});
  const Batch batch = make_batch(samples, 0, 1, {.end_of_text = 7, .eod_mask_loss = true});
  EXPECT_EQ(batch.loss_mask, (std::vector<float>{0, 1, 1, 0}));
  EXPECT_EQ(make_batch(samples, 0, 1, {.end_of_text = 7}).loss_tokens, 3);
}

TEST(PackedSamples, DependOnlyOnSeedAndIndex) {
  const auto data = MemoryDataset::counting(mixed_lengths(200, 3));
  const PackedSamplesOptions options{.sequence_length = 20, .seed = 11, .window = 30};
  const PackedSamples forward(data, options), jumping(data, options);
  const int64_t n = forward.per_epoch();
  Pieces all;
  for (int64_t i = 0; i < 2 * n; ++i) all.push_back(forward.pieces_of(i));
  for (int64_t i = 0; i < 2 * n; ++i) {
    const int64_t index = i * 61 % (2 * n);
    EXPECT_EQ(jumping.pieces_of(index), all[static_cast<size_t>(index)]);
  }
  EXPECT_NE(epoch_of(forward, 0), epoch_of(forward, 1)) << "every epoch has its own order";
  const PackedSamples one_window(data, {.sequence_length = 20});
  EXPECT_NE(epoch_of(one_window, 0), epoch_of(one_window, 1)) << "also within a window";
  PackedSamplesOptions other = options;
  other.seed = 12;
  EXPECT_NE(PackedSamples(data, other).pieces_of(0), all[0]);
  other = options;
  other.shuffle = false;
  const PackedSamples evaluated(data, other);
  EXPECT_EQ(epoch_of(evaluated, 0), epoch_of(evaluated, 1));
  EXPECT_EQ(epoch_of(evaluated, 0), epoch_of(forward, 0)) << "not ordered by length, since only some are evaluated";
}

TEST(PackedSamples, SupportManyThreadsAndLayouts) {
  const auto samples = std::make_shared<const PackedSamples>(MemoryDataset::counting(mixed_lengths(200, 5)),
                                                             PackedSamplesOptions{.sequence_length = 12, .window = 20});
  const int64_t steps = 2 * samples->per_epoch() / 8;
  const auto read_by = [&](int64_t ranks, int64_t from) {
    std::vector<std::vector<int32_t>> micro_batches(static_cast<size_t>((steps - from) * 4));
    std::vector<std::thread> threads;
    for (int64_t rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&, rank] {
        Loader loader(samples,
                      {.micro_batch_size = 2,
                       .global_batch_size = 8,
                       .data_parallel_rank = rank,
                       .data_parallel_size = ranks,
                       .threads = 3},
                      from * 8);
        for (int64_t step = 0; step < steps - from; ++step) {
          const auto batches = loader.next();
          for (size_t a = 0; a < batches.size(); ++a)
            micro_batches[static_cast<size_t>(step * 4 + rank * 4 / ranks) + a] = batches[a].tokens;
        }
      });
    for (auto& thread : threads) thread.join();
    return micro_batches;
  };
  const auto whole = read_by(1, 0);
  EXPECT_EQ(read_by(2, 0), whole);
  EXPECT_EQ(read_by(4, 0), whole);
  EXPECT_EQ(read_by(2, 7), std::vector(whole.begin() + 28, whole.end())) << "resumed at step 7";
}

TEST(PackedSamples, MixByWeight) {
  const auto of = [](uint64_t salt, uint64_t seed) {
    return std::make_shared<const PackedSamples>(MemoryDataset::counting(mixed_lengths(100, salt)),
                                                 PackedSamplesOptions{.sequence_length = 12, .seed = seed});
  };
  const auto a = of(1, 1), b = of(2, 1);
  const MixedSamples mixed({{"a", a}, {"b", b}}, {MixturePhase{0, {1, 3}}}, 0, 7);
  EXPECT_TRUE(mixed.packed());
  EXPECT_EQ(mixed.packed_size().places, a->packed_size().places + b->packed_size().places);
  int64_t of_b = 0, next_a = 0, next_b = 0;
  for (int64_t i = 0; i < 80; ++i) {
    auto pieces = mixed.pieces_of(i);
    ASSERT_FALSE(pieces.empty());
    const bool from_b = pieces[0].document >= 100;
    for (auto& piece : pieces) piece.document -= from_b ? 100 : 0;
    EXPECT_EQ(pieces, from_b ? b->pieces_of(next_b++) : a->pieces_of(next_a++));
    of_b += from_b;
  }
  EXPECT_NEAR(static_cast<double>(of_b), 60, 2);
}

TEST(PackedSamples, RefuseDataWithoutTargets) {
  EXPECT_THAT(message_of<DataError>([] {
                PackedSamples(MemoryDataset::counting({1, 0, 1}), {.sequence_length = 4});
              }),
              HasSubstr("no document of two tokens"));
  EXPECT_THROW(PackedSamples(MemoryDataset::counting({}), {.sequence_length = 4}), DataError);
  EXPECT_THROW(PackedSamples(MemoryDataset::counting({8}), {.sequence_length = 0}), ConfigError);
}

}  // namespace
}  // namespace witan
