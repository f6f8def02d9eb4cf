#include "witan/train/data/data_fingerprint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "support/temp_folder.h"
#include "witan/base/error.h"
#include "witan/base/hash.h"

namespace witan {
namespace {

class DataFingerprintTest : public ::testing::Test {
 protected:
  // Files of 40 prefixes, from empty ones to several times the hashed number of bytes.
  void SetUp() override {
    for (size_t i = 0; i < 40; ++i) {
      prefixes_.push_back(folder_ / ("shard-" + std::to_string(i)));
      for (const char* suffix : {"", ".idx", ".bin", ".loss.bin"})
        if ((i + std::strlen(suffix)) % 3 != 0)
          put(prefixes_.back().string() + suffix,
              std::string(i * 1000 * (suffix[0] != '\0' ? 1 : 7), static_cast<char>('a' + i)));
    }
  }
  static void put(const fs::path& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }
  // The definition in the header, applied file by file.
  static std::string expected(const std::vector<fs::path>& prefixes, const std::string& order) {
    Hasher hasher;
    for (const fs::path& prefix : prefixes)
      for (const char* suffix : {"", ".idx", ".bin", ".loss.bin"}) {
        if (!fs::exists(prefix.string() + suffix)) continue;
        const std::string bytes = read_file(prefix.string() + suffix);
        const uint64_t size = bytes.size();
        hasher.update(&size, sizeof size);
        hasher.update(bytes.data(), std::min(bytes.size(), (size_t{64} << 20) / prefixes.size()));
      }
    hasher.update(order.data(), order.size());
    return hasher.hex();
  }

  test::TempFolder folder_;
  std::vector<fs::path> prefixes_;
};

TEST_F(DataFingerprintTest, CoversSizesAndFirstBytesInOrder) {
  EXPECT_EQ(fingerprint_of(prefixes_), expected(prefixes_, ""));
  EXPECT_EQ(fingerprint_of(prefixes_, "epochs 3"), expected(prefixes_, "epochs 3"));
  EXPECT_EQ(fingerprint_of({prefixes_[5]}), expected({prefixes_[5]}, ""));
  std::ranges::reverse(prefixes_);
  EXPECT_EQ(fingerprint_of(prefixes_), expected(prefixes_, ""));
}

// 2,000 prefixes share the bytes, so 33,554 of each file are hashed.
TEST_F(DataFingerprintTest, ManyFilesContributeFewerBytesEach) {
  std::vector<fs::path> many;
  for (size_t i = 0; i < 2000; ++i) many.push_back(prefixes_[i % prefixes_.size()]);
  const std::string before = fingerprint_of(many);
  EXPECT_EQ(before, expected(many, ""));
  const std::string path = prefixes_[39].string() + ".bin";
  std::string bytes = read_file(path);
  bytes[33'553] ^= 1;
  put(path, bytes);
  EXPECT_NE(fingerprint_of(many), before);
  bytes[33'553] ^= 1;
  bytes[33'554] ^= 1;
  put(path, bytes);
  EXPECT_EQ(fingerprint_of(many), before);
}

TEST_F(DataFingerprintTest, SkipsOtherKindsOfFiles) {
  fs::create_directory(folder_ / "tokens");
  put((folder_ / "tokens").string() + ".bin", "12345678");
  Hasher hasher;
  const uint64_t size = 8;
  hasher.update(&size, sizeof size);
  hasher.update("12345678", 8);
  EXPECT_EQ(fingerprint_of({folder_ / "tokens"}), hasher.hex());
}

TEST_F(DataFingerprintTest, IncludesColumnsThatTheObjectiveReads) {
  const std::vector<fs::path> prefixes = {folder_ / "a", folder_ / "b"};
  const auto column = [&](const char* prefix, const char* name) {
    fs::create_directories(folder_ / cat(prefix, ".columns"));
    return folder_ / cat(prefix, ".columns") / cat(name, ".f32");
  };
  put(column("a", "advantages"), "1234");
  put(column("b", "advantages"), "12345678");
  put(column("b", "rewards"), "abcd");
  const std::vector<ColumnSpec> read = {{"advantages"}};
  const auto now = [&] { return fingerprint_with_columns("tokens", prefixes, read); };
  EXPECT_EQ(fingerprint_with_columns("tokens", prefixes, {}), "tokens");
  const std::string before = now();
  put(column("b", "rewards"), "efgh");
  EXPECT_EQ(now(), before) << "an unread column";
  put(column("b", "advantages"), "1234567x");
  EXPECT_NE(now(), before) << "a changed value";
  put(column("b", "advantages"), "12345678");
  EXPECT_EQ(now(), before);
  fs::remove(column("a", "advantages"));
  EXPECT_NE(now(), before) << "one file fewer";
  put(column("a", "advantages"), "1234");
  EXPECT_NE(fingerprint_with_columns("other tokens", prefixes, read), before);
  EXPECT_NE(fingerprint_with_columns("tokens", prefixes, {{"rewards"}}), before);
  EXPECT_NE(fingerprint_with_columns("tokens", prefixes, {{"advantages"}, {"rewards"}}), before);
}

TEST_F(DataFingerprintTest, NamesFilesModifiedLater) {
  const fs::file_time_type now = fs::file_time_type::clock::now();
  const auto write_at = [&](const char* name, int seconds) {
    put(folder_ / name, "x");
    fs::last_write_time(folder_ / name, now + std::chrono::seconds(seconds));
  };
  for (const char* name : {"a.bin", "a.idx", "c.bin"}) write_at(name, 9);
  for (const char* name : {"b.bin", "c.idx"}) write_at(name, -9);
  write_at("b.idx", 9);
  const std::vector<fs::path> prefixes = {folder_ / "a", folder_ / "b", folder_ / "c", folder_ / "missing"};
  EXPECT_EQ(files_written_after(prefixes, now, 3),
            (std::vector<fs::path>{folder_ / "a.bin", folder_ / "b.idx", folder_ / "c.bin"}));
  EXPECT_EQ(files_written_after(prefixes, now, 1), std::vector<fs::path>{folder_ / "a.bin"});
  EXPECT_TRUE(files_written_after(prefixes, now + std::chrono::seconds(9), 3).empty());
  fs::create_directory(folder_ / "missing.columns");
  write_at("missing.columns/advantages.f32", 9);
  EXPECT_EQ(files_written_after({prefixes.back()}, now, 3, {{"advantages"}}),
            std::vector<fs::path>{folder_ / "missing.columns/advantages.f32"});
  EXPECT_TRUE(files_written_after({prefixes.back()}, now, 3, {{"rewards"}}).empty());
}

}  // namespace
}  // namespace witan
