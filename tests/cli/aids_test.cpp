// Aids for people who debug ranks: comparisons before a run starts, debuggers, traces.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/cli_support.h"
#include "support/free_port.h"
#include "support/program.h"

namespace witan::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

class AidsTest : public ::testing::Test {
 protected:
  AidsTest() { write_text(own_ / "text.txt", some_text(800)); }

  Words words(const Words& more = {}) const {
    Words all = words_in(
        "--train-iters 4 --seq-length 16 --hidden-size 16 --num-layers 1 --num-experts 4 --ffn-hidden-size 16 "
        "--threads 1 --sample-tokens 0 --micro-batch-size 1 --eval-interval 0 --global-batch-size 4 "
        "--tokenizer-vocab-size 300",
        {"train", "--data", own_ / "text.txt", "--runs-folder", own_ / "runs"});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  std::unique_ptr<Program> start(const Words& args, int rank = -1) const {
    Words all = args, variables;
    all.insert(all.begin(), WITAN_PROGRAM);
    if (rank >= 0)
      variables = {"RANK=" + std::to_string(rank), "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1",
                   "MASTER_PORT=" + std::to_string(port_)};
    return std::make_unique<Program>(all, log(rank), variables);
  }
  fs::path log(int rank) const { return own_ / ("rank" + std::to_string(rank) + ".log"); }
  fs::path run() const { return own_ / "runs/default"; }
  fs::path waiting(int rank) const { return run() / ("debug-rank-" + std::to_string(rank)); }
  bool comes(Program& program, const fs::path& file) const {
    return program.reaches([&] { return fs::exists(file); }, 60);
  }

  TempFolder own_;
  const int port_ = testing::free_port();
};

TEST_F(AidsTest, RefusesImpossibleOptions) {
  expect_refusal(words({"--ranks", "2", "--debug-rank", "0,2"}), 3, {"--debug-rank 2: this run has 2 ranks, 0 to 1"});
  expect_refusal(words({"--ranks", "1", "--debug-rank", "1"}), 3, {"--debug-rank 1: this run has one rank, 0"});
  expect_refusal(words({"--trace-steps", "3:9"}), 3, {"--trace-steps 3:9: the run goes from step 1 to step 4"});
  expect_refusal(words({"--trace-steps", "x"}), 3, {"--trace-steps x: give the first and the last step, as 3:5"});
  EXPECT_FALSE(fs::exists(run()));
}

TEST_F(AidsTest, WritesAndNamesATraceOfThreads) {
  const Said said = witan(words({"--ranks", "2", "--trace-steps", "2:3"}));
  EXPECT_EQ(said.code, 0) << said.err;
  EXPECT_TRUE(contains(said.err, "trace        " + (run() / "trace.json").string())) << said.err;
  const Json events = Json::parse(read_text(run() / "trace.json"))["traceEvents"];
  for (const int rank : {0, 1})
    for (const char* step : {"step 2", "step 3"})
      EXPECT_EQ(std::ranges::count_if(events, [&](const Json& e) { return e["pid"] == rank && e["name"] == step; }), 1);
  // The next call of the run traces none of its own steps and reports that these steps are done.
  Words longer = words({"--ranks", "2", "--trace-steps", "4"});
  *(std::ranges::find(longer, "--train-iters") + 1) = "6";
  expect_refusal(longer, 3, {"--trace-steps 4: the run goes from step 5 to step 6"});
}

// The same command repeated by a script has none of these steps left and continues training.
TEST_F(AidsTest, MegatronsProfilerTracesTheStepsThatACallReaches) {
  Words args =
      words({"--ranks", "1", "--no-megatron", "--profile", "--profile-step-start", "2", "--profile-step-end", "9"});
  EXPECT_EQ(witan(args).code, 0);
  const auto steps_traced = [&] {
    std::set<std::string> names;
    const Json trace = Json::parse(read_text(run() / "trace.json"));
    for (const Json& event : trace["traceEvents"])
      if (const std::string name = event["name"]; name.starts_with("step ")) names.insert(name);
    return names;
  };
  EXPECT_EQ(steps_traced(), (std::set<std::string>{"step 3", "step 4"}));
  *(std::ranges::find(args, "--train-iters") + 1) = "6";
  *(std::ranges::find(args, "--profile-step-end") + 1) = "4";
  const Said again = witan(args);
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(steps_traced(), (std::set<std::string>{"step 3", "step 4"})) << "the trace is kept";
}

TEST_F(AidsTest, ProcessesWriteOneTrace) {
  const Words args = words({"--trace-steps", "1"});
  const auto first = start(args, 0), second = start(args, 1);
  EXPECT_EQ(first->wait(), 0) << read_text(log(0));
  EXPECT_EQ(second->wait(), 0) << read_text(log(1));
  const Json events = Json::parse(read_text(run() / "trace.json"))["traceEvents"];
  double ends[2] = {};
  for (const Json& event : events)
    if (event["name"] == "step 1")
      ends[event["pid"].get<int>()] = event["ts"].get<double>() + event["dur"].get<double>();
  EXPECT_GT(ends[0], 0);
  EXPECT_NEAR(ends[0], ends[1], 1e6) << "on one clock: a step ends with a call of both ranks";
}

TEST_F(AidsTest, ProcessesWithDifferentSettingsDoNotStart) {
  const auto first = start(words({"--lr", "0.001"}), 0), second = start(words({"--lr", "0.002"}), 1);
  EXPECT_NE(first->wait(), 0);
  EXPECT_NE(second->wait(), 0);
  for (const int rank : {0, 1})
    EXPECT_TRUE(contains(read_text(log(rank)), "lr = 0.001 on rank 0, but 0.002 on rank 1")) << read_text(log(rank));
  EXPECT_FALSE(fs::exists(run()));
}

// The shortest deadlines are 3 s, and the person takes longer.
const Words kPatience = {"--distributed-timeout-minutes", "0.05"};

TEST_F(AidsTest, ProcessesWaitForARankThatWaitsForItsDebugger) {
  const Words args = words({"--debug-rank", "1", kPatience[0], kPatience[1]});
  const auto first = start(args, 0), second = start(args, 1);
  ASSERT_TRUE(comes(*second, waiting(1))) << read_text(log(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(3500));
  EXPECT_TRUE(contains(read_text(log(1)), "debug        rank 1 of 2 waits for a debugger: thread "))
      << "the wait is noticed";
  fs::remove(waiting(1));
  EXPECT_EQ(first->wait(), 0) << read_text(log(0));
  EXPECT_EQ(second->wait(), 0) << read_text(log(1));
}

// Starts gdb as documented, with a person who takes longer than the deadline.
class GdbTest : public AidsTest {
 protected:
  void attach_to(Program& of, int rank) {
    ASSERT_TRUE(comes(of, waiting(rank)));
    const std::string text = read_text(waiting(rank)), lead = "gdb -p ";
    std::istringstream numbers(text.substr(text.find(lead) + lead.size()));
    std::string process;
    numbers >> process;
    gdb_ = std::make_unique<Program>(
        Words{"/usr/bin/gdb", "--batch", "-nx", "-p", process, "-ex", "shell sleep 3.5", "-ex", "continue"},
        own_ / "gdb.log");
    EXPECT_TRUE(gdb_->ends_within(100));
    const std::string said = read_text(own_ / "gdb.log");
    if (contains(said, "ptrace: ")) GTEST_SKIP() << "tracing is not permitted on this machine: " << said;
    EXPECT_TRUE(contains(said, "exited normally")) << said;
  }
  void SetUp() override {
    if (!fs::exists("/usr/bin/gdb")) GTEST_SKIP() << "gdb is not installed";
  }

  std::unique_ptr<Program> gdb_;
};

TEST_F(GdbTest, AHeldThreadPassesNoDeadline) {
  const auto program = start(words({"--ranks", "2", "--debug-rank", "1", kPatience[0], kPatience[1]}));
  attach_to(*program, 1);
  if (IsSkipped()) return;
  EXPECT_EQ(program->wait(), 0) << read_text(log(-1));
  EXPECT_FALSE(fs::exists(waiting(1)));
}

TEST_F(GdbTest, AHeldProcessPassesNoDeadline) {
  const Words args = words({"--debug-rank", "1", kPatience[0], kPatience[1]});
  const auto first = start(args, 0), second = start(args, 1);
  attach_to(*second, 1);
  if (IsSkipped()) return;
  EXPECT_EQ(first->wait(), 0) << read_text(log(0));
  EXPECT_EQ(second->wait(), 0) << read_text(log(1));
}

}  // namespace
}  // namespace witan::test
