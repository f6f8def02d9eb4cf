#include "witan/report/page/page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "report/synthetic.h"
#include "witan/base/error.h"
#include "witan/report/page/assets.h"
#include "witan/report/page/charts.h"
#include "witan/report/page/markup.h"

namespace witan {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Page, FrozenPagesRequestNothingAndLiveOnesOnlyTheirServer) {
  const PageParts parts = report_parts(synthetic::run(50, 2, 4), "a = 1\n");
  const std::string frozen = frozen_page(parts), live = live_page(parts, R"({"version":1,"runs":[]})");
  EXPECT_THAT(frozen, Not(HasSubstr("connect-src")));
  EXPECT_THAT(frozen, Not(HasSubstr("fetch(")));
  EXPECT_THAT(live, HasSubstr("default-src 'none'"));
  EXPECT_THAT(live, HasSubstr("; connect-src 'self'\">"));
  EXPECT_THAT(live, HasSubstr("fetch(\"update?"));
  EXPECT_THAT(live, HasSubstr(R"(id="live">{"version":1,"runs":[]}</script>)"));
  for (const std::string_view script : {assets::kControlsJs, assets::kLiveJs})
    EXPECT_EQ(script.find("</script"), std::string_view::npos);
}

TEST(Page, FrozenAndLivePagesHaveTheSameParts) {
  const PageParts parts = report_parts(synthetic::run(50, 2, 4), "");
  for (const std::string& page : {frozen_page(parts), live_page(parts, "{}")}) {
    for (const std::string& part : {parts.summary, parts.charts, parts.rest, script_json(parts.data)})
      EXPECT_THAT(page, HasSubstr(part));
    EXPECT_THAT(page, HasSubstr(R"(<div id="controls"></div>)"));
    EXPECT_THAT(page, HasSubstr(std::string(assets::kControlsJs)));
    EXPECT_THAT(page, Not(ContainsRegex(R"(\{\{[a-z_]+\}\})")));
  }
}

TEST(Page, ShowsTheNameOfARunWithoutRecords) {
  const PageParts parts = report_parts({}, "", "a<b");
  EXPECT_EQ(parts.title, "a<b · Witan");
  EXPECT_THAT(parts.summary, HasSubstr("<h1>a&lt;b</h1>\n<p class=\"facts\">nothing recorded</p>"));
  EXPECT_EQ(report_parts(synthetic::run(5, 0, 0), "", "b").title, "first-light · Witan") << "from its metrics";
}

// E.g. on a narrow screen, where the values of several runs do not fit beside the labels.
TEST(Page, LabelsOfAComparisonStayWhileValuesScroll) {
  const Metrics m = synthetic::run(5, 0, 0);
  const PageParts parts = comparison_parts({{"a", m}, {"b", m}}, {{"Latest", {{"step", {"5", "5"}}}}});
  EXPECT_THAT(parts.summary,
              ContainsRegex("<div class=\"card scroll compared\"><table>\n<thead><tr><th></th><th>a</th>"));
  EXPECT_THAT(
      std::string(assets::kStyleCss),
      AllOf(HasSubstr(".scroll th:first-child, .scroll td:first-child { position: sticky; left: 0;"),
            HasSubstr("  .compared th, .compared td { min-width: 92px; padding-left: 8px; white-space: normal;")));
}

TEST(Page, PartsAreJson) {
  Metrics m = synthetic::run(5, 0, 0);
  m.run->name = "\"</div>\xff";
  const auto json = nlohmann::json::parse(parts_json(report_parts(m, "")).dump());
  EXPECT_THAT(json["summary"].get<std::string>(), HasSubstr("&quot;&lt;/div&gt;\xEF\xBF\xBD"));
  EXPECT_THAT(json["charts"].get<std::string>(), HasSubstr("data-chart"));
}

using ::testing::ElementsAre;

