// The page's scripts, run with node: tests what they compute, not what they draw.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>

#include "report/synthetic.h"
#include "witan/base/error.h"
#include "witan/base/files/file.h"
#include "witan/report/page/assets.h"
#include "witan/report/page/plot_history.h"

namespace witan {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

class PageScripts : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::system("node --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "node is missing: scripts/setup.sh test";
  }
  // The JSON.stringify() result of an expression, evaluated with the scripts of a live page without a run.
  static json value_of(const std::string& expression) {
    constexpr const char* kBrowser =
        "globalThis.setTimeout = () => {};\n"
        "globalThis.location = {search: ''};\n"
        "const anElement = () => ({textContent: '{\"charts\": [], \"runs\": []}', prepend() {}});\n"
        "globalThis.document = {getElementById: anElement, createElement: anElement};\n";
    const synthetic::TempFolder folder;
    write_file_atomically(folder / "page.js", kBrowser + std::string(assets::kChartsJs) + std::string(assets::kLiveJs) +
                                                  "\nconsole.log(JSON.stringify(" + expression + "));\n");
    const std::string command = "node " + (folder / "page.js").string() + " 2>&1";
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> output(::popen(command.c_str(), "r"), ::pclose);
    std::string text;
    for (int c = 0; (c = std::fgetc(output.get())) != EOF;) text += static_cast<char>(c);
    EXPECT_TRUE(json::accept(text)) << text;
    return json::parse(text, nullptr, false);
  }
};

TEST_F(PageScripts, AverageWeightsOlderStepsLess) {
  EXPECT_EQ(value_of("movingAverage([], 10)"), json::array());
  const json average = value_of("movingAverage([[1, 0], [2, 1], [4, 1]], 2).map(([step, y]) => y)");
  EXPECT_EQ(average[0], 0);
  EXPECT_NEAR(average[1].get<double>(), 2.0 / 3, 1e-12) << "weights 1/4 and 1/2, over 3/4";
  EXPECT_NEAR(average[2].get<double>(), (0.5 / 4 + 0.75) / (0.75 / 4 + 0.75), 1e-12) << "two steps later";
}

TEST_F(PageScripts, AverageForgetsValuesBeforeTenSpansOfEqualValues) {
  const json average = value_of(
      "movingAverage(Array.from({length: 200}, (_, i) => [2 * i + 1, i < 50 || i === 150 ? 8 : 0]), 10)"
      ".map(([step, y]) => y)");
  ASSERT_EQ(average.size(), 200u);
  EXPECT_EQ(average[49], 8);
  EXPECT_GT(average[98], 0) << "98 steps behind the last 8";
  for (size_t i = 99; i < 150; ++i) EXPECT_EQ(average[i], 0) << i;
  EXPECT_NEAR(average[150].get<double>(), 8 * (1 - 0.9 * 0.9), 1e-12) << "forgotten values have no effect";
}

// A longer average would still include losses of the run's start at its end.
TEST_F(PageScripts, SmoothingReachesOverATenthOfTheLongestRun) {
  const auto spans = [](const std::string& runs) { return value_of("(data.runs = " + runs + ", smoothingSpans())"); };
  EXPECT_EQ(spans("[]"), json::array({10}));
  EXPECT_EQ(spans("[{steps: [1, 40]}]"), json::array({10}));
  EXPECT_EQ(spans("[{steps: [1, 999]}, {steps: [1, 1000]}]"), json::array({10, 30, 100}));
  EXPECT_EQ(spans("[{steps: [1, 200000]}]"), json::array({10, 30, 100, 300, 1000, 3000, 10000}));
}

// On a plot as narrow as a phone, and on a wide one.
TEST_F(PageScripts, AxesHaveAtLeastTwoTicks) {
  const std::string ranges =
      "[[1, 20], [1, 40], [1, 80], [1, 100], [1, 640], [1, 1000], [950, 1040], [1, 30000], [17, 23]]";
  for (const char* axis : {"step", "tokens", "time"})
    for (const char* log : {"false", "true"}) {
      const std::string ticks = cat("(view.axis = '", axis, "', view.logX = ", log, ", ", ranges,
                                    ".flatMap(([a, b]) => [250, 1000].map((wide) => xTicks(view.logX ? Math.log10(a) : "
                                    "a, view.logX ? Math.log10(b) : b, wide).length)))");
      for (const json& count : value_of(ticks)) {
        EXPECT_GE(count.get<int>(), 2) << axis << ", log " << log << ": " << value_of(ticks);
        EXPECT_LE(count.get<int>(), 26) << axis << ", log " << log;
      }
    }
  EXPECT_EQ(value_of("xTicks(1, 80, 250).map(({v}) => v)"), json::array({20, 40, 60, 80}));
}

