#include "witan/data/text/jsonl.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace witan {
namespace {

using ::testing::HasSubstr;

TEST(Jsonl, FindsTheText) {
  JsonlParser parser("text");
  EXPECT_EQ(parser.parse(R"({"text": "hello"})").text, "hello");
  EXPECT_EQ(parser.parse(R"( {"id": 1, "text": "a\n\"b\" \u00e9 \ud83d\ude00", "meta": {"text": 3}} )").text,
            "a\n\"b\" é 😀");
  EXPECT_EQ(parser.parse(R"({"text": "a\u0000b"})").text, std::string_view("a\0b", 3));
  const JsonlRow empty = parser.parse(R"({"text": ""})");
  EXPECT_TRUE(empty.good());
  EXPECT_EQ(empty.text, "");
  EXPECT_EQ(JsonlParser("content").parse(R"({"text": 1, "content": "c"})").text, "c");
}

TEST(Jsonl, AcceptsNumbersBeyondSixtyFourBits) {
  JsonlParser parser("text");
  EXPECT_EQ(parser.parse(R"({"id": 123456789012345678901234567890, "text": "big"})").text, "big");
  EXPECT_THAT(parser.parse(R"({"id": 123456789012345678901234567890})").reason, HasSubstr("no key \"text\""));
  EXPECT_THAT(parser.parse(R"({"id": 01, "text": "x"})").reason, HasSubstr("not valid JSON"));
}

TEST(Jsonl, ErrorsNameTheProblem) {
  JsonlParser parser("text");
  const std::pair<std::string, std::string> rows[] = {
      {R"({"text": "unfinished)", "not valid JSON"},
      {R"({"text": "x"} trailing)", "not valid JSON"},
      {R"({"text": "x", "other": tru})", "not valid JSON"},
      {R"({"text": "\ud800"})", "not valid JSON"},
      {"{\"text\": \"control \x01\"}", "not valid JSON"},
      {"{\"text\": \"\xff\"}", "invalid UTF-8"},
      {"{\"text\": \"x\", \"other\": \"\xc3\"}", "invalid UTF-8"},
      {R"(["text"])", "an array, not an object"},
      {R"("text")", "a string, not an object"},
      {"{}", "no key \"text\""},
      {R"({"Text": "x"})", "no key \"text\""},
      {R"({"text": 5})", "a number, not a string"},
      {R"({"text": null})", "null, not a string"},
      {R"({"text": ["x"]})", "an array, not a string"},
      {R"({"text": "x", "text": "y"})", "appears twice"},
      {R"({"text": "x", "deep": )" + std::string(100, '[') + std::string(100, ']') + "}", "nested deeper than 64"},
  };
  for (const auto& [row, why] : rows) {
    EXPECT_THAT(parser.parse(row).reason, HasSubstr(why)) << row;
    EXPECT_EQ(parser.parse(R"({"text": "good"})").text, "good");  // the parser has recovered
  }
}

TEST(Jsonl, RefusesEveryTruncationOfARow) {
  JsonlParser parser("text");
  const std::string row = R"({"id": 12, "text": "a\u00e9b", "list": [true, null, {"x": 1.5e3}]})";
  ASSERT_TRUE(parser.parse(row).good());
  for (size_t n = 0; n < row.size(); ++n) EXPECT_FALSE(parser.parse(row.substr(0, n)).good()) << n;
}

TEST(Jsonl, GrowsWithLongRows) {
  JsonlParser parser("text");
  for (const size_t size : {10, 100'000, 3'000'000, 10})
    EXPECT_EQ(parser.parse("{\"text\": \"" + std::string(size, 'x') + "\"}").text.size(), size);
}

TEST(Jsonl, FollowsDottedPaths) {
  JsonlParser parser("meta.title");
  EXPECT_EQ(parser.parse(R"({"meta": {"title": "below", "text": 1}})").text, "below");
  EXPECT_EQ(parser.parse(R"({"meta": {"title": "below"}, "meta.title": "itself"})").text, "itself");
  EXPECT_EQ(parser.parse(R"({"n": 123456789012345678901234567890, "meta": {"title": "big"}})").text, "big");
  EXPECT_EQ(JsonlParser("a.b.c").parse(R"({"a": {"x": 1}, "a.b": {"c": "dots in names"}})").text, "dots in names");
  for (const char* row : {R"({"meta": "title"})", R"({"meta": {"Title": "x"}})", R"({"metatitle": "x"})", "{}",
                          R"({"n": 123456789012345678901234567890, "meta": {"n": 1}})"})
    EXPECT_THAT(parser.parse(row).reason, HasSubstr("no key \"meta.title\"")) << row;
  EXPECT_THAT(parser.parse(R"({"meta": {"title": 5}})").reason, HasSubstr("a number, not a string"));
  EXPECT_THAT(JsonlParser("a.b.c").parse(R"({"a": {"b.c": "x"}, "a.b": {"c": "y"}})").reason,
              HasSubstr("appears twice"));
  EXPECT_TRUE(JsonlParser("text", {"meta.title"}).parse(R"({"text": "a", "meta": {"title": "b"}})").good());
}

}  // namespace
}  // namespace witan