nlohmann::json data_of(const std::string& page) {
  const std::string open = R"(id="data">)";
  const size_t begin = page.find(open) + open.size();
  return nlohmann::json::parse(page.substr(begin, page.find("</script>", begin) - begin));
}

const Chart& chart_of(const std::vector<Chart>& charts, const std::string& title) {
  for (const Chart& chart : charts)
    if (chart.title == title) return chart;
  throw std::runtime_error("no chart " + title);
}

TEST(Comparison, ChartsHaveACurveOfEachRunInItsColour) {
  const std::vector<std::vector<Chart>> each = {make_charts(synthetic::run(300, 2, 4)),
                                                make_charts(synthetic::run(40, 0, 0))};
  const std::vector<Chart> charts = merge_charts(each, {"a", "b"});
  const Chart& norm = chart_of(charts, "Gradient norm");
  ASSERT_EQ(norm.series.size(), 2u) << "smoothed alone";
  EXPECT_EQ(norm.series[0].name, "a");
  EXPECT_EQ(norm.series[1].name, "b");
  EXPECT_EQ(norm.series[0].colour, 1);
  EXPECT_EQ(norm.series[1].colour, 2);
  EXPECT_EQ(norm.series[0].points, chart_of(each[0], "Gradient norm").series[1].points);
  const Chart& loss = chart_of(charts, "Loss");
  std::vector<std::string> names;
  for (const Series& series : loss.series) names.push_back(series.name);
  EXPECT_THAT(names, ElementsAre("a", "a validation", "b", "b validation"));
  EXPECT_EQ(chart_of(charts, "Busiest expert").series[0].name, "a") << "only one run has experts";
  for (const Chart& chart : charts)
    for (const Series& series : chart.series)
      EXPECT_NE(series.style, Series::Style::dashed) << "a baseline is not a run";
}

TEST(Comparison, ThePageHasTablesAndStepsOfTheLongestRun) {
  const std::string page =
      render_comparison({{"short <run>", synthetic::run(20, 0, 0)}, {"long", synthetic::run(90, 0, 0)}},
                        {{"Outcome", {{"best loss", {"1.5", "1.25"}}}}, {"Nothing", {}}});
  EXPECT_THAT(page, HasSubstr("<td>best loss</td><td>1.5</td><td>1.25</td>"));
  EXPECT_THAT(page, HasSubstr("<h1>short &lt;run&gt; · long</h1>"));
  EXPECT_THAT(page, HasSubstr("<th>short &lt;run&gt;</th><th>long</th>"));
  EXPECT_THAT(page, Not(HasSubstr("<h2>Nothing</h2>")));
  EXPECT_THAT(page, Not(HasSubstr("{{data}}"))) << "every placeholder is filled";
  const nlohmann::json data = data_of(page);
  EXPECT_EQ(data["steps"], nlohmann::json({1, 90}));
  EXPECT_EQ(data["charts"][0]["series"][0]["name"], "short <run>");
}

TEST(Comparison, HasNoChartForRunsWithoutSteps) {
  const std::string page = render_comparison({{"a", {}}, {"b", {}}}, {});
  EXPECT_EQ(data_of(page)["charts"].size(), 0u);
}

using synthetic::TempFolder;

// The page without comments and the contents of script and style elements, whose text is not markup.
std::string markup_of(std::string page) {
  for (const auto& [open, close] : {std::pair{"<script", "</script>"}, {"<style", "</style>"}, {"<!--", "-->"}}) {
    for (size_t from = 0; (from = page.find(open, from)) != std::string::npos;) {
      const size_t end = page.find(close, from);
      EXPECT_NE(end, std::string::npos) << open;
      page.erase(from, end + std::string(close).size() - from);
    }
  }
  return page;
}

