#include "witan/base/files/glob.h"

#include <gtest/gtest.h>

namespace witan {
namespace {

TEST(Globs, StarsMatchAcrossFolders) {
  EXPECT_TRUE(matches_any({"*.zst"}, "a/b/c.jsonl.zst"));
  EXPECT_TRUE(matches_any({"a/*.zst"}, "a/b/c.jsonl.zst"));
  EXPECT_TRUE(matches_any({"sample/10BT/"}, "sample/10BT/000.parquet"));
  EXPECT_TRUE(matches_any({"x", "shard_0[0-3]*"}, "shard_02.txt"));
  EXPECT_FALSE(matches_any({"shard_0[!0-3]*"}, "shard_02.txt"));
  EXPECT_FALSE(matches_any({"*.ZST"}, "c.zst"));
  EXPECT_FALSE(matches_any({"b/*"}, "a/b/c"));
  EXPECT_TRUE(matches_any({"a\\*"}, "a\\b")) << "like Python's fnmatch, which has no escapes";
  EXPECT_FALSE(matches_any({}, "a"));
}

TEST(Globs, StarsOfDataFilesStayWithinFolders) {
  EXPECT_TRUE(matches_data_files("sample/10BT/*", "sample/10BT/000.parquet"));
  EXPECT_FALSE(matches_data_files("sample/*", "sample/10BT/000.parquet"));
  EXPECT_TRUE(matches_data_files("data/*/*", "data/CC-MAIN-2013-20/train-0.parquet"));
  EXPECT_FALSE(matches_data_files("data/*/*", "data/train-0.parquet"));
  EXPECT_TRUE(matches_data_files("**/*.parquet", "a/b/c.parquet"));
  EXPECT_TRUE(matches_data_files("**/*.parquet", "c.parquet"));
  EXPECT_TRUE(matches_data_files("sci/**", "sci/a/b"));
  EXPECT_FALSE(matches_data_files("sci/**/b", "sci/a/c"));
  EXPECT_TRUE(matches_data_files("./data/train.jsonl", "data/train.jsonl"));
  EXPECT_FALSE(matches_data_files("train.jsonl", "data/train.jsonl"));
}

// Dataset cards may hold any pattern, so matching must take time at most proportional to pattern length times path
// length.
TEST(Globs, PatternsWithManyStarsTerminate) {
  std::string pattern, path;
  for (int i = 0; i < 40; ++i) pattern += "**/a/", path += "a/a/";
  EXPECT_FALSE(matches_data_files(pattern + "b", path + "c"));
  EXPECT_TRUE(matches_data_files(pattern + "c", path + "c"));
}

TEST(Globs, FindsTheCommonFolderOfPatterns) {
  EXPECT_EQ(common_folder({"sample/10BT/*"}), "sample/10BT");
  EXPECT_EQ(common_folder({"a/b/c/*", "a/b/d*"}), "a/b");
  EXPECT_EQ(common_folder({"a/bc/*", "a/b/*"}), "a");
  EXPECT_EQ(common_folder({"a/b/*", "a/bc/*"}), "a");
  EXPECT_EQ(common_folder({"data/x.jsonl"}), "data");
  EXPECT_EQ(common_folder({"*.jsonl", "a/*"}), "");
  EXPECT_EQ(common_folder({"./a/*"}), "");
}

}  // namespace
}  // namespace witan
