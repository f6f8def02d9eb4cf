#include "witan/convert/ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/message_of.h"
#include "witan/base/error.h"

namespace witan {
namespace {

using ::testing::HasSubstr;

Ledger some_ledger() {
  Ledger ledger;
  ledger.from = "hf";
  ledger.to = "witan";
  ledger.architecture = "llama";
  ledger.style = {ExpertStorage::fused, true, true};
  ledger.source = {{"a", "BF16", {2, 3}, std::string(32, '1'), {"x", "y"}, ""},
                   {"mask", "U8", {4}, std::string(32, '2'), {}, "computed"}};
  ledger.target = {{"x", "F32", {6}, std::string(32, '3'), {"a"}, ""}};
  ledger.files = {{"tokenizer.json", 12, std::string(32, '4')}};
  return ledger;
}

TEST(Ledger, RoundTrips) {
  const std::string text = some_ledger().text();
  const Ledger again = parse_ledger(text, "ledger.json");
  EXPECT_EQ(again.text(), text);
  EXPECT_EQ(again.source[0].others, (std::vector<std::string>{"x", "y"}));
  EXPECT_TRUE(again.style.bare && again.style.tied_copy);
}

TEST(Ledger, RecordsSourceAndDestination) {
  const std::string summary = some_ledger().summary();
  EXPECT_THAT(summary, HasSubstr("2 tensors of hf, 10 elements (BF16, U8), 16 B"));
  EXPECT_THAT(summary, HasSubstr("mask: computed"));
  EXPECT_THAT(summary, HasSubstr("1 of 2 tensors were written; the other 1 is explained above"));
}

TEST(Ledger, ErrorsNameDamage) {
  const std::string text = some_ledger().text();
  for (size_t length = 0; length + 2 < text.size(); length += 1 + text.size() / 50)
    EXPECT_THROW(parse_ledger(text.substr(0, length), "ledger.json"), Error) << length;
  std::string other = text;
  other.replace(other.find("\"fused\""), 7, "\"melted\"");
  EXPECT_THAT(test::message_of<CheckpointError>([&] { parse_ledger(other, "ledger.json"); }),
              HasSubstr("ledger.json: experts = melted is unknown"));
  EXPECT_THAT(test::message_of<CheckpointError>([&] { parse_ledger(R"({"format": "x"})", "ledger.json"); }),
              HasSubstr("is no ledger"));
}

}  // namespace
}  // namespace witan
