#include "witan/data/stats/repetition.h"

#include <nlohmann/json.hpp>
#include <sstream>

#include "data/data_support.h"
#include "witan/base/error.h"
#include "witan/base/json.h"
#include "witan/data/stats/text_measure.h"

namespace witan {
namespace {

RepetitionShares shares_of(const std::string& text) {
  return measure_repetition(text, measure_text(text).characters, HashedWords(text));
}

void expect_shares(const RepetitionShares& shares, const Json& expected, const std::string& text) {
  for (size_t rule = 0; rule < shares.size(); ++rule)
    EXPECT_NEAR(shares[rule], expected.at(rule).get<double>(), 1e-12) << kRepetitionRules[rule].name << " of " << text;
}

TEST(Repetition, IsWhatDatatroveMeasures) {
  const Json golden_shares = parse_json(read_file(golden("stats/repetition.json")), "repetition.json");
  for (const Json& one : golden_shares["texts"])
    expect_shares(shares_of(one["text"].get<std::string>()), one["shares"], one["text"].get<std::string>());
  std::istringstream rows(read_file(golden("stats/rows.jsonl")));
  size_t number = 0;
  for (std::string row; std::getline(rows, row); ++number) {
    const auto text = parse_json(row, "row")["text"].get<std::string>();
    expect_shares(shares_of(text), golden_shares["rows"].at(number), text);
  }
  EXPECT_EQ(number, golden_shares["rows"].size());
}

TEST(Repetition, OfNothingIsNone) {
  for (const char* text : {"", "\n", "\n\n\n", "word"})
    for (const double share : shares_of(text)) EXPECT_EQ(share, 0) << text;
}

// What a long text has left behind does not count in the next one.
TEST(Repetition, DoesNotDependOnTextsBefore) {
  const std::string text = "a b c a b c a b c a b c\na b c\na b c\n";
  const RepetitionShares alone = shares_of(text);
  std::string longer;
  for (int i = 0; i < 5000; ++i) longer += cat("a b c ", i, "\n");
  shares_of(longer);
  EXPECT_EQ(shares_of(text), alone);
}

}  // namespace
}  // namespace witan
