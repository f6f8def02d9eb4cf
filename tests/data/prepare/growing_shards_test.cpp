#include "witan/data/prepare/growing_shards.h"

#include "data/data_support.h"
#include "witan/base/error.h"

namespace witan {
namespace {

using ::testing::HasSubstr;
using Documents = std::vector<std::vector<int32_t>>;

const std::vector<int32_t> kFirst = {1, 2, 3}, kSecond = {65000}, kNone = {};

TEST(GrowingShardsTest, BecomeAReadablePair) {
  const TempFolder folder;
  for (const int64_t vocab_size : {65499, 70000}) {
    GrowingShards shards(folder / "new/d", vocab_size, false);
    for (const auto& document : {kFirst, kSecond}) shards.add(document);
    EXPECT_EQ(shards.documents(), 2);
    EXPECT_EQ(shards.tokens(), 4);
    shards.publish();
    GrowingShards::discard(folder / "new/d");
    const IndexedDataset read(folder / "new/d");
    EXPECT_EQ(read.type(), vocab_size < 65500 ? TokenType::u16 : TokenType::i32);
    EXPECT_EQ(read_all(read), (Documents{kFirst, kSecond}));
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(folder / "new"), fs::directory_iterator()), 2);
}

// The bytes equal IndexedWriter's, except that documents without tokens have no sequence.
TEST(GrowingShardsTest, WriteTheBytesOfTheFormat) {
  const TempFolder folder;
  IndexedWriter writer(folder / "w", 70000);
  GrowingShards shards(folder / "g", 70000, false);
  for (const auto& document : {kFirst, kSecond}) {
    writer.add(document);
    shards.add(document);
  }
  writer.finish();
  shards.publish();
  for (const char* suffix : {".bin", ".idx"})
    EXPECT_EQ(read_file(folder / (std::string("w") + suffix)), read_file(folder / (std::string("g") + suffix)));
}

TEST(GrowingShardsTest, DocumentsWithoutTokensAreOnlyBoundaries) {
  const TempFolder folder;
  GrowingShards shards(folder / "d", 100000, false);
  for (const auto& document : {kNone, kFirst, kNone, kNone, kSecond, kNone}) shards.add(document);
  shards.publish();
  const IndexedDataset read(folder / "d");
  EXPECT_EQ(read.sequences(), 2);
  EXPECT_EQ(read.documents(), 6);
  EXPECT_EQ(read_all(read), (Documents{kNone, kFirst, kNone, kNone, kSecond, kNone}));
}

TEST(GrowingShardsTest, ContinueAfterTruncation) {
  const TempFolder folder;
  {
    GrowingShards shards(folder / "d", 70000, false);
    shards.add(kFirst);
    shards.sync();
    shards.add(kSecond);
    shards.sync();
  }
  {
    GrowingShards again(folder / "d", 70000, true);
    again.cut(1, 3);
    EXPECT_EQ(again.documents(), 1);
    again.add(kFirst);
    again.publish();
  }
  EXPECT_EQ(read_all(IndexedDataset(folder / "d")), (Documents{kFirst, kFirst}));
  GrowingShards anew(folder / "d", 70000, false);
  EXPECT_EQ(anew.documents(), 0);
  EXPECT_THAT(message_of<CorruptionError>([&] { anew.cut(1, 3); }), HasSubstr(" were written"));
}

// A journal may describe more than the files contain.
TEST(GrowingShardsTest, KeepWhatExistsAndNoMore) {
  const TempFolder folder;
  {
    GrowingShards shards(folder / "d", 70000, false);
    for (const auto& document : {kFirst, kSecond}) shards.add(document);
    shards.sync();
  }
  EXPECT_TRUE(GrowingShards::hold(folder / "d", 70000, 2, 4));
  EXPECT_TRUE(GrowingShards::hold(folder / "d", 70000, 1, 3));
  EXPECT_FALSE(GrowingShards::hold(folder / "d", 70000, 2, 5));
  EXPECT_FALSE(GrowingShards::hold(folder / "d", 70000, 3, 4));
  GrowingShards::discard(folder / "d");
  EXPECT_FALSE(GrowingShards::hold(folder / "d", 70000, 1, 3));
}

// The process was killed after publishing the tokens and before publishing the index.
TEST(GrowingShardsTest, RepublishHalfPublishedPairs) {
  const TempFolder folder;
  {
    GrowingShards shards(folder / "d", 70000, false);
    shards.add(kSecond);
    shards.publish();
  }
  fs::remove(folder / "d.idx");
  GrowingShards again(folder / "d", 70000, true);
  again.cut(1, 1);
  again.publish();
  EXPECT_EQ(read_all(IndexedDataset(folder / "d")), (Documents{kSecond}));
}

TEST(GrowingShardsTest, RefuseIdsOutsideTheVocabulary) {
  const TempFolder folder;
  GrowingShards shards(folder / "d", 10, false);
  for (const int32_t id : {-1, 10}) EXPECT_THROW(shards.add(std::vector<int32_t>{id}), DataError);
}

}  // namespace
}  // namespace witan
