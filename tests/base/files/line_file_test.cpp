#include "witan/base/files/line_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <vector>

#include "support/temp_folder.h"
#include "witan/base/error.h"

namespace witan {
namespace {

using test::TempFolder;

struct Found {
  uint64_t offset;
  std::string line;
  bool operator==(const Found&) const = default;
};

template <class Lines>
std::vector<Found> all_of(Lines lines) {
  std::vector<Found> found;
  while (lines.next()) found.push_back({lines.offset(), std::string(lines.line())});
  EXPECT_FALSE(lines.next()) << "further calls return nothing";
  return found;
}

TEST(LineFile, ReadsWholeLinesInBothDirections) {
  const TempFolder folder;
  const fs::path path = folder / "lines";
  const std::string longest(300, 'x');
  for (const std::string& text :
       {std::string(), std::string("\n"), std::string("torn"), std::string("one\n"), std::string("one\n\n\ntwo\ntorn"),
        "a\n" + longest + "\nb\n" + longest, longest + "\n" + longest + "\nc\n"}) {
    std::ofstream(path, std::ios::binary) << text;
    std::vector<Found> expected;
    for (size_t begin = 0, feed; (feed = text.find('\n', begin)) != std::string::npos; begin = feed + 1)
      expected.push_back({begin, text.substr(begin, feed - begin)});
    for (const size_t piece : {1, 2, 3, 5, 64, 4096}) {
      EXPECT_EQ(all_of(LinesForward(path, 0, piece)), expected) << text << " in pieces of " << piece;
      auto backward = all_of(LinesBackward(path, piece));
      std::reverse(backward.begin(), backward.end());
      EXPECT_EQ(backward, expected) << text << " in pieces of " << piece;
      if (expected.size() < 2) continue;
      const auto rest = all_of(LinesForward(path, expected[1].offset, piece));
      EXPECT_EQ(rest, std::vector(expected.begin() + 1, expected.end()));
    }
  }
}

TEST(LineFile, RefusesPathsThatAreNotFiles) {
  const TempFolder folder;
  EXPECT_THROW(LinesForward(folder / "missing"), IoError);
  EXPECT_THROW(LinesBackward{folder.path()}, IoError);
}

}  // namespace
}  // namespace witan