// 5 % of the curves' height above and below, also where they span less than 1.
TEST_F(PageScripts, LogarithmicAxesSpanTheCurves) {
  const std::string chart = "{title: 'Loss', series: [{name: 'a'}, {name: 'b'}]}";
  const auto range = [&](const std::string& points) {
    return value_of("(view.range = [1, 3], logRange(" + chart + ", " + points + "))");
  };
  const json narrow = range("[[[1, 3.5], [2, 3.6], [9, 70]], [[1, 3.55]]]");
  ASSERT_EQ(narrow.size(), 2u);
  const double pad = std::pow(3.6 / 3.5, 0.05);
  EXPECT_NEAR(narrow[0].get<double>(), 3.5 / pad, 1e-9);
  EXPECT_NEAR(narrow[1].get<double>(), 3.6 * pad, 1e-9);
  const json equal = range("[[[1, 2], [3, 2]], []]");
  EXPECT_LT(equal[0].get<double>(), 2);
  EXPECT_GT(equal[1].get<double>(), 2);
  EXPECT_EQ(range("[[[9, 2]], []]"), nullptr);
}

TEST_F(PageScripts, ALogarithmicAxisNeedsAValueAboveZeroInTheVisibleRange) {
  const auto why = [](const std::string& points, const std::string& range, const std::string& more = "") {
    return value_of("(view.logY = true, view.range = " + range + ", " + more +
                    "whyNoLog({title: 'Dead experts', series: [{name: 'a', points: " + points + "}]}))");
  };
  EXPECT_EQ(why("[[1, 0], [2, 0]]", "[0, 9]"), "all values shown are 0: no log axis");
  EXPECT_EQ(why("[[1, 0], [2, -3]]", "[0, 9]"), "no value shown is above 0: no log axis");
  EXPECT_EQ(why("[[1, 0], [2, 0.5]]", "[0, 9]"), nullptr);
  EXPECT_EQ(why("[[1, 5], [2, 0], [3, 0]]", "[1.5, 3]"), "all values shown are 0: no log axis") << "zoomed";
  EXPECT_EQ(why("[]", "[0, 9]"), "");
  EXPECT_EQ(why("[[1, 5]]", "[0, 9]", "view.hidden.add('Dead experts\\na'), "), "") << "a hidden curve";
}

TEST_F(PageScripts, LogarithmicAxesPlotOnlyValuesAboveZero) {
  const std::string chart = "{title: 'Loss', series: [{name: 'a', points: [[1, 0], [2, 3], [4, -1]]}]}";
  EXPECT_EQ(value_of("plottedPoints(" + chart + ", true)"), json::parse("[[[2, 3]]]"));
  EXPECT_EQ(value_of("plottedPoints(" + chart + ", false)"), json::parse("[[[1, 0], [2, 3], [4, -1]]]"));
}

TEST_F(PageScripts, ChangesTurnOldDataIntoNew) {
  PlotHistory history;
  history.push({{"steps", {1, 3}}, {"charts", {{{"title", "Loss"}, {"points", {{1, 9}, {2, 8}, {3, 7}}}}}}});
  const std::string old = history.data().dump();
  history.push({{"steps", {1, 4}},
                {"charts",
                 {{{"title", "Loss"}, {"points", {{1, 9}, {2, 8}, {3, 6}, {4, 5}}}},
                  {{"title", "Speed"}, {"points", {{4, 1}}}, {"raw", ordered_json::array()}}}}});
  const std::string changed = "changedData(" + old + ", " + history.since(1).dump() + ")";
  EXPECT_EQ(value_of(changed), json(history.data()));
}

}  // namespace
}  // namespace witan
