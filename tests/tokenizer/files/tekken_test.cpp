#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "support/message_of.h"
#include "witan/base/error.h"
#include "witan/base/files/file.h"
#include "witan/base/json.h"
#include "witan/tokenizer/files/tokenizer_files.h"
#include "witan/tokenizer/tokenizer.h"

namespace witan {
namespace {

Json tekken_file() {
  const fs::path path = fs::path(WITAN_SOURCE_DIR) / "tests/golden/tokenizer/kinds/tekken.json";
  return parse_json(read_file(path), "tekken.json");
}

std::string message(const char* pointer, const Json& value) {
  Json file = tekken_file();
  file[Json::json_pointer(pointer)] = value;
  return test::message_of<Error>([&] { parse_tekken(file.dump(), "t.json"); });
}

TEST(Tekken, SpecialTokensComeFirst) {
  const Tokenizer plain(parse_tekken(tekken_file().dump(), "t.json"));
  EXPECT_EQ(plain.vocab_size(), 375);  // the file has more tokens
  EXPECT_EQ(plain.token_bytes(3), "[INST]");
  EXPECT_EQ(plain.token_bytes(24), "<SPECIAL_24>");
  EXPECT_EQ(plain.end_of_text(), 2);
  EXPECT_EQ(plain.encode("[INST]", true), std::vector<int32_t>{3});
  Json named = tekken_file();
  named["special_tokens"] = {{{"rank", 0}, {"token_str", "<a>"}, {"is_control", true}}};
  EXPECT_EQ(Tokenizer(parse_tekken(named.dump(), "t.json")).token_bytes(1), "<SPECIAL_1>");
}

TEST(Tekken, ErrorsNameTheDamage) {
  EXPECT_EQ(message("/config", 3), "t.json: not a tekken.json: it must be an object with a \"config\"");
  EXPECT_EQ(message("/config/pattern", 3),
            "t.json: config.pattern is missing or of the wrong type; download the file again");
  EXPECT_EQ(message("/config/default_num_special_tokens", 376),
            "t.json: config.default_vocab_size is 375 and config.default_num_special_tokens 376");
  EXPECT_EQ(message("/config/default_num_special_tokens", 19),
            "t.json: there are 20 special tokens, more than config.default_num_special_tokens = 19");
  EXPECT_EQ(message("/vocab/1/rank", 2), "t.json: vocab[1].rank is 2 instead of 1");
  EXPECT_EQ(message("/vocab/1/token_bytes", "?"), "t.json: vocab[1].token_bytes is not base64 of a token");
  EXPECT_EQ(message("/config/default_vocab_size", 1000),
            "t.json: vocab has 380 tokens, too few for config.default_vocab_size = 1000");
  EXPECT_EQ(message("/special_tokens", Json::array({{{"rank", 1}, {"token_str", "a"}}})),
            "t.json: special_tokens[0].rank is 1 instead of 0");
}

TEST(Tekken, DamagedBytesAreRefusedOrHarmless) {
  const std::string file = tekken_file().dump();
  std::mt19937 random(8);
  int refused = 0;
  for (int round = 0; round < 300; ++round) {
    std::string damaged = file.substr(0, random() % 2 ? file.size() : random() % file.size());
    damaged += ' ';
    damaged[random() % damaged.size()] = static_cast<char>(random());
    try {
      Tokenizer(parse_tekken(damaged, "damaged")).encode("the thing");
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 150);
}

}  // namespace
}  // namespace witan
