#include "witan/tokenizer/text/charsmap.h"

#include <gtest/gtest.h>

#include <random>

#include "support/message_of.h"
#include "witan/base/error.h"
#include "witan/base/files/file.h"
#include "witan/tokenizer/models/sentencepiece.h"

namespace witan {
namespace {

// The rules of make_kinds.py.
std::string charsmap_bytes() {
  const fs::path path = fs::path(WITAN_SOURCE_DIR) / "tests/golden/tokenizer/kinds/unigram.model";
  return parse_sentencepiece_model(read_file(path), "unigram.model").charsmap;
}

TEST(Charsmap, FindsTheRules) {
  const Charsmap map(charsmap_bytes());
  EXPECT_EQ(map.longest("\u00A0x")->replacement, " ");
  EXPECT_EQ(map.longest("\u00A0x")->length, 2u);
  EXPECT_EQ(map.longest("\uFB01")->replacement, "fi");
  EXPECT_EQ(map.longest("e\u0301x")->replacement, "\u00E9");
  EXPECT_EQ(map.longest("\x1F")->replacement, "");
  EXPECT_FALSE(map.longest("e"));
  EXPECT_FALSE(map.longest(""));
  EXPECT_EQ(map.normalize_graphemes("e\u0301\uFB01 x\u3000"), "\u00E9fi x ");
}

TEST(Charsmap, NamesWhatIsBroken) {
  EXPECT_EQ(test::message_of<CorruptionError>([] { Charsmap("abcd"); }),
            "the compiled character map has 4 bytes, too few for its header: download the tokenizer file again");
  EXPECT_EQ(test::message_of<CorruptionError>([] { Charsmap(std::string("\x05\0\0\0ab", 6)); }),
            "the compiled character map declares a trie of 5 bytes, but has only 2: download the tokenizer file again");
}

TEST(Charsmap, DamagedTriesStayInside) {
  const std::string whole = charsmap_bytes();
  std::mt19937 random(9);
  for (int round = 0; round < 2000; ++round) {
    std::string damaged = whole;
    for (int i = 0; i < 8; ++i) damaged[4 + random() % (damaged.size() - 4)] = static_cast<char>(random());
    std::string text;
    for (int i = 0; i < 30; ++i) text += static_cast<char>(random());
    const Charsmap map(damaged);
    for (size_t at = 0; at < text.size(); ++at) {
      const auto rule = map.longest(std::string_view(text).substr(at));
      ASSERT_LE(rule ? rule->length : 0, text.size() - at);
    }
    map.normalize_graphemes(text);
  }
}

}  // namespace
}  // namespace witan
