#include "witan/data/samples/packing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "support/message_of.h"
#include "witan/base/error.h"
#include "witan/base/numbers/rng.h"

namespace witan {
namespace {

std::vector<std::vector<int64_t>> samples_of(const PackedDocuments& packed) {
  std::vector<std::vector<int64_t>> samples;
  for (int64_t i = 0; i < packed.samples(); ++i) {
    const auto at = [&](int64_t place) { return packed.documents.begin() + packed.begins[static_cast<size_t>(place)]; };
    samples.emplace_back(at(i), at(i + 1));
  }
  return samples;
}

TEST(Packing, EveryDocumentIsInASampleThatHoldsIt) {
  std::vector<int64_t> sizes;
  const Philox rng(1, 2);
  for (uint64_t i = 0; i < 500; ++i) sizes.push_back(static_cast<int64_t>(rng.below(65, i)));
  for (const Packing packing : {Packing::none, Packing::greedy, Packing::best_fit}) {
    const PackedDocuments packed = pack_documents(sizes, 64, packing, 7);
    std::vector<int> seen(sizes.size(), 0);
    for (const auto& sample : samples_of(packed)) {
      int64_t size = 0;
      for (const int64_t document : sample) {
        size += sizes[static_cast<size_t>(document)];
        ++seen[static_cast<size_t>(document)];
      }
      EXPECT_GT(size, 0);
      EXPECT_LE(size, 64);
    }
    for (size_t i = 0; i < sizes.size(); ++i) EXPECT_EQ(seen[i], sizes[i] > 0 ? 1 : 0) << i;
    EXPECT_EQ(pack_documents(sizes, 64, packing, 7).documents, packed.documents) << "identical for all documents";
  }
}

TEST(Packing, GreedyFillsInOrderAndBestFitTheFullest) {
  const std::vector<int64_t> sizes = {6, 4, 5, 5, 3, 7, 0, 10};
  EXPECT_EQ(pack_documents(sizes, 10, Packing::best_fit, 1).samples(), 4) << "10, 7 + 3, 6 + 4, 5 + 5";
  EXPECT_EQ(pack_documents(sizes, 10, Packing::none, 1).samples(), 7);
  const auto greedy = samples_of(pack_documents(sizes, 10, Packing::greedy, 1));
  for (size_t i = 0; i + 1 < greedy.size(); ++i) {
    int64_t size = sizes[static_cast<size_t>(greedy[i + 1].front())];
    for (const int64_t document : greedy[i]) size += sizes[static_cast<size_t>(document)];
    EXPECT_GT(size, 10) << "the next one did not fit";
  }
  EXPECT_EQ(pack_documents({5, 5}, 10, Packing::greedy, 1).samples(), 1) << "what fits exactly fits";
  EXPECT_NE(pack_documents(sizes, 10, Packing::none, 1).documents,
            pack_documents(sizes, 10, Packing::none, 2).documents);
}

// By definition, best fit uses the fullest sample with room among those begun, and the first of several.
std::vector<std::vector<int64_t>> brute_best_fit(const std::vector<std::vector<int64_t>>& packed,
                                                 const std::vector<int64_t>& sizes, int64_t capacity) {
  std::vector<int64_t> falling;  // equally long documents are ordered as in a packing of one document per sample
  for (const auto& sample : packed) falling.push_back(sample.front());
  std::ranges::stable_sort(falling, std::greater<>{}, [&](int64_t d) { return sizes[static_cast<size_t>(d)]; });
  std::vector<std::vector<int64_t>> samples;
  std::vector<int64_t> rooms;
  for (const int64_t document : falling) {
    const int64_t size = sizes[static_cast<size_t>(document)];
    size_t best = rooms.size();
    for (size_t s = 0; s < rooms.size(); ++s)
      if (rooms[s] >= size && (best == rooms.size() || rooms[s] < rooms[best])) best = s;
    if (best == rooms.size()) {
      rooms.push_back(capacity);
      samples.emplace_back();
    }
    rooms[best] -= size;
    samples[best].push_back(document);
  }
  return samples;
}

TEST(Packing, BestFitMatchesBruteForce) {
  for (uint64_t salt = 0; salt < 20; ++salt) {
    const auto capacity = static_cast<int64_t>(10 + 7 * salt);
    std::vector<int64_t> sizes;
    const Philox rng(salt, 3);
    for (uint64_t i = 0; i < 40 * salt; ++i)
      sizes.push_back(static_cast<int64_t>(rng.below(static_cast<uint32_t>(capacity) + 1, i)));
    const auto alone = samples_of(pack_documents(sizes, capacity, Packing::none, salt));
    EXPECT_EQ(samples_of(pack_documents(sizes, capacity, Packing::best_fit, salt)),
              brute_best_fit(alone, sizes, capacity));
  }
}

TEST(Packing, HasNames) {
  EXPECT_EQ(packing_from_name("best_fit"), Packing::best_fit);
  EXPECT_EQ(test::message_of<ConfigError>([] { packing_from_name("tight"); }),
            "packing = tight: must be greedy, best_fit or none");
}

}  // namespace
}  // namespace witan
