#include "witan/fetch/download.h"

#include <gtest/gtest.h>

#include <fstream>

#include "support/temp_folder.h"
#include "witan/base/error.h"

namespace witan::fetch {
namespace {

std::string text_of(const std::vector<ByteRange>& ranges) {
  std::string text;
  for (const ByteRange& range : ranges) text += cat("[", range.begin, ",", range.end, ")");
  return text;
}

TEST(PartFiles, RememberMissingRangesWhenReopened) {
  const test::TempFolder folder;
  {
    PartFile part(folder.path(), "x", 100);
    EXPECT_EQ(text_of(part.missing()), "[0,100)");
    part.write(40, std::string(20, 'b'));
    part.record({40, 50});
    part.record({50, 60});
    part.record({90, 100});
    part.record({55, 55});
    EXPECT_EQ(text_of(part.missing()), "[0,40)[60,90)");
  }
  EXPECT_EQ(PartFile::bytes_there(folder.path(), "x", 100), 30u);
  EXPECT_EQ(PartFile::bytes_there(folder.path(), "x", 101), 0u);
  PartFile part(folder.path(), "x", 100);
  EXPECT_EQ(text_of(part.missing()), "[0,40)[60,90)");
  part.record({0, 95});
  EXPECT_EQ(text_of(part.missing()), "");
  part.finish(folder / "whole");
  const std::string bytes = read_file(folder / "whole");
  EXPECT_EQ(bytes.substr(40, 20), std::string(20, 'b'));
  EXPECT_EQ(bytes.size(), 100u);
  EXPECT_FALSE(fs::exists(folder / "x.part"));
  EXPECT_FALSE(fs::exists(folder / "x.ranges"));
}

TEST(PartFiles, DiscardWrongRanges) {
  const test::TempFolder folder;
  PartFile part(folder.path(), "x", 10);
  part.record({0, 10});
  part.clear();
  EXPECT_EQ(text_of(part.missing()), "[0,10)");
  EXPECT_EQ(PartFile::bytes_there(folder.path(), "x", 10), 0u);
}

TEST(PartFiles, StartOverForAnotherSize) {
  const test::TempFolder folder;
  { PartFile(folder.path(), "x", 10).record({0, 5}); }
  PartFile part(folder.path(), "x", 20);
  EXPECT_EQ(text_of(part.missing()), "[0,20)");
}

// A journal damaged by a power failure or by hand is ignored: everything is fetched again.
TEST(PartFiles, StartOverWhenTheJournalIsDamaged) {
  const test::TempFolder folder;
  const std::pair<const char*, const char*> journals[] = {
      {"0 4\n4 6", "[4,10)"},  // the last line is torn
      {"0 4\n", "[4,10)"},    {"0 11\n", "[0,10)"},   {"4 4\n", "[0,10)"},  {"-1 4\n", "[0,10)"},
      {"0 4 \n", "[0,10)"},   {"\0\0\0\0", "[0,10)"}, {"text\n", "[0,10)"}, {"0  4\n", "[0,10)"},
  };
  for (const auto& [journal, missing] : journals) {
    { PartFile(folder.path(), "x", 10).clear(); }
    std::ofstream(folder / "x.ranges") << journal;
    {
      PartFile part(folder.path(), "x", 10);
      EXPECT_EQ(text_of(part.missing()), missing) << journal;
      part.record({0, 7});
    }
    EXPECT_EQ(text_of(PartFile(folder.path(), "x", 10).missing()), "[7,10)") << "what is recorded behind " << journal;
  }
  { PartFile(folder.path(), "x", 10).record({0, 4}); }
  fs::remove(folder / "x.part");
  EXPECT_EQ(text_of(PartFile(folder.path(), "x", 10).missing()), "[0,10)");
}

}  // namespace
}  // namespace witan::fetch
