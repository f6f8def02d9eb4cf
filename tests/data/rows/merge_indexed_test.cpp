#include "witan/data/rows/merge_indexed.h"

#include "data/data_support.h"
#include "witan/base/error.h"
#include "witan/data/datasets/indexed_dataset.h"

namespace witan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class MergeIndexedTest : public ::testing::Test {
 protected:
  std::vector<fs::path> pairs(const std::vector<std::string>& names) const {
    std::vector<fs::path> prefixes;
    for (const std::string& name : names) prefixes.push_back(golden("merge/" + name));
    return prefixes;
  }
  fs::path write(const std::string& name, const std::vector<std::vector<int32_t>>& documents, int64_t vocabulary) {
    IndexedWriter writer(folder_ / name, vocabulary);
    for (const auto& document : documents) writer.add(document);
    writer.finish();
    return folder_ / name;
  }
  std::string refusal(const std::vector<fs::path>& prefixes) const {
    return message_of<DataError>([&] { merge_indexed(prefixes, folder_ / "merged"); });
  }

  TempFolder folder_;
};

TEST_F(MergeIndexedTest, MatchesMegatron) {
  const MergedIndexed merged = merge_indexed(pairs({"a", "b", "c"}), folder_ / "out/abc");
  EXPECT_EQ(merged.sequences, 9);
  EXPECT_EQ(merged.documents, 7);
  EXPECT_EQ(merged.tokens, 14);
  for (const char* suffix : {".bin", ".idx"})
    EXPECT_EQ(read_file(folder_ / cat("out/abc", suffix)), read_file(golden(cat("merge/abc", suffix)))) << suffix;
}

TEST_F(MergeIndexedTest, KeepsModes) {
  merge_indexed(pairs({"m1", "m2"}), folder_ / "m12");
  for (const char* suffix : {".bin", ".idx"})
    EXPECT_EQ(read_file(folder_ / cat("m12", suffix)), read_file(golden(cat("merge/m12", suffix)))) << suffix;
}

TEST_F(MergeIndexedTest, ErrorsNameDifferences) {
  EXPECT_THAT(refusal(pairs({"a", "wide"})), HasSubstr("wide.idx has tokens of int32 and "));
  EXPECT_THAT(refusal(pairs({"wide", "m1"})), HasSubstr("m1.idx has modes of sequences (multimodal data) and "));
  EXPECT_FALSE(fs::exists(folder_ / "merged.bin"));
}

TEST_F(MergeIndexedTest, ErrorsNameDifferentTokenizers) {
  const std::vector<fs::path> both = {write("one", {{1, 2}}, 100), write("two", {{3}}, 100)};
  put(folder_ / "one.json", R"({"key": {"tokenizer": {"hash": "aa"}}})");
  merge_indexed(both, folder_ / "known_and_not");
  put(folder_ / "two.json", R"({"key": {"tokenizer": {"hash": "bb"}}})");
  EXPECT_THAT(refusal(both), HasSubstr("were made with different tokenizers"));
}

TEST_F(MergeIndexedTest, MergesConversations) {
  const std::vector<fs::path> both = {write("one", {{5, 6}}, 100), write("two", {{7}}, 100)};
  write("one.loss", {{0, 1}}, 2);
  EXPECT_THAT(refusal(both), HasSubstr("of 2 pairs 1 are conversations"));
  write("two.loss", {{1}}, 2);
  EXPECT_THAT(indexed_prefixes_in(folder_.path()), ElementsAre(folder_ / "one", folder_ / "two"));
  merge_indexed(both, folder_ / "merged");
  const auto merged = open_tokens(folder_ / "merged");
  EXPECT_TRUE(merged->conversations());
  EXPECT_EQ(read_all(*merged), (std::vector<std::vector<int32_t>>{{5, 6}, {7}}));
  std::vector<float> loss(2);
  merged->read_loss(0, 0, loss);
  EXPECT_THAT(loss, ElementsAre(0, 1));
}

TEST_F(MergeIndexedTest, NeverOverwrites) {
  const fs::path one = write("one", {{1}}, 100);
  EXPECT_THAT(message_of<ConfigError>([&] { merge_indexed({one, one}, one); }), HasSubstr("one.bin exists already"));
  fs::create_directory(folder_ / "merged.columns");
  EXPECT_THAT(message_of<ConfigError>([&] {
                merge_indexed({one, one}, folder_ / "merged");
              }),
              HasSubstr("merged.columns exists already"));
}

TEST_F(MergeIndexedTest, FindsPairsByAnyOfTheirNames) {
  const fs::path one = write("one", {{1}}, 100);
  for (const char* name : {"one", "one.bin", "one.idx"}) EXPECT_EQ(indexed_prefix(folder_ / name), one);
  EXPECT_TRUE(indexed_prefix(folder_ / "two").empty());
}

}  // namespace
}  // namespace witan
