#include "witan/tokenizer/models/unigram.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace witan {
namespace {

// The best sum of scores over all segmentations, by exhaustive search.
double best_score(const std::vector<std::string>& tokens, const std::vector<double>& scores, double unknown,
                  std::string_view text) {
  if (text.empty()) return 0;
  double best = -INFINITY;
  bool single = false;
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (!text.starts_with(tokens[id])) continue;
    single = single || tokens[id].size() == 1;
    best = std::max(best, scores[id] + best_score(tokens, scores, unknown, text.substr(tokens[id].size())));
  }
  return single ? best : std::max(best, unknown + best_score(tokens, scores, unknown, text.substr(1)));
}

TEST(Unigram, FindsTheBestOfAllSegmentations) {
  const std::vector<std::string> tokens = {"a", "b", "ab", "ba", "aab", "bb", "abba", "cab"};
  std::mt19937 random(5);
  std::uniform_real_distribution<double> score(-6, -1);
  for (int round = 0; round < 300; ++round) {
    std::vector<double> scores(tokens.size());
    for (double& each : scores) each = score(random);
    const Unigram unigram(tokens, scores, std::vector<bool>(tokens.size(), true), -20, ScoreType::f64);
    std::string text;
    for (size_t n = random() % 12; n > 0; --n) text += "abc"[random() % 3];
    std::vector<Unigram::Piece> pieces;
    unigram.segment(text, pieces);
    double total = 0;
    std::string joined;
    for (const auto& piece : pieces) {
      total += piece.id < 0 ? -20 : scores[static_cast<size_t>(piece.id)];
      joined += piece.text;
    }
    EXPECT_EQ(joined, text);
    EXPECT_NEAR(total, best_score(tokens, scores, -20, text), 1e-9) << text;
  }
}

TEST(Unigram, CharactersWithoutATokenAreUnknown) {
  const Unigram unigram({"a", "b"}, {-1, -2}, {true, false}, -11, ScoreType::f32);
  std::vector<Unigram::Piece> pieces;
  unigram.segment("ab\xE4\xB8\xAD\xFF", pieces);
  ASSERT_EQ(pieces.size(), 4u);
  EXPECT_EQ(pieces[0].id, 0);
  EXPECT_EQ(pieces[1].id, -1);  // not usable
  EXPECT_EQ(pieces[2].text, "\xE4\xB8\xAD");
  EXPECT_EQ(pieces[3].text, "\xFF");
}

}  // namespace
}  // namespace witan