void expect_balanced(const std::string& page) {
  const std::set<std::string> empty = {"meta", "link", "br"};
  const std::string html = markup_of(page);
  std::vector<std::string> open;
  const std::regex tag("<(/?)([a-zA-Z][a-zA-Z0-9]*)[^<>]*>");
  for (std::sregex_iterator it(html.begin(), html.end(), tag), end; it != end; ++it) {
    const std::string name = (*it)[2];
    if (empty.count(name)) continue;
    if ((*it)[1] == "") {
      open.push_back(name);
    } else {
      ASSERT_FALSE(open.empty()) << "</" << name << ">";
      ASSERT_EQ(open.back(), name);
      open.pop_back();
    }
  }
  EXPECT_TRUE(open.empty());
}

size_t count(const std::string& text, const std::string& what) {
  size_t n = 0;
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += what.size()) ++n;
  return n;
}

TEST(Report, IsBalancedAndUsesNoNetwork) {
  const std::string page = render_report(synthetic::run(50, 12, 4, 8), "a = 1\n");
  expect_balanced(page);
  const std::string html = markup_of(page);
  EXPECT_FALSE(std::regex_search(html, std::regex("https?://")));
  EXPECT_FALSE(std::regex_search(html, std::regex("\\ssrc\\s*=")));
  EXPECT_FALSE(std::regex_search(html, std::regex("href=\"(?!data:)")));
  EXPECT_EQ(page.find("sourceMappingURL"), std::string::npos);
  EXPECT_FALSE(std::regex_search(std::string(assets::kStyleCss), std::regex("url\\(|@import")));
  EXPECT_FALSE(std::regex_search(std::string(assets::kDygraphsCss), std::regex("url\\(|@import")));
  EXPECT_NE(page.find("default-src 'none'"), std::string::npos);
}

TEST(Report, EmbeddedScriptsCannotEndTheirElement) {
  for (const std::string_view text : {assets::kChartsJs, assets::kHeatmapJs, assets::kDygraphsJs}) {
    EXPECT_FALSE(text.empty());
    EXPECT_EQ(text.find("</script"), std::string_view::npos);
    EXPECT_EQ(text.find("<!--"), std::string_view::npos);
  }
  EXPECT_NE(assets::kDygraphsJs.find("Dygraph"), std::string_view::npos);
  EXPECT_NE(assets::kDygraphsLicense.find("Permission is hereby granted"), std::string_view::npos);
}

TEST(Report, ShowsEveryPart) {
  const std::string page = render_report(synthetic::run(50, 2, 4), "hidden_size = 64\n");
  for (const char* text :
       {"first-light", "Validation loss", "Bits per byte", "Kneser-Ney bigram", "Tokens per second", "13.7\u00a0M",
        "Skipped steps", "activations", "178 MiB", "hidden_size = 64", "The function returns", "Layer 1", "finished"})
    EXPECT_NE(markup_of(page).find(text), std::string::npos) << text;
  EXPECT_EQ(count(markup_of(page), "data-chart="), data_of(page)["charts"].size());
  EXPECT_EQ(count(markup_of(page), "data-layer="), data_of(page)["heat"]["panels"].size());
}

TEST(Report, EscapesHostileText) {
  const std::string evil = "</script></title></pre><script>alert(1)</script>\"'><img src=x>&";
  Metrics m = synthetic::run(3, 1, 2);
  m.run->name = m.run->started = m.run->config_hash = m.end->reason = evil;
  m.baselines[0].name = m.samples[0].prompt = m.samples[0].text = evil;
  m.memory[0].tags[evil] = 5;
  const std::string page = render_report(m, evil);
  expect_balanced(page);
  EXPECT_EQ(page.find("<img"), std::string::npos);
  EXPECT_EQ(page.find("<script>alert"), std::string::npos);
  EXPECT_EQ(data_of(page)["charts"][1]["series"][1]["name"], evil);
}

