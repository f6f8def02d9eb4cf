#include "witan/data/tar/webdataset.h"

#include "data/data_support.h"
#include "data/tables/golden_tables.h"
#include "support/bytes_in_memory.h"
#include "witan/base/error.h"
#include "witan/data/tar/tar_reader.h"

namespace witan {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Texts, and in brackets the reasons for unusable samples.
std::vector<std::string> samples_of(const fs::path& path, const TableColumns& columns) {
  std::vector<std::string> samples;
  const auto reader = open_webdataset(path, columns);
  for (TableCell cell; reader->next(cell);) {
    samples.push_back(cell.reason.empty() ? std::string(cell.text) : "[" + cell.reason + "]");
    EXPECT_EQ(cell.row, static_cast<int64_t>(samples.size()));
  }
  EXPECT_GT(reader->offset(), 100u);
  EXPECT_LE(reader->offset(), fs::file_size(path)) << "padding is skipped";
  return samples;
}

TEST(Webdataset, ReadsTheTextOfEverySample) {
  EXPECT_THAT(samples_of(golden_table("webdataset.tar"), {.text = "text"}),
              ElementsAre("first", "zweiter Text, Größe", "[sample 000/three has no .json and no .txt]", "",
                          "[sample 000/five: no key \"text\"]"));
  EXPECT_THAT(samples_of(golden_table("webdataset.tar"), {.text = "caption"}),
              ElementsAre("a", "b", "[sample 000/three has no .json and no .caption]",
                          "[sample 000/four has no .json and no .caption]", "[sample 000/five: no key \"caption\"]"));
  EXPECT_THAT(samples_of(golden_table("webdataset.tar"), {.text = "seg.txt"})[3], "not this");
}

TEST(Webdataset, ReadsTheJsonOfEverySample) {
  const auto samples = samples_of(golden_table("webdataset.tar"), {.json = {"messages"}});
  ASSERT_EQ(samples.size(), 5u);
  EXPECT_EQ(parse_json(samples[4], "json")["messages"][1]["content"], "yo");
  EXPECT_EQ(samples[2], "[sample 000/three has no .json]");
}

TEST(Webdataset, ReadsCompressedArchives) {
  const TempFolder folder;
  const std::string bytes = read_file(golden_table("webdataset.tar"));
  put(folder / "a.tar.gz", gzip(bytes));
  put(folder / "a.tar.zst", zstd(bytes));
  const auto expected = samples_of(golden_table("webdataset.tar"), {});
  EXPECT_EQ(samples_of(folder / "a.tar.gz", {}), expected);
  EXPECT_EQ(samples_of(folder / "a.tar.zst", {}), expected);
}

TEST(Webdataset, LongFilesAreUnusable) {
  EXPECT_THAT(samples_of(golden_table("webdataset.tar"), {.text = "text", .row_bytes = 4})[0],
              "[it is longer than 4 bytes]");
}

// Covers the long names of ustar, pax and GNU; folders and links are skipped.
TEST(Webdataset, ReadsNamesOfEveryFormat) {
  for (const char* name : {"names_ustar.tar", "names_pax.tar", "names_gnu.tar"}) {
    const auto bytes = open_bytes(golden_table(name));
    tar::TarReader archive(*bytes);
    std::string folders, contents;
    for (int i = 0; i < 8; ++i) folders += "folder/";
    for (int i = 0; i < 2; ++i) {
      tar::Member member;
      ASSERT_TRUE(archive.next(member)) << name;
      EXPECT_EQ(member.name, folders + (i == 0 ? "s0" : std::string(90, 'd') + "1") + ".txt") << name;
      archive.read(contents, 100);
      EXPECT_EQ(contents, "text " + std::to_string(i)) << name;
    }
    tar::Member member;
    EXPECT_FALSE(archive.next(member));
  }
}

// The package webdataset converts extensions to lower case.
TEST(Webdataset, ExtensionsAreCaseInsensitive) {
  std::string bytes = read_file(golden_table("webdataset.tar"));
  size_t renamed = 0;
  for (size_t block = 0; block + 512 <= bytes.size(); block += 512) {
    const std::string name = bytes.substr(block, bytes.find('\0', block) - block);
    if (!name.starts_with("000/") || !name.ends_with(".txt")) continue;
    bytes.replace(block + name.size() - 3, 3, "TXT");
    unsigned sum = 0;
    for (size_t i = 0; i < 512; ++i) sum += i >= 148 && i < 156 ? ' ' : static_cast<unsigned char>(bytes[block + i]);
    std::string digits(6, '0');
    for (size_t i = 6; i-- > 0; sum /= 8) digits[i] = static_cast<char>('0' + sum % 8);
    bytes.replace(block + 148, 8, digits + std::string("\0 ", 2));
    ++renamed;
  }
  ASSERT_GE(renamed, 3u);
  const TempFolder folder;
  put(folder / "a.tar", bytes);
  EXPECT_EQ(samples_of(folder / "a.tar", {}), samples_of(golden_table("webdataset.tar"), {}));
  EXPECT_EQ(samples_of(folder / "a.tar", {.text = "SEG.txt"})[3], "not this");
}

void read_all_samples(const std::string& bytes) {
  const auto reader = read_webdataset("a.tar", std::make_unique<test::BytesInMemory>(bytes), {.row_bytes = 1 << 12});
  for (TableCell cell; reader->next(cell);) EXPECT_LE(cell.text.size(), bytes.size());
}

TEST(Webdataset, ErrorsNameThePlaceOfDamage) {
  const std::string whole = read_file(golden_table("webdataset.tar"));
  EXPECT_THAT(
      message_of<CorruptionError>([&] { read_all_samples("some text" + std::string(600, 'a')); }),
      AllOf(HasSubstr("a.tar: its beginning: a number in its header is not octal"), HasSubstr("copy or download")));
  EXPECT_THAT(message_of<CorruptionError>([&] { read_all_samples(whole.substr(0, 2048)); }),
              AllOf(HasSubstr("a.tar: at or after 000/one"), HasSubstr("ends without its end mark")));
  EXPECT_THAT(message_of<CorruptionError>([&] { read_all_samples(""); }), HasSubstr("ends without its end mark"));
}

TEST(Webdataset, SurvivesEveryTruncationAndFlippedBit) {
  for (const char* name : {"webdataset.tar", "names_pax.tar", "names_gnu.tar"}) {
    constexpr size_t kBlock = 512, kEndMark = 2 * kBlock;
    std::string whole = read_file(golden_table(name));
    whole.resize(whole.find_last_not_of('\0') / kBlock * kBlock + kBlock + kEndMark);  // without unread bytes
    for (size_t at = 0; at < whole.size(); ++at) {
      for (const bool flip : {false, true}) {
        std::string damaged = flip ? whole : whole.substr(0, at);
        if (flip) damaged[at] = static_cast<char>(damaged[at] ^ (1 << at % 8));
        try {
          read_all_samples(damaged);
        } catch (const Error& error) {
          EXPECT_THAT(error.what(), HasSubstr("a.tar: "));
        }
      }
    }
  }
}

TEST(Webdataset, WholeRowsHaveTheTextAndTheJson) {
  const auto samples = samples_of(golden_table("webdataset.tar"), {.whole = true});
  ASSERT_EQ(samples.size(), 5u);
  EXPECT_EQ(parse_json(samples[0], "json"), (Json{{"text", "first"}, {"caption", "a"}})) << "the .txt takes precedence";
  EXPECT_EQ(parse_json(samples[1], "json"), (Json{{"text", "zweiter Text, Größe"}, {"caption", "b"}}));
  EXPECT_EQ(samples[2], "[sample 000/three has no .json and no .txt]");
  EXPECT_EQ(samples[3], R"({"text":""})");
  EXPECT_EQ(parse_json(samples[4], "json")["messages"][1]["content"], "yo");
}

}  // namespace
}  // namespace witan
