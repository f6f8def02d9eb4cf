// witan report: what it shows about runs, and where it writes their pages.
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <set>

#include "cli/runs/runs_support.h"

namespace witan::test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class ReportTest : public MadeUpRuns {
 protected:
  Said report(std::vector<std::string> args = {}) const {
    args.insert(args.begin(), "report");
    args.insert(args.end(), {"--runs-folder", runs_.string()});
    return witan(args);
  }
  void add_steps(const std::string& name, const std::vector<double>& speeds) const {
    MetricsWriter out(runs_ / name / "metrics.jsonl");
    for (size_t i = 0; i < speeds.size(); ++i) {
      StepEvent step;
      step.step = static_cast<int64_t>(i) + 1;
      step.tokens_per_s = speeds[i];
      step.gflops = speeds[i] / 1000;
      out.append(step);
    }
  }
};

// For its lifetime, the process is another user without any of the files, since root can write everywhere.
class AsNobody {
 public:
  AsNobody() {
    if (::geteuid() == 0) changed_ = ::seteuid(65534) == 0;
  }
  ~AsNobody() {
    if (changed_) {
      EXPECT_EQ(::seteuid(0), 0);
    }
  }

 private:
  bool changed_ = false;
};

TEST_F(ReportTest, TheSpeedIsThatOfTheMedianStepInBothOutputs) {
  make("a", 0, "", "");
  add_steps("a", {1000, 31'000, 32'000, 33'000, 15'000});
  const Said said = report({"a"});
  ASSERT_EQ(said.code, 0) << said.err;
  EXPECT_THAT(said.out, HasSubstr("\nspeed         31.0 K tokens/s, 31.0 GFLOP/s in the median step\n"));
  EXPECT_THAT(
      read_text(runs_ / "a/report.html"),
      HasSubstr("<dt>Tokens per second</dt><dd class=\"value\">31.0\u00a0K</dd><dd class=\"remark\">in the median "
                "step; 31\u00a0GFLOP/s"));
}

TEST_F(ReportTest, ListsEvaluationSetsAndAnomalies) {
  make("a", 10);
  {
    MetricsWriter out(runs_ / "a/metrics.jsonl");
    for (const int64_t step : {10, 20}) out.append(EvalEvent{step, 2.5, 1.25 + static_cast<double>(step), "code"});
    for (const int64_t step : {12, 15})
      out.append(AnomalyEvent{.step = step, .what = "spike", .action = "skip", .text = "a spike"});
  }
  const Said said = report({"a"});
  EXPECT_THAT(said.out, HasSubstr("\nvalidation    loss 2.5000, 21.2500 bits/byte at step 20 of code\n"));
  EXPECT_THAT(said.out, HasSubstr("\nanomalies     2; the last in step 15: a spike\n"));
}

TEST_F(ReportTest, NamesWhatIsMissingWithoutARecord) {
  make("a", 0, "", "");
  fs::remove(runs_ / "a/metrics.jsonl");
  const std::string folder = runs_.string();
  expect_refusal({"report", "a", "--runs-folder", folder}, 4,
                 {"the run " + (runs_ / "a").string() + " has not begun", "`witan train --run a --runs-folder"});
  fs::create_directories(runs_ / "a/checkpoints/step-60");
  expect_refusal({"report", "a", "--runs-folder", folder}, 4,
                 {(runs_ / "a/metrics.jsonl").string() + " is missing: the run was trained",
                  "Put back a copy of the file", "`witan eval --run a --runs-folder"});
  write_text(runs_ / "a/metrics.jsonl", "");
  expect_refusal({"report", "a", "--runs-folder", folder}, 4, {"metrics.jsonl is empty: the run was trained"});
}

TEST_F(ReportTest, ShowsRunsOfOtherUsers) {
  make("a", 20);
  fs::permissions(folder_.path(), fs::perms(0755));
  fs::permissions(runs_ / "a", fs::perms(0555));
  Said said;
  {
    const AsNobody nobody;
    said = report({"a"});
  }
  fs::permissions(runs_ / "a", fs::perms(0755));
  EXPECT_EQ(said.code, 0) << said.err;
  EXPECT_THAT(said.out, HasSubstr("steps         20 of 100"));
  EXPECT_THAT(said.out, HasSubstr("state         finished"));
  EXPECT_THAT(said.out, Not(HasSubstr("report.html")));
  EXPECT_THAT(said.err, StartsWith("warning: report.html was not written: "));
  EXPECT_THAT(said.err, HasSubstr("Permission denied; --output FILE writes it elsewhere\n"));
  EXPECT_FALSE(fs::exists(runs_ / "a/report.html"));
}

TEST_F(ReportTest, SkipsAndNamesDamagedLines) {
  make("a", 20);
  const fs::path metrics = runs_ / "a/metrics.jsonl";
  std::string text = read_text(metrics);
  text[text.find(R"("step":3,)")] = '#';
  write_text(metrics, text);
  const Said said = report({"a"});
  EXPECT_EQ(said.code, 0) << said.err;
  EXPECT_THAT(said.out, HasSubstr("steps         20 of 100"));
  EXPECT_THAT(said.err, StartsWith("warning: 1 of the "));
  EXPECT_THAT(said.err, HasSubstr(" of " + metrics.string() +
                                  " cannot be read and are left out; the first: " + metrics.string() + ": line "));
}

TEST_F(ReportTest, WritesThePageToTheRequestedPlace) {
  make("a", 20);
  const fs::path page = folder_ / "mine.html";
  const Said said = report({"a", "--output", page.string()});
  EXPECT_EQ(said.code, 0) << said.err;
  EXPECT_THAT(said.out, HasSubstr("report        " + page.string() + "\n"));
  EXPECT_THAT(read_text(page), StartsWith("<!DOCTYPE html>"));
  EXPECT_FALSE(fs::exists(runs_ / "a/report.html"));
}

