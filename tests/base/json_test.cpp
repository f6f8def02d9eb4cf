#include "witan/base/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "support/message_of.h"
#include "witan/base/error.h"
#include "witan/base/text.h"

namespace witan {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

std::string refusal(std::string_view text, int max_depth = 64) {
  return test::message_of<CorruptionError>([&] { parse_json(text, "x.json", max_depth); });
}

TEST(ParseJson, ReadsEveryKindOfValue) {
  const Json json = parse_json(
      R"( {"a": [1, -2, 2.5, true, null, "\u00e9\n"], "b": {"c": {}}, "d": 18446744073709551615} )", "x.json");
  EXPECT_EQ(json["a"].size(), 6u);
  EXPECT_EQ(json["a"][1].get<int64_t>(), -2);
  EXPECT_EQ(json["a"][2].get<double>(), 2.5);
  EXPECT_EQ(json["a"][3].get<bool>(), true);
  EXPECT_TRUE(json["a"][4].is_null());
  EXPECT_EQ(json["a"][5].get<std::string>(), "\xC3\xA9\n");
  EXPECT_TRUE(json["b"]["c"].empty());
  EXPECT_EQ(json["d"].get<uint64_t>(), ~0ull);
  EXPECT_EQ(parse_json("7", "x.json").get<int>(), 7);
}

// Parsing siblings reallocates the parents' storage while children are being read.
TEST(ParseJson, KeepsDeepAndWideNesting) {
  std::string text = "[";
  for (int i = 0; i < 300; ++i) text += (i ? ",[{\"k\":[" : "[{\"k\":[") + std::to_string(i) + "]},2]";
  const Json json = parse_json(text + "]", "x.json");
  for (size_t i = 0; i < 300; ++i) EXPECT_EQ(json[i][0]["k"][0].get<size_t>(), i);
}

TEST(ParseJson, NamesSourceAndByte) {
  EXPECT_THAT(refusal("{\"a\": tru}"),
              AllOf(StartsWith("x.json: byte 10: not valid JSON ("), HasSubstr("invalid literal")));
  EXPECT_THAT(refusal(""), StartsWith("x.json: byte 1: not valid JSON ("));
}

TEST(ParseJson, IsStrict) {
  for (const char* text : {"{} {}", "[1,]", "{\"a\":1,}", "{a: 1}", "'a'", "01", "+1", ".5", "1.", "NaN", "Infinity",
                           "// c\n1", "\"\t\"", "\"\\x41\"", "[1 2]", "{\"a\" 1}", "1e999"})
    EXPECT_THAT(refusal(text), HasSubstr("not valid JSON")) << text;
}

TEST(ParseJson, RefusesTruncationAtEveryByte) {
  const std::string text = R"({"version": "1.0", "list": [1, 2.5e3, {"k": "\u00e9"}], "flag": false})";
  for (size_t bytes = 0; bytes < text.size(); ++bytes)
    EXPECT_THAT(refusal(text.substr(0, bytes)), HasSubstr("not valid JSON")) << bytes;
  EXPECT_NO_THROW(parse_json(text, "x.json"));
}

TEST(ParseJson, RefusesInvalidUtf8AndSaysSoInValidUtf8) {
  for (const std::string bad : {"\xFF", "\xC0\x80", "\xED\xA0\x80", "\xE2\x82", "\xF4\x90\x80\x80"}) {
    const std::string message = refusal("{\"a\": \"" + bad + "\"}");
    EXPECT_THAT(message, HasSubstr("UTF-8"));
    EXPECT_EQ(find_invalid_utf8(message), std::string_view::npos);
  }
  EXPECT_THAT(refusal(R"("\ud800")"), HasSubstr("surrogate"));
}

TEST(ParseJson, RefusesDuplicateKeys) {
  EXPECT_EQ(refusal(R"({"a": 1, "b": {"a": 2}, "a": 3})"), R"(x.json: the key "a" appears twice in one object)");
  EXPECT_EQ(refusal(R"({"\u0061": 1, "a": 3})"), R"(x.json: the key "a" appears twice in one object)");
  EXPECT_NO_THROW(parse_json(R"([{"a": 1}, {"a": 2}])", "x.json"));
}

TEST(ParseJson, BoundsTheDepth) {
  const auto nested = [](int depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_NO_THROW(parse_json(nested(64), "x.json"));
  EXPECT_EQ(refusal(nested(65)), "x.json: nested deeper than 64");
  EXPECT_EQ(refusal(R"({"a": {"b": {}}})", 2), "x.json: nested deeper than 2");
  EXPECT_EQ(refusal(std::string(5'000'000, '[')), "x.json: nested deeper than 64");
}

// File contents must not drown out the error.
TEST(ParseJson, KeepsMessagesShort) {
  EXPECT_LT(refusal("\"" + std::string(1 << 20, 'x')).size(), 300u);
  const std::string key = "\"" + std::string(1 << 20, 'k') + "\": 1";
  EXPECT_LT(refusal("{" + key + "," + key + "}").size(), 200u);
}

TEST(JsonInteger, IsWholeAndInRange) {
  EXPECT_EQ(json_integer(Json(7)), 7);
  EXPECT_EQ(json_integer(Json(-7), -7, 0), -7);
  EXPECT_EQ(json_integer(parse_json("9223372036854775807", "a"), 0, INT64_MAX), INT64_MAX);
  for (const char* wrong : {"-1", "8", "9223372036854775808", "1.0", "1e300", "\"7\"", "null", "[7]", "true"})
    EXPECT_THROW(json_integer(parse_json(wrong, "a"), 0, 7), Json::out_of_range) << wrong;
}

}  // namespace
}  // namespace witan
