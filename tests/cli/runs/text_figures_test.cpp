#include "witan/cli/runs/text_figures.h"

#include <gtest/gtest.h>

namespace witan::cli {
namespace {

TEST(TextCurves, DrawsCrossingCurves) {
  const Curve falling = {{0, 4}, {1, 3}, {2, 2}, {3, 1}, {4, 0}}, rising = {{0, 0}, {1, 1}, {2, 2}, {3, 3}, {4, 4}};
  EXPECT_EQ(text_curves({{'a', falling}, {'b', rising}}, 5, 5),
            "        4 |a   b\n"
            "          | a b\n"
            "        2 |  *\n"
            "          | b a\n"
            "        0 |b   a\n"
            "          +-----\n"
            "     step  0   4\n");
}

// Losses start high: the highest twentieth is drawn at the edge.
TEST(TextCurves, InitialStepsDoNotFlattenTheRest) {
  Curve curve = {{0, 1000}};
  for (int i = 1; i <= 40; ++i) curve.push_back({static_cast<double>(i), 1.0 * (40 - i)});
  const std::string picture = text_curves({{'a', curve}}, 41, 4);
  EXPECT_TRUE(picture.starts_with("       38 |a")) << picture;
}

// A curve with few values is not clipped.
TEST(TextCurves, DrawsShortCurvesFarAboveTheOthers) {
  Curve low;
  for (int i = 0; i <= 100; ++i) low.push_back({static_cast<double>(i), 2});
  const std::string picture = text_curves({{'a', low}, {'b', {{0, 6}, {50, 4}}}}, 3, 5);
  EXPECT_EQ(picture.substr(0, picture.find("          +")),
            "        6 |b\n"
            "          |\n"
            "        4 | b\n"
            "          |\n"
            "        2 |aaa\n");
}

TEST(TextCurves, HandlesOnePointAndNone) {
  EXPECT_EQ(text_curves({{'a', {}}}, 5, 3), "");
  EXPECT_NE(text_curves({{'a', {{7, 2.5}}}}, 5, 3).find("2.5 |a"), std::string::npos);
}

TEST(TextTable, ColumnsFitTheirWidestCell) {
  EXPECT_EQ(text_table({{"run", "steps"}, {"first-light", "7"}}, {Align::left, Align::right}),
            "run          steps\n"
            "first-light      7\n");
  EXPECT_EQ(text_table({{"ü", "x"}, {"ab", "\x1b[31my\x1b[0m"}, {"c"}}, {}), "ü   x\nab  \x1b[31my\x1b[0m\nc\n")
      << "letters and colours";
  EXPECT_EQ(text_table({}, {}), "");
}

}  // namespace
}  // namespace witan::cli
