#include "witan/tensor/region.h"

#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <random>

#include "support/message_of.h"
#include "witan/base/error.h"

namespace witan {
namespace {

using test::message_of;

std::vector<int64_t> places(const Region& region) {
  std::vector<int64_t> all;
  for (int64_t i = 0; i < region.elements(); ++i) all.push_back(region.global(i));
  return all;
}

Region random_region(std::mt19937& random) {
  const auto up_to = [&](int64_t most) { return std::uniform_int_distribution<int64_t>(0, most)(random); };
  const int64_t length = up_to(7);
  return {up_to(20), length, up_to(5), length + up_to(6)};
}

TEST(Region, RowsAreOneRun) {
  const Region rows(6, 9);
  EXPECT_TRUE(rows.contiguous());
  EXPECT_EQ(rows.elements(), 9);
  EXPECT_EQ(rows.end(), 15);
  EXPECT_EQ(rows.global(4), 10);
}

TEST(Region, AdjacentElementsEndWithTheirRun) {
  std::mt19937 random(11);
  for (int i = 0; i < 300; ++i) {
    const Region region = random_region(random);
    for (int64_t local = 0; local < region.elements(); ++local) {
      int64_t expected = 1;
      while (local + expected < region.elements() && region.global(local + expected) == region.global(local) + expected)
        ++expected;
      EXPECT_EQ(region.adjacent(local), expected) << region << " from " << local;
    }
  }
}

TEST(Region, MergesAdjacentRuns) {
  EXPECT_EQ(Region(3, 4, 5, 4), Region(3, 20));
  EXPECT_EQ(Region(3, 4, 1, 99), Region(3, 4));
}

TEST(Region, EmptyRegionsHaveNoPlaces) {
  const Region nothing(5, 0, 7, 3);
  EXPECT_EQ(nothing.elements(), 0);
  EXPECT_EQ(nothing.end(), 5);
  EXPECT_TRUE(nothing.slice(0, 0).empty());
  EXPECT_EQ(Region().elements(), 0);
  EXPECT_EQ(Region().end(), 0);
}

TEST(Region, ColumnsAreRunsAcrossRows) {  // columns 2 and 3 of [3, 4]
  EXPECT_EQ(places(Region(0, 12).divided(4, 2, 1)), (std::vector<int64_t>{2, 3, 6, 7, 10, 11}));
}

TEST(Region, DividesEachHalfOfAMatrix) {  // of gate [4, 1] over up [4, 1], the second rank's
  EXPECT_EQ(places(Region(0, 8).divided(4, 2, 1)), (std::vector<int64_t>{2, 3, 6, 7}));
}

TEST(Region, DividesWithinExperts) {  // experts 2 and 3 of [4, 2, 3]: rank 0's of three columns each
  EXPECT_EQ(places(Region(12, 12).divided(3, 3, 0)), (std::vector<int64_t>{12, 15, 18, 21}));
}

TEST(Region, PiecesOfAllRanksCoverTheWholeOnce) {
  for (const int64_t block : {6, 12, 24}) {
    std::vector<int64_t> seen;
    for (int64_t rank = 0; rank < 3; ++rank)
      for (const int64_t place : places(Region(5, 24).divided(block, 3, rank))) seen.push_back(place);
    std::ranges::sort(seen);
    std::vector<int64_t> all(24);
    std::iota(all.begin(), all.end(), 5);
    EXPECT_EQ(seen, all) << block;
  }
}

TEST(Region, SlicesAreInOrder) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 300; ++trial) {
    const Region region = random_region(random);
    const std::vector<int64_t> all = places(region);
    for (int64_t begin = 0; begin <= region.elements(); ++begin)
      for (int64_t end = begin; end <= region.elements(); ++end) {
        std::vector<int64_t> found;
        const auto pieces = region.slice(begin, end);
        EXPECT_LE(pieces.size(), 3u);
        for (const Region& piece : pieces)
          for (const int64_t place : places(piece)) found.push_back(place);
        EXPECT_EQ(found, std::vector<int64_t>(all.begin() + begin, all.begin() + end)) << region;
      }
  }
}

TEST(Region, OverlapsAreIntersections) {
  std::mt19937 random(2);
  int met = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    const Region a = random_region(random), b = random_region(random);
    const std::vector<int64_t> in_a = places(a), in_b = places(b);
    std::vector<std::array<int64_t, 2>> expected, found;
    for (size_t i = 0; i < in_a.size(); ++i)
      for (size_t j = 0; j < in_b.size(); ++j)
        if (in_a[i] == in_b[j]) expected.push_back({static_cast<int64_t>(i), static_cast<int64_t>(j)});
    for_overlaps(a, b, [&](int64_t at_a, int64_t at_b, int64_t count) {
      EXPECT_GT(count, 0);
      for (int64_t i = 0; i < count; ++i) found.push_back({at_a + i, at_b + i});
    });
    EXPECT_EQ(found, expected) << a << " and " << b;
    met += !found.empty();
  }
  EXPECT_GT(met, 1000);
}

TEST(Region, RefusesInvalidParts) {
  EXPECT_EQ(message_of<ShapeError>([] { Region(0, 4, 2, 3); }),
            "region: 2 runs of 4 elements, 3 apart from 0 on, do not describe a part of a tensor");
  EXPECT_EQ(message_of<ShapeError>([] { Region(0, 12).divided(4, 3, 0); }),
            "region: every 4 of 12 elements cannot be split into 3 equal shards");
  EXPECT_EQ(message_of<ShapeError>([] { Region(0, 12).divided(4, 2, 2); }), "region: there is no shard 2 of 2");
  EXPECT_EQ(message_of<ShapeError>([] { Region(0, 2, 3, 4).divided(2, 2, 0); }),
            "region: (0 + i * 4, 2) x 3 is already split");
  EXPECT_EQ(message_of<ShapeError>([] { Region(0, 4).slice(1, 5); }), "region: no elements [1, 5) among 4");
}

}  // namespace
}  // namespace witan