TEST_F(ReportTest, OverwritesOnlyItsOwnPages) {
  make("a", 20);
  make("b", 20);
  const fs::path notes = folder_ / "notes.txt", page = folder_ / "page.html", pipe = folder_ / "pipe";
  write_text(notes, "mine");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const std::string at = runs_.string();
  for (const fs::path& other : {notes, pipe}) {
    expect_refusal({"report", "a", "--output", other, "--runs-folder", at}, 2,
                   {"--output " + other.string(), "is no page of this command", "name a new file"});
    expect_refusal({"report", "a", "--json", "--output", other, "--runs-folder", at}, 2, {"name a new file"});
    expect_refusal({"runs", "compare", "a", "b", "--report", other, "--runs-folder", at}, 2,
                   {"--report " + other.string(), "is no page of this command", "name a new file"});
  }
  expect_refusal({"report", "a", "--output", runs_, "--runs-folder", at}, 2, {"is a folder: name a file in it"});
  EXPECT_EQ(read_text(notes), "mine");
  for (int again = 0; again < 2; ++again) {
    EXPECT_EQ(report({"a", "--output", page}).code, 0);
    EXPECT_EQ(runs({"compare", "a", "b", "--report", page}).code, 0);
  }
}

// The keys of nested objects as "training.loss", and of objects in lists as "checkpoints.step".
void collect_keys(const nlohmann::json& json, const std::string& at, std::set<std::string>& keys) {
  if (json.is_array())
    for (const auto& one : json) collect_keys(one, at, keys);
  if (!json.is_object()) return;
  for (const auto& [key, value] : json.items()) {
    keys.insert(at + key);
    collect_keys(value, at + key + ".", keys);
  }
}

TEST_F(ReportTest, JsonHasTheContentOfThePage) {
  make("a", 20);
  for (const int64_t step : {10, 20})
    fs::create_directories(runs_ / "a/checkpoints" / ("step-" + std::to_string(step)));
  const Said said = report({"a", "--json"});
  ASSERT_EQ(said.code, 0) << said.err;
  EXPECT_EQ(said.err, "");
  const auto json = nlohmann::json::parse(said.out);
  EXPECT_EQ(json["name"], "a");
  EXPECT_EQ(json["state"], "finished");
  EXPECT_EQ(json["end"], "finished");
  EXPECT_EQ(json["model"]["parameters"], 1'500'000);
  EXPECT_EQ(json["training"]["step"], 20);
  EXPECT_EQ(json["training"]["total_steps"], 100);
  EXPECT_EQ(json["training"]["loss"], 3.8);
  EXPECT_EQ(json["training"]["tokens"], 40'000);
  EXPECT_EQ(json["validation"]["last"]["step"], 20);
  ASSERT_EQ(json["checkpoints"].size(), 2u);
  EXPECT_EQ(json["checkpoints"][0]["step"], 20) << "newest first";
  EXPECT_EQ(json["checkpoints"][0]["folder"], (runs_ / "a/checkpoints/step-20").string());
  EXPECT_FALSE(fs::exists(runs_ / "a/report.html")) << "JSON output writes no page";
  EXPECT_EQ(report({"a", "--json", "--output", folder_ / "a.html"}).out, said.out);
  EXPECT_THAT(read_text(folder_ / "a.html"), StartsWith("<!DOCTYPE html>"));
}

TEST_F(ReportTest, EveryJsonKeyIsDocumented) {
  make("a", 20);
  fs::create_directories(runs_ / "a/checkpoints/step-20");
  {
    MetricsWriter out(runs_ / "a/metrics.jsonl");
    MemoryEvent memory;
    memory.peak = 1;
    out.append(memory);
    out.append(BaselineEvent{"bigram", 2});
    out.append(AnomalyEvent{20, "nan", "skip", std::nullopt, "a sentence", std::nullopt});
    out.append(ResumeEvent{20, "2026-01-03T00:00:00Z"});
  }
  std::set<std::string> keys;
  collect_keys(nlohmann::json::parse(report({"a", "--json"}).out), "", keys);
  EXPECT_GT(keys.size(), 50u);
  const std::string page = read_text(fs::path(WITAN_SOURCE_DIR) / "docs/runs.md");
  const std::string table = page.substr(page.find("## The figures of a run for programs"));
  for (const std::string& key : keys) EXPECT_THAT(table, HasSubstr("`" + key.substr(key.rfind('.') + 1) + "`")) << key;
}

TEST_F(ReportTest, JsonHasNullsForARunWithoutSteps) {
  make("a", 0, "", "");
  const Said said = report({"a", "--json"});
  ASSERT_EQ(said.code, 0) << said.err;
  const auto json = nlohmann::json::parse(said.out);
  EXPECT_EQ(json["state"], "not begun");
  EXPECT_TRUE(json["training"]["step"].is_null());
  EXPECT_TRUE(json["end"].is_null());
  EXPECT_EQ(json["training"]["total_steps"], 100);
}

// A page that was requested by name must not be skipped.
TEST_F(ReportTest, FailingToWriteARequestedPageIsAnError) {
  make("a", 20);
  expect_refusal({"report", "a", "--json", "--output", "-", "--runs-folder", runs_.string()}, 2,
                 {"--output is a file", "--json prints the figures"});
  const Said said = report({"a", "--output", folder_ / "none/mine.html"});
  EXPECT_EQ(said.code, 4) << said.err;
  EXPECT_THAT(said.err, HasSubstr("mine.html"));
  EXPECT_THAT(said.out, HasSubstr("state         finished")) << "the figures are shown nevertheless";
}

}  // namespace
}  // namespace witan::test
