#include "witan/data/rows/parts.h"

#include "data/data_support.h"
#include "witan/base/error.h"

namespace witan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> names_of(const Parts& parts) {
  std::vector<std::string> names;
  for (const Parts::File& file : parts.files()) names.push_back(file.path.string());
  return names;
}

TEST(Parts, NamesFiles) {
  EXPECT_THAT(names_of(Parts("d/a.jsonl", {})), ElementsAre("d/a.jsonl"));
  EXPECT_THAT(names_of(Parts("d/a", {.chunks = 2, .valid = 1})),
              ElementsAre("d/a.chunk.00.jsonl", "d/a.chunk.01.jsonl", "d/a.val.jsonl"));
  EXPECT_THAT(names_of(Parts("a", {.valid = 1})), ElementsAre("a.jsonl", "a.val.jsonl"));
  EXPECT_THAT(names_of(Parts("a", {.fractions = {9, 1}})), ElementsAre("a.train.jsonl", "a.val.jsonl"));
  EXPECT_THAT(names_of(Parts("a", {.fractions = {8, 1, 1}})),
              ElementsAre("a.train.jsonl", "a.val.jsonl", "a.test.jsonl"));
  EXPECT_EQ(names_of(Parts("a", {.chunks = 200}))[7], "a.chunk.007.jsonl");
  EXPECT_EQ(names_of(Parts("a", {.chunks = 100}))[99], "a.chunk.99.jsonl");
}

TEST(Parts, DistributesInTurnAndTakesTheFirstOfEachChunk) {
  const Parts parts("a", {.chunks = 3, .valid = 2});
  std::vector<int64_t> streams;
  for (int64_t rank = 0; rank < 9; ++rank) streams.push_back(parts.stream_of(rank));
  EXPECT_THAT(streams, ElementsAre(3, 4, 5, 3, 4, 5, 0, 1, 2));
  EXPECT_THAT(parts.files().back().streams, ElementsAre(3, 4, 5));
  EXPECT_EQ(parts.least_rows(), 9);
}

TEST(Parts, DrawsSharesByTheSeed) {
  const auto counts_of = [](uint64_t seed) {
    const Parts parts("a", {.fractions = {98, 1, 1}, .seed = seed});
    std::vector<int> counts(3);
    for (int64_t rank = 0; rank < 100000; ++rank) ++counts[static_cast<size_t>(parts.stream_of(rank))];
    return counts;
  };
  const std::vector<int> counts = counts_of(1);
  EXPECT_NEAR(counts[0], 98000, 300);  // 6 standard deviations are 266
  EXPECT_NEAR(counts[1], 1000, 200);
  EXPECT_EQ(counts_of(1), counts);
  EXPECT_NE(counts_of(2), counts);
}

TEST(Parts, RefusesImpossibleParts) {
  EXPECT_THAT(message_of<ConfigError>([] { const Parts parts("a", {.chunks = 300}); }), HasSubstr("1 to 256"));
  EXPECT_THAT(message_of<ConfigError>([] {
                const Parts parts("a", {.chunks = 2, .fractions = {1, 1}});
              }),
              HasSubstr("without --chunks and --valid"));
  EXPECT_THAT(message_of<ConfigError>([] {
                const Parts parts("a", {.fractions = {1, -1}});
              }),
              HasSubstr("-1 is no share"));
  EXPECT_THAT(message_of<ConfigError>([] { const Parts parts("a.jsonl.zst", {}); }), HasSubstr("written plain"));
  EXPECT_THAT(message_of<ConfigError>([] { const Parts parts("folder/", {}); }), HasSubstr("give a file's name"));
}

}  // namespace
}  // namespace witan
