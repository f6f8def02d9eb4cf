#include "witan/data/text/decompress.h"

#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include <cstring>

#include "data/data_support.h"
#include "witan/base/error.h"

namespace witan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string read_whole(const fs::path& path, size_t step = 1000) {
  const auto reader = open_bytes(path);
  std::string text, block(step, '\0');
  while (const size_t n = reader->read(block.data(), step)) text.append(block, 0, n);
  EXPECT_EQ(reader->offset(), fs::file_size(path));
  return text;
}

std::string sample_text() {
  std::string text;
  for (int i = 0; i < 20000; ++i) text += std::to_string(i * 7919 % 100003) + " ";
  return text;
}

class Decompress : public ::testing::Test {
 protected:
  TempFolder folder_;
};

TEST_F(Decompress, ReadsPlainGzipAndZstd) {
  const std::string text = sample_text();
  EXPECT_EQ(read_whole(put(folder_ / "a.txt", text)), text);
  EXPECT_EQ(read_whole(put(folder_ / "a.txt.gz", gzip(text))), text);
  EXPECT_EQ(read_whole(put(folder_ / "a.txt.zst", zstd(text))), text);
  EXPECT_EQ(read_whole(put(folder_ / "empty.txt", "")), "");
  EXPECT_EQ(read_whole(put(folder_ / "empty.gz", gzip(""))), "");
  EXPECT_EQ(read_whole(put(folder_ / "empty.zst", zstd(""))), "");
}

TEST_F(Decompress, DetectsFormatsByContentIfNamesDoNotTell) {
  EXPECT_EQ(read_whole(put(folder_ / "a.jsonl", gzip("hello"))), "hello");
  EXPECT_EQ(read_whole(put(folder_ / "b.txt", zstd("hello"))), "hello");
}

TEST_F(Decompress, ReadsOneByteAtATime) {
  EXPECT_EQ(read_whole(put(folder_ / "a.gz", gzip("hello")), 1), "hello");
  EXPECT_EQ(read_whole(put(folder_ / "a.zst", zstd("hello")), 1), "hello");
}

TEST_F(Decompress, JoinsMembersAndFramesAndIgnoresPadding) {
  EXPECT_EQ(read_whole(put(folder_ / "a.gz", gzip("one ") + gzip("two"))), "one two");
  EXPECT_EQ(read_whole(put(folder_ / "b.gz", gzip("one ") + std::string(700, '\0'))), "one ");
  EXPECT_EQ(read_whole(put(folder_ / "a.zst", zstd("one ") + zstd("two"))), "one two");
  const std::string skippable("\x50\x2a\x4d\x18\x03\x00\x00\x00xyz", 11);
  EXPECT_EQ(read_whole(put(folder_ / "b.zst", skippable + zstd("one"))), "one");
}

TEST_F(Decompress, RefusesNamesThatContradictTheContent) {
  for (const char* name : {"a.gz", "a.zst", "empty.gz", "empty.zst"}) {
    const fs::path path = put(folder_ / name, std::string(name).starts_with('a') ? "plain text" : "");
    EXPECT_THAT(message_of<CorruptionError>([&] { open_bytes(path); }),
                AllOf(HasSubstr(path.string()), HasSubstr("not a")));
  }
}

TEST_F(Decompress, ReportsTruncationAtEveryByte) {
  for (const std::string& whole : {gzip("some text, some text"), zstd("some text, some text")}) {
    const fs::path path = folder_ / (whole[0] == '\x1f' ? "t.gz" : "t.zst");
    for (size_t n = 0; n < whole.size(); ++n) {
      put(path, whole.substr(0, n));
      EXPECT_THAT(message_of<CorruptionError>([&] { read_whole(path); }),
                  AllOf(HasSubstr(path.string()), HasSubstr("byte ")))
          << n;
    }
  }
}

TEST_F(Decompress, ReportsTrailingGarbage) {
  EXPECT_THROW(read_whole(put(folder_ / "a.gz", gzip("text") + "garbage")), CorruptionError);
  EXPECT_THROW(read_whole(put(folder_ / "a.zst", zstd("text") + "garbage")), CorruptionError);
}

// A flipped bit of a gzip file is detected, is in an unused header field, or hides the magic number. The zstd frames
// here have no checksum, so their literals may change.
TEST_F(Decompress, SurvivesEveryFlippedBit) {
  for (const std::string& whole : {gzip("some text, some text"), zstd("some text, some text")}) {
    size_t found = 0;
    for (size_t bit = 0; bit < whole.size() * 8; ++bit) {
      std::string flipped = whole;
      flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
      try {
        EXPECT_LT(read_whole(put(folder_ / "flipped", flipped)).size(), 1u << 20);
      } catch (const CorruptionError&) {
        ++found;
      }
    }
    EXPECT_GT(found, whole[0] == '\x1f' ? whole.size() * 4 : whole.size());
  }
}

TEST_F(Decompress, NamesAMissingFile) {
  EXPECT_THAT(message_of<IoError>([&] { open_bytes(folder_ / "absent"); }), HasSubstr("absent"));
}

// A reader that returns `step` bytes at a time.
class StringReader final : public ByteReader {
 public:
  StringReader(std::string text, size_t step) : text_(std::move(text)), step_(step) {}
  size_t read(char* out, size_t bytes) override {
    const size_t n = std::min({bytes, step_, text_.size() - at_});
    std::memcpy(out, text_.data() + at_, n);
    at_ += n;
    return n;
  }
  uint64_t offset() const override { return at_; }

 private:
  std::string text_;
  size_t step_, at_ = 0;
};

std::vector<std::string> lines_of(const std::string& text, size_t step) {
  StringReader reader(text, step);
  LineReader lines(reader, 8);
  std::vector<std::string> all;
  while (lines.next()) all.push_back(std::string(lines.text()) + (lines.too_long() ? "!" : ""));
  EXPECT_EQ(lines.number(), static_cast<int64_t>(all.size()));
  return all;
}

TEST(Lines, AreIndependentOfHowBytesArrive) {
  for (const size_t step : {1, 2, 3, 1000}) {
    EXPECT_EQ(lines_of("", step), (std::vector<std::string>{}));
    EXPECT_EQ(lines_of("\n", step), (std::vector<std::string>{""}));
    EXPECT_EQ(lines_of("a\nbc", step), (std::vector<std::string>{"a", "bc"}));
    EXPECT_EQ(lines_of("a\r\n\nb\n", step), (std::vector<std::string>{"a", "", "b"}));
    EXPECT_EQ(lines_of("12345678\n", step), (std::vector<std::string>{"12345678"}));
    EXPECT_EQ(lines_of("123456789\nok\n1234567890", step), (std::vector<std::string>{"12345678!", "ok", "12345678!"}));
  }
}

}  // namespace
}  // namespace witan
