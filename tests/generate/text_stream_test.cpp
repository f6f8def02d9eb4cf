// TextStream must give the same text for any token boundaries, and no part of a stop string.
#include "witan/generate/text_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/words.h"

namespace witan {
namespace {

struct Streamed {
  std::string text;
  std::vector<std::string> pieces;
  bool stopped;
  int64_t characters;
  bool operator==(const Streamed&) const = default;
};

Streamed stream(const std::vector<std::string>& words, const std::vector<std::string>& stops) {
  const Tokenizer tokenizer = test::tokenizer_of(words);
  TextStream stream(tokenizer, stops);
  Streamed out{};
  for (const std::string& word : words) {
    out.pieces.push_back(stream.push(*tokenizer.token_id(word)));
    out.text += out.pieces.back();
    if (stream.stopped()) break;
  }
  out.text += stream.flush();
  out.stopped = stream.stopped();
  out.characters = stream.characters();
  return out;
}

TEST(TextStream, StopStringsMaySpanTokens) {
  const Streamed out = stream({"one", " tw", "o th", "ree"}, {"two three"});
  EXPECT_EQ(out.text, "one ");
  EXPECT_TRUE(out.stopped);
}

TEST(TextStream, WithholdsPossibleStopStrings) {
  const Streamed out = stream({"a", "#", "#", "b", "##"}, {"###"});
  EXPECT_THAT(out.pieces, ::testing::ElementsAre("a", "", "", "##b", ""));
  EXPECT_EQ(out.text, "a##b##");
  EXPECT_FALSE(out.stopped);
}

TEST(TextStream, FindsStopStringsThatRestartWithinThemselves) {
  EXPECT_EQ(stream({"ab", "ab", "abc", "d"}, {"ababc"}).text, "ab");
}

// Every division of the same letters into tokens gives the same text.
TEST(TextStream, TextDoesNotDependOnTokenBoundaries) {
  const std::string text = "xabcaby";
  for (const std::vector<std::string>& stops :
       {std::vector<std::string>{"abc", "b"}, {"bca", "abcab"}, {"ca", "abc"}, {"y"}, {"x"}, {"z"}, {}}) {
    const Streamed whole = stream({text}, stops);
    for (unsigned cuts = 1; cuts < 64; ++cuts) {
      std::vector<std::string> words(1);
      for (size_t i = 0; i < text.size(); ++i) {
        words.back() += text[i];
        if (i + 1 < text.size() && (cuts >> i & 1)) words.emplace_back();
      }
      const Streamed cut = stream(words, stops);
      EXPECT_EQ(cut.text, whole.text) << cuts;
      EXPECT_EQ(cut.stopped, whole.stopped) << cuts;
    }
  }
}

TEST(TextStream, TheFirstCompleteStopStringCounts) {
  EXPECT_EQ(stream({"abcd"}, {"abcd", "b"}).text, "a");
  EXPECT_EQ(stream({"abcd"}, {"bc", "abc"}).text, "");
  EXPECT_EQ(stream({"abcd"}, {"", "cd"}).text, "ab");
}

TEST(TextStream, CountsCharactersThatSpanTokens) {
  const Streamed out = stream({"\xc3", "\xa9", "e", "\xe2\x82"}, {});
  EXPECT_THAT(out.pieces, ::testing::ElementsAre("", "\xc3\xa9", "e", ""));
  EXPECT_EQ(out.text,
            "\xc3\xa9"
            "e\xef\xbf\xbd");
  EXPECT_EQ(out.characters, 3);
}

TEST(TextStream, StopStringsMayHaveMultiByteCharacters) {
  const Streamed out = stream({"a\xc3", "\xa9", "b\xc3", "\xa9!"}, {"b\xc3\xa9"});
  EXPECT_EQ(out.text, "a\xc3\xa9");
  EXPECT_TRUE(out.stopped);
}

TEST(TextStream, NothingFollowsTheEnd) {
  const Tokenizer tokenizer = test::tokenizer_of({"ab", "c"});
  TextStream stream(tokenizer, {"b"});
  EXPECT_EQ(stream.push(*tokenizer.token_id("ab")), "a");
  EXPECT_EQ(stream.push(*tokenizer.token_id("c")), "");
  EXPECT_EQ(stream.flush(), "");
}

}  // namespace
}  // namespace witan
