// Updates of the page of witan watch during a run.
#include "witan/cli/watch/dashboard.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "cli/runs/runs_support.h"
#include "report/synthetic.h"
#include "witan/base/error.h"
#include "witan/train/state/run_folder.h"

namespace witan::test {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class DashboardTest : public MadeUpRuns {
 protected:
  cli::Dashboard watch(const std::vector<std::string>& names) const {
    std::vector<std::filesystem::path> folders;
    for (const std::string& name : names) folders.push_back(runs_ / name);
    return cli::Dashboard(folders, std::chrono::milliseconds(0));
  }
  void go_on(const std::string& name, int64_t first, int64_t last) const {
    MetricsWriter out(runs_ / name / "metrics.jsonl");
    for (int64_t n = first; n <= last; ++n) {
      StepEvent step;
      step.step = n;
      step.loss = 1;
      step.elapsed_s = static_cast<double>(n);
      out.append(step);
    }
  }
};

TEST_F(DashboardTest, SendsChangesSinceAVersion) {
  make("a", 30, "", "");
  cli::Dashboard dashboard = watch({"a"});
  const json first = json::parse(dashboard.update(-1));
  EXPECT_EQ(first["data"]["steps"], json({1, 30}));
  EXPECT_THAT(first["parts"]["charts"].get<std::string>(), HasSubstr("data-chart=\"0\""));
  const json same = json::parse(dashboard.update(first["version"]));
  EXPECT_EQ(same["version"], first["version"]);
  EXPECT_FALSE(same.contains("data")) << "nothing changed";
  EXPECT_EQ(same["runs"].size(), 1u) << "the state is sent again";
  go_on("a", 31, 45);
  const json later = json::parse(dashboard.update(first["version"]));
  EXPECT_GT(later["version"], first["version"]);
  EXPECT_FALSE(later.contains("data"));
  EXPECT_EQ(later["changes"]["steps"], json::parse(R"({"keep": 1, "then": [45]})"));
  EXPECT_EQ(later["changes"]["runs"][0]["clock"]["keep"], 30);
  EXPECT_EQ(later["changes"]["runs"][0]["clock"]["then"].back(), json({45, 45}));
  EXPECT_THAT(later["parts"]["summary"].get<std::string>(), HasSubstr("step 45 of 100"));
  EXPECT_FALSE(later["parts"].contains("charts")) << "values are at their steps";
  EXPECT_FALSE(later["parts"].contains("rest"));
  EXPECT_EQ(json(changed_data(first["data"], later["changes"])), json::parse(dashboard.update(-1))["data"]);
}

// Pages opened at different versions, one of them before the run went back.
TEST_F(DashboardTest, ARunThatWentBackShowsItsNewSteps) {
  make("a", 30, "", "");
  const std::string begun = read_text(runs_ / "a/metrics.jsonl");
  cli::Dashboard dashboard = watch({"a"});
  std::vector<ordered_json> pages = {ordered_json::parse(dashboard.update(-1))};
  go_on("a", 31, 45);
  pages.push_back(ordered_json::parse(dashboard.update(-1)));
  write_text(runs_ / "a/metrics.jsonl", begun);
  pages.push_back(ordered_json::parse(dashboard.update(-1)));
  go_on("a", 31, 50);
  const ordered_json now = ordered_json::parse(dashboard.update(-1));
  EXPECT_EQ(now["data"]["steps"], ordered_json({1, 50}));
  for (const ordered_json& page : pages) {
    const auto update = ordered_json::parse(dashboard.update(page["version"]));
    EXPECT_FALSE(update.contains("data"));
    EXPECT_EQ(changed_data(page["data"], update["changes"]), now["data"]) << page["version"];
  }
}

TEST_F(DashboardTest, ReportsTheStateOfARun) {
  make("a", 30, "", "");
  cli::Dashboard dashboard = watch({"a"});
  const auto standing = [&] { return json::parse(dashboard.update(-1))["runs"][0]; };
  EXPECT_EQ(standing()["state"], "stopped") << "it is not training, and it has no end";
  EXPECT_THAT(standing()["text"].get<std::string>(), HasSubstr("train.log"));
  {
    const auto lock = RunLock::take(runs_ / "a");
    EXPECT_EQ(standing()["state"], "running");
    std::filesystem::last_write_time(runs_ / "a/metrics.jsonl",
                                     std::filesystem::file_time_type::clock::now() - std::chrono::minutes(5));
    EXPECT_EQ(standing()["state"], "silent");
    EXPECT_THAT(standing()["text"].get<std::string>(), HasSubstr("nothing recorded for 5"));
  }
  MetricsWriter(runs_ / "a/metrics.jsonl").append(EndEvent{"stopped by a signal"});
  EXPECT_EQ(standing()["state"], "ended");
  EXPECT_EQ(standing()["text"], "step 30 of 100, stopped by a signal");
  write_text(runs_ / "a/metrics.jsonl", "garbage\n");
  EXPECT_EQ(standing()["state"], "unreadable");
  EXPECT_EQ(json::parse(dashboard.update(-1))["data"]["steps"], json({1, 30})) << "earlier data stays on the page";
}

// 10,000 steps of 10 ms are left; one step took 1 s.
TEST_F(DashboardTest, ASingleSlowStepDoesNotChangeTheTimeLeft) {
  const auto text_with_hiccup_at = [&](int64_t slow) {
    RunEvent run;
    run.total_steps = 14'000;
    std::string lines = format_event(run) + "\n";
    for (int64_t n = 1; n <= 4000; ++n) {
      StepEvent step;
      step.step = n;
      step.step_s = n == slow ? 1 : 0.01;
      lines += format_event(step) + "\n";
    }
    write_text(runs_ / "a/metrics.jsonl", lines);
    const auto lock = RunLock::take(runs_ / "a");
    return json::parse(watch({"a"}).update(-1))["runs"][0]["text"].get<std::string>();
  };
  EXPECT_EQ(text_with_hiccup_at(500), "step 4000 of 14000, about 1 min 40 s left") << "the slow step is long past";
  EXPECT_EQ(text_with_hiccup_at(3995), "step 4000 of 14000, about 1 min 43 s left") << "1 s among 30";
}

// 90 steps of 2 s are left, and for every ten of them an evaluation of 10 s, an evaluation set of 4 s and a save of 6
// s.
TEST_F(DashboardTest, TheTimeLeftIncludesEvaluationsAndSaves) {
  RunEvent run;
  run.total_steps = 100;
  std::string lines = format_event(run) + "\n";
  for (int64_t n = 1; n <= 10; ++n) {
    StepEvent step;
    step.step = n;
    step.step_s = 2;
    lines += format_event(step) + "\n";
  }
  lines += format_event(EvalEvent{10, 1, 1, {}, 10}) + "\n" + format_event(EvalEvent{10, 1, 1, "own", 4}) + "\n" +
           format_event(SaveEvent{10, 60, 6}) + "\n";
  write_text(runs_ / "a/metrics.jsonl", lines);
  const auto lock = RunLock::take(runs_ / "a");
  EXPECT_EQ(json::parse(watch({"a"}).update(-1))["runs"][0]["text"], "step 10 of 100, about 6 min 0 s left");
}

TEST_F(DashboardTest, ASlowStepIsNotSilence) {
  Metrics metrics;
  EXPECT_FALSE(cli::is_silent(metrics, 50));
  EXPECT_TRUE(cli::is_silent(metrics, 70));
  StepEvent step;
  step.step_s = 30;
  metrics.steps.push_back(step);
  EXPECT_FALSE(cli::is_silent(metrics, 500));
  EXPECT_TRUE(cli::is_silent(metrics, 700));
}

TEST_F(DashboardTest, DrawsSeveralRunsTogether) {
  make("a", 30);
  make("b", 60, "", "");
  cli::Dashboard dashboard = watch({"a", "b"});
  const json update = json::parse(dashboard.update(-1));
  EXPECT_EQ(update["data"]["steps"], json({1, 60}));
  EXPECT_EQ(update["data"]["runs"].size(), 2u);
  EXPECT_EQ(update["runs"][1]["name"], "b");
  const json& series = update["data"]["charts"][0]["series"];
  EXPECT_EQ(series[0]["name"], "a");
  EXPECT_EQ(series[0]["raw"].size(), 30u) << "for different smoothing";
  EXPECT_EQ(series.back()["run"], 1);
  EXPECT_THAT(update["parts"]["summary"].get<std::string>(),
              HasSubstr("<td>step 30 of 100</td><td>step 60 of 100</td>"));
}

TEST_F(DashboardTest, WaitsForARunWithoutRecords) {
  write_text(runs_ / "young/config.toml", "num_layers = 2\n");
  cli::Dashboard dashboard = watch({"young"});
  EXPECT_THAT(dashboard.page(), HasSubstr("<h1>young</h1>"));
  const json update = json::parse(dashboard.update(-1));
  EXPECT_EQ(update["runs"][0]["text"], "has not begun");
  make("young", 5, "", "");
  EXPECT_EQ(json::parse(dashboard.update(update["version"]))["changes"]["charts"][0]["title"], "Loss");
}

TEST_F(DashboardTest, KeepsDataOfADeletedRun) {
  make("a", 30);
  make("b", 10, "", "");
  cli::Dashboard alone = watch({"a"}), both = watch({"a", "b"});
  const ordered_json before = ordered_json::parse(alone.update(-1)), two = ordered_json::parse(both.update(-1));
  std::filesystem::remove(runs_ / "a/metrics.jsonl");
  EXPECT_EQ(json::parse(alone.update(-1))["runs"][0]["state"], "unreadable");
  EXPECT_EQ(
      json::parse(alone.update(-1))["runs"][0]["text"],
      cat("step 30 of 100, finished; ", (runs_ / "a/metrics.jsonl").string(), " is gone: it was moved or removed"));
  std::filesystem::rename(runs_ / "a", runs_ / "c");
  const ordered_json gone = ordered_json::parse(alone.update(-1));
  EXPECT_EQ(gone["runs"][0]["state"], "gone");
  EXPECT_EQ(gone["runs"][0]["text"],
            cat("step 30 of 100, finished; its folder ", (runs_ / "a").string(), " is gone: it was moved or removed"));
  EXPECT_EQ(gone["data"], before["data"]);
  EXPECT_EQ(gone["parts"], before["parts"]);
  go_on("b", 11, 20);
  const ordered_json later = ordered_json::parse(both.update(-1));
  EXPECT_GT(later["version"], two["version"]);
  EXPECT_EQ(later["data"]["charts"][0]["series"][0], two["data"]["charts"][0]["series"][0]) << "beside a running one";
}

TEST_F(DashboardTest, ATrainedRunWithoutItsRecordHasStarted) {
  make("a", 0, "", "");
  std::filesystem::create_directories(runs_ / "a/checkpoints/step-60");
  const auto text = [&] { return json::parse(watch({"a"}).update(-1))["runs"][0]["text"].get<std::string>(); };
  EXPECT_THAT(text(), HasSubstr("its metrics.jsonl has no step"));
  write_text(runs_ / "a/metrics.jsonl", "");
  EXPECT_EQ(
      text(),
      "has been trained, but its metrics.jsonl is empty, so there is nothing to show; its newest checkpoint is of "
      "step 60");
  std::filesystem::remove(runs_ / "a/metrics.jsonl");
  EXPECT_THAT(text(), HasSubstr("its metrics.jsonl is missing"));
  EXPECT_THAT(watch({"a"}).page(), HasSubstr("<h1>a</h1>\n<p class=\"facts\">nothing recorded</p>"));
  std::filesystem::remove_all(runs_ / "a/checkpoints");
  EXPECT_EQ(text(), "has not begun");
  write_text(runs_ / "a/report.html", "");
  EXPECT_THAT(text(), HasSubstr("has been trained")) << "a report needs steps";
}

TEST_F(DashboardTest, ThePageContactsOnlyItsOwnServer) {
  make("a<b>", 30);
  cli::Dashboard dashboard = watch({"a<b>"});
  const std::string page = dashboard.page();
  EXPECT_THAT(page, HasSubstr("default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
                              "img-src data:; connect-src 'self'"));
  EXPECT_THAT(page, Not(HasSubstr("a<b>")));
  EXPECT_THAT(page, Not(ContainsRegex(R"(\{\{[a-z_]+\}\})")));
}

}  // namespace
}  // namespace witan::test