// Peaks by kind of memory need not coincide: a rank's figure is that of its arena, as in the key figures.
TEST(Report, ShowsTheLayoutAndMemoryOfRanks) {
  Metrics m = synthetic::run(3, 1, 2);
  m.run->world_size = 2;
  m.run->layout = "shard=2";
  m.memory = {{0, {{"weights", 600 << 10}, {"workspace", 700 << 10}}, 800 << 10}};
  const std::string page = markup_of(render_report(m, ""));
  EXPECT_NE(page.find("2 ranks: shard=2 · "), std::string::npos);
  EXPECT_NE(page.find("</span><span>800 KiB</span>"), std::string::npos);
  EXPECT_EQ(page.find("1.27 MiB"), std::string::npos) << "the sum of both";
  EXPECT_NE(page.find("<td>600 KiB</td>"), std::string::npos);
  EXPECT_NE(page.find("<th>most of each kind</th>"), std::string::npos);
  EXPECT_NE(page.find("<td>arena that holds all kinds</td><td>800 KiB</td>"), std::string::npos);
  EXPECT_NE(page.find("it may be smaller than their sum; gaps between tensors may make it larger"), std::string::npos);
  EXPECT_NE(page.find("<dt>Peak memory</dt><dd class=\"value\">800\u00a0KiB</dd><dd class=\"remark\">largest rank"),
            std::string::npos);
}

TEST(Report, DoesNotFillPlaceholdersInText) {
  Metrics m = synthetic::run(1, 0, 0);
  m.samples[0].text = "{{data}} {{nothing}}";
  EXPECT_NE(render_report(m, "").find("{{data}} {{nothing}}"), std::string::npos);
}

TEST(Report, WorksWithMinimalData) {
  Metrics one;
  one.steps.push_back(synthetic::step(1, 1, false));
  const std::string page = render_report(one, "");
  expect_balanced(page);
  for (const char* text : {"Experts", "Memory", "Configuration", "Generated samples"})
    EXPECT_EQ(markup_of(page).find(text), std::string::npos) << text;
  Metrics evals;
  evals.evals.push_back({0, NAN, NAN});
  expect_balanced(render_report(evals, ""));
}

TEST(Report, StaysSmallForLongRuns) {
  EXPECT_LT(render_report(synthetic::run(100'000, 4, 16, 2, 100), "").size(), 3u << 20);
}

TEST(Report, IsWrittenIntoTheRunFolder) {
  const TempFolder folder;
  {
    MetricsWriter out(folder / "metrics.jsonl");
    out.append(synthetic::step(1, 2, false));
  }
  const fs::path path = write_report(folder.path());
  EXPECT_EQ(path, folder / "report.html");
  EXPECT_EQ(read_file(path).find("config.toml"), std::string::npos);
  std::ofstream(folder / "config.toml") << "seq_length = 128\n";
  write_report(folder.path());
  EXPECT_NE(read_file(path).find("seq_length = 128"), std::string::npos);
}

TEST(Report, ReadsEvenlySpreadStepsOfALongRunAndSkipsDamage) {
  const TempFolder folder;
  constexpr int64_t kSteps = 20'000;
  {
    AtomicFile file(folder / "metrics.jsonl");
    for (int64_t n = 1; n <= kSteps; ++n)
      file.write(format_event(synthetic::step(n, kSteps, false)) + (n == 7 ? "\ngarbage\n" : "\n"));
    file.commit();
  }
  MetricsFollower follower = follow_for_report(folder.path());
  follower.read_more();
  EXPECT_GE(std::ssize(follower.metrics().steps), 4000);
  EXPECT_LE(std::ssize(follower.metrics().steps), 8001);
  EXPECT_EQ(follower.metrics().steps.back().step, kSteps);
  EXPECT_EQ(follower.damaged().count, 1);
  EXPECT_TRUE(fs::exists(write_report(folder.path())));
}

TEST(Report, RefusesRunsWithoutSteps) {
  const TempFolder folder;
  EXPECT_THROW(write_report(folder.path()), IoError);
  MetricsWriter(folder / "metrics.jsonl").append(EndEvent{"interrupted"});
  EXPECT_THROW(write_report(folder.path()), DataError);
  EXPECT_FALSE(fs::exists(folder / "report.html"));
}

}  // namespace
}  // namespace witan
