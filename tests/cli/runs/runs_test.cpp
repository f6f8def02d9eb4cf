// witan runs: the list.
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "cli/runs/runs_support.h"
#include "witan/cli/args/run_config.h"
#include "witan/cli/runs/run_summary.h"
#include "witan/train/state/run_folder.h"

namespace witan::test {
namespace {

namespace fs = std::filesystem;

using RunsTest = MadeUpRuns;

nlohmann::json by_name(const Said& said) {
  EXPECT_EQ(said.code, 0) << said.err;
  nlohmann::json runs;
  for (const auto& run : nlohmann::json::parse(said.out)) runs[run["name"].get<std::string>()] = run;
  return runs;
}

TEST_F(RunsTest, ShowsEachState) {
  make("done", 100);
  make("early", 40, "", "stopped early");
  make("stopped", 40, "", "stopped by a signal");
  make("killed", 40, "", "");
  make("fresh", 0, "", "");
  make("now", 40, "", "");
  make("error", 40, "", "failed: step 40 was not finite");
  make("foreign", 0, "", "");
  write_text(runs_ / "foreign/ledger.json", "{}");
  fs::create_directories(runs_ / "foreign/checkpoints/step-0");
  make("lost", 0, "", "");  // has metrics but no checkpoints
  for (const char* step : {"step-8", "step-10"}) fs::create_directories(runs_ / "lost/checkpoints" / step);
  const auto lock = RunLock::take(runs_ / "now");
  const nlohmann::json runs = by_name(this->runs({"--json"}));
  EXPECT_EQ(runs["done"]["state"], "finished");
  EXPECT_EQ(runs["early"]["state"], "finished");
  EXPECT_EQ(runs["stopped"]["state"], "interrupted");
  EXPECT_EQ(runs["killed"]["state"], "failed");
  EXPECT_EQ(runs["error"]["state"], "failed");
  EXPECT_EQ(runs["lost"]["state"], "failed");
  EXPECT_EQ(runs["lost"]["step"], 10);
  EXPECT_EQ(runs["fresh"]["state"], "not begun");
  EXPECT_EQ(runs["now"]["state"], "running");
  EXPECT_EQ(runs["foreign"]["state"], "imported");
  EXPECT_TRUE(runs["foreign"]["total_steps"].is_null()) << "none were requested";
  EXPECT_EQ(runs.size(), 9u);
}

TEST_F(RunsTest, ImportedRunsHaveNoSteps) {
  write_text(runs_ / "foreign/config.toml", "[train]\ntrain_iters = 100\n");
  write_text(runs_ / "foreign/ledger.json", "{}");
  fs::create_directories(runs_ / "foreign/checkpoints/step-0");
  EXPECT_TRUE(contains(runs().out, "foreign  imported     -   -     - ")) << runs().out;
}

TEST_F(RunsTest, ShowsFiguresOfTheLastStep) {
  make("a", 40, "", "");
  write_text(runs_ / "a/checkpoints/step-40/shard", std::string(100'000, 'x'));
  const nlohmann::json run = by_name(runs({"--json"}))["a"];
  EXPECT_EQ(run["step"], 40);
  EXPECT_EQ(run["total_steps"], 100);
  EXPECT_NEAR(run["loss"].get<double>(), 3.6, 1e-12);
  EXPECT_EQ(run["validation_loss"], 4.5);
  EXPECT_EQ(run["tokens"], 80'000);
  EXPECT_EQ(run["parameters"], 1'500'000);
  EXPECT_GE(run["bytes"], 100'000);
  EXPECT_LT(run["bytes"], 1'000'000);
  EXPECT_LT(run["age_s"], 3600);
  const Said said = runs();
  EXPECT_EQ(said.err, "");
  EXPECT_TRUE(contains(said.out, "a    failed    40  100  3.6000      4.5000  80.0 K      1.50 M")) << said.out;
}

// Names and placeholders equal those of `witan report --json`.
TEST_F(RunsTest, JsonHasEveryKeyForEveryRun) {
  make("trained", 40);
  make("fresh", 0, "", "");
  write_text(runs_ / "foreign/config.toml", "[train]\ntrain_iters = 100\n");
  write_text(runs_ / "foreign/ledger.json", "{}");
  fs::create_directories(runs_ / "foreign/checkpoints/step-0");
  const nlohmann::json runs = by_name(this->runs({"--json"}));
  for (const char* name : {"fresh", "foreign"}) {
    EXPECT_EQ(runs[name].size(), runs["trained"].size()) << name;
    for (const auto& [key, value] : runs["trained"].items()) EXPECT_TRUE(runs[name].contains(key)) << name << key;
    for (const char* key : {"step", "loss", "validation_loss", "tokens", "from"})
      EXPECT_TRUE(runs[name][key].is_null()) << name << key;
  }
  const Said said = witan({"report", "trained", "--json", "--runs-folder", runs_.string()});
  const auto report = nlohmann::json::parse(said.out);
  const nlohmann::json& run = runs["trained"];
  for (const char* key : {"name", "state", "from", "bytes"}) EXPECT_EQ(run[key], report[key]) << key;
  for (const char* key : {"step", "total_steps", "loss", "tokens"}) EXPECT_EQ(run[key], report["training"][key]) << key;
  EXPECT_EQ(run["parameters"], report["model"]["parameters"]);
  EXPECT_EQ(run["validation_loss"], report["validation"]["last"]["loss"]);
}

TEST_F(RunsTest, ListsTheLatestFirst) {
  for (const char* name : {"old", "older", "new"}) make(name, 3);
  const auto now = fs::file_time_type::clock::now();
  fs::last_write_time(runs_ / "old/metrics.jsonl", now - std::chrono::hours(2));
  fs::last_write_time(runs_ / "older/metrics.jsonl", now - std::chrono::hours(20));
  const Said said = runs();
  EXPECT_LT(said.out.find("\nnew "), said.out.find("\nold ")) << said.out;
  EXPECT_LT(said.out.find("\nold "), said.out.find("\nolder ")) << said.out;
  EXPECT_TRUE(contains(said.out, "20 h")) << said.out;
}

TEST_F(RunsTest, SkipsAndReportsOtherFolders) {
  make("good", 5);
  write_text(runs_ / "notes.txt", "hello");
  fs::create_directories(runs_ / "empty");
  fs::create_directories(runs_ / ".good.fresh");
  fs::create_directories(runs_ / "pipe");
  ASSERT_EQ(::mkfifo((runs_ / "pipe/config.toml").c_str(), 0600), 0);
  fs::create_symlink("nowhere", runs_ / "broken");
  make("pipes", 0, "", "");
  fs::remove(runs_ / "pipes/metrics.jsonl");
  ASSERT_EQ(::mkfifo((runs_ / "pipes/metrics.jsonl").c_str(), 0600), 0) << "a link to itself";
  fs::create_directory_symlink(runs_, runs_ / "good/loop");
  make("strange", 5, "no_such_key = 1\n");
  make("torn", 5);
  write_text(runs_ / "torn/metrics.jsonl", "{\"kind\":\"step\",\"step\":\"x\"}\n");
  make(std::string("colour\x1b[31m\xff"), 5);
  const Said said = runs();
  EXPECT_EQ(said.code, 0);
  for (const char* word : {"skipped      notes.txt: not a folder", "skipped      empty: no config.toml, so no run",
                           "skipped      pipe: its config.toml is not a file", "damaged      strange: ",
                           "no key no_such_key", "damaged      torn: ", "metrics.jsonl: byte 0"})
    EXPECT_TRUE(contains(said.err, word)) << word << " in " << said.err;
  for (const char* name : {"good", "strange", "torn", "pipes", "colour\\x1B[31m\\xFF"})
    EXPECT_TRUE(contains(said.out, std::string("\n") + name + " ")) << said.out;
  EXPECT_FALSE(contains(said.out + said.err, "\x1b[31m"));
  EXPECT_FALSE(contains(said.out + said.err, "fresh"));
  EXPECT_EQ(nlohmann::json::parse(runs({"--json"}).out).size(), 5u);
}

TEST_F(RunsTest, HandlesEmptyAndMissingFolders) {
  expect_refusal({"runs", "--runs-folder", runs_.string()}, 2, {"cannot read the folder of runs", "witan train"});
  fs::create_directories(runs_);
  const Said said = runs();
  EXPECT_EQ(said.code, 0);
  EXPECT_EQ(said.out, "");
  EXPECT_TRUE(contains(said.err, "there is no run in ")) << said.err;
  EXPECT_EQ(runs({"--json"}).out, "[]\n");
  fs::create_directories(runs_ / "odd/config.toml");
  const Said skipped = runs();
  EXPECT_TRUE(contains(skipped.err, "skipped      odd: ")) << skipped.err;
  EXPECT_FALSE(contains(skipped.err, "there is no run")) << skipped.err;
}

TEST_F(RunsTest, ShowsTheCommandOfARun) {
  make("a", 3);
  const std::string toml = read_text(runs_ / "a/config.toml");
  write_text(runs_ / "a/config.toml", cli::origin_line("gpt2-124m", "mine.toml") + toml);
  EXPECT_EQ(cli::origin_line("", ""), "");
  EXPECT_TRUE(contains(runs().out, "preset gpt2-124m, mine.toml")) << runs().out;
  EXPECT_EQ(cli::origin_line_of(runs_ / "a/config.toml"), "# from preset gpt2-124m, mine.toml\n");
  EXPECT_EQ(cli::read_origin(runs_ / "nowhere"), "");
}

TEST(DiskUsage, CountsHardLinksOnce) {
  const TempFolder folder;
  write_text(folder / "a/one", std::string(1 << 20, 'x'));
  const uint64_t one = cli::disk_usage(folder / "a");
  fs::create_hard_link(folder / "a/one", folder / "a/two");
  EXPECT_EQ(cli::disk_usage(folder / "a"), one);
  EXPECT_GE(one, uint64_t{1} << 20);
  EXPECT_EQ(cli::disk_usage(folder / "nowhere"), 0u);
}

namespace fs = std::filesystem;

class SnapshotTest : public MadeUpRuns {};

TEST_F(SnapshotTest, AsksARunningRun) {
  make("a", 3);
  const Said idle = runs({"snapshot", "a"}, "");
  EXPECT_EQ(idle.code, 2);
  EXPECT_TRUE(contains(idle.err, "the run a is not training, and has no memory to show: ask while it trains"))
      << idle.err;
  EXPECT_FALSE(fs::exists(runs_ / "a/memory"));
  const auto lock = RunLock::take(runs_ / "a");
  const Said asked = runs({"snapshot", "a"}, "");
  EXPECT_EQ(asked.code, 0) << asked.err;
  EXPECT_TRUE(contains(asked.err, "a/memory/step-S-rank-N.json in its next step")) << asked.err;
  const std::string first = read_text(runs_ / "a/memory/request");
  EXPECT_FALSE(first.empty());
  runs({"snapshot", "a"}, "");
  EXPECT_NE(read_text(runs_ / "a/memory/request"), first) << "each call is a new request";
  EXPECT_EQ(runs({"snapshot", "nowhere"}, "").code, 2);
}

}  // namespace
}  // namespace witan::test
