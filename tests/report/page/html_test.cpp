#include "witan/report/page/html.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "report/synthetic.h"
#include "witan/base/error.h"
#include "witan/report/page/assets.h"

namespace witan {
namespace {

using synthetic::TempFolder;

// The page without the contents of its script and style elements and its comments, whose text is not markup.
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

nlohmann::json data_of(const std::string& page) {
  const std::string open = "<script type=\"application/json\" id=\"data\">";
  const size_t begin = page.find(open) + open.size();
  return nlohmann::json::parse(page.substr(begin, page.find("</script>", begin) - begin));
}

size_t count(const std::string& text, const std::string& what) {
  size_t n = 0;
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += what.size()) ++n;
  return n;
}

TEST(Report, IsBalancedAndAsksTheNetworkForNothing) {
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

TEST(Report, HostileTextsStayTexts) {
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

// The peak by kind of memory need not come at once: a rank's figure is its arena's, as in the key figures.
TEST(Report, SaysTheLayoutAndWhatEachRankTook) {
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
  EXPECT_NE(
      page.find("<dt>Peak memory</dt><dd class=\"value\">800\u00a0KiB</dd><dd class=\"remark\">largest rank"),
      std::string::npos);
}

TEST(Report, PlaceholdersInTextsAreNotFilled) {
  Metrics m = synthetic::run(1, 0, 0);
  m.samples[0].text = "{{data}} {{nothing}}";
  EXPECT_NE(render_report(m, "").find("{{data}} {{nothing}}"), std::string::npos);
}

TEST(Report, WorksWithTheLeast) {
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

TEST(Report, OfALongRunReadsEvenlySpreadStepsAndLeavesDamageOut) {
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

TEST(Report, WithoutStepsThereIsNone) {
  const TempFolder folder;
  EXPECT_THROW(write_report(folder.path()), IoError);
  MetricsWriter(folder / "metrics.jsonl").append(EndEvent{"interrupted"});
  EXPECT_THROW(write_report(folder.path()), DataError);
  EXPECT_FALSE(fs::exists(folder / "report.html"));
}

}  // namespace
}  // namespace witan
