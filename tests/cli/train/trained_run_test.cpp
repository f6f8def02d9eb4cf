// Commands that read a trained run (generate, eval, report), and train/weights/load_run below them.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/cli_support.h"

namespace witan::test {
namespace {

namespace fs = std::filesystem;

// One small run for all tests, which copy it before changing it.
class TrainedRunTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TempFolder;
    for (int i = 0; i < 20; ++i) write_text(*folder_ / ("text/" + std::to_string(i) + ".txt"), some_text(40));
    trained_ = witan(words_in(
        "--run small --tokenizer-vocab-size 300 --train-iters 6 --save-interval 3 --eval-interval 3 --seq-length 32 "
        "--hidden-size 32 --num-layers 2 --ffn-hidden-size 32 --num-experts 4 --sample-tokens 4 "
        "--held-out-fraction 0.05",
        {"train", "--runs-folder", runs(), "--data", *folder_ / "text"}));
    ASSERT_EQ(trained_.code, 0) << trained_.err;
  }
  static void TearDownTestSuite() { delete folder_; }
  static std::string runs() { return *folder_ / "runs"; }

  static Said run(std::vector<std::string> args, const std::string& input = "") {
    args.insert(args.end(), {"--runs-folder", runs()});
    return witan(args, input);
  }
  // A copy of the run that a test may damage, and its runs folder.
  std::string copy() {
    fs::copy(fs::path(runs()), own_ / "runs", fs::copy_options::recursive);
    return own_ / "runs";
  }
  static void damage(const fs::path& step) {
    fs::path shard;
    for (const auto& entry : fs::directory_iterator(step))
      if (entry.path().extension() == ".safetensors") shard = entry.path();
    std::string bytes = read_text(shard);
    bytes[bytes.size() - 5] = static_cast<char>(bytes[bytes.size() - 5] ^ 1);
    write_text(shard, bytes);
  }

  static TempFolder* folder_;
  static Said trained_;
  TempFolder own_;
};
TempFolder* TrainedRunTest::folder_ = nullptr;
Said TrainedRunTest::trained_;

TEST_F(TrainedRunTest, GenerationIsReproducible) {
  const Said said = run({"generate", "the king", "--max-tokens", "20", "--seed", "3"});
  EXPECT_EQ(said.code, 0) << said.err;
  EXPECT_TRUE(said.out.starts_with("the king")) << said.out;
  EXPECT_TRUE(said.out.ends_with("\n"));
  EXPECT_EQ(said.err, "");
  for (const char* threads : {"1", "3"})
    EXPECT_EQ(run({"generate", "the king", "--max-tokens", "20", "--seed", "3", "--threads", threads}).out, said.out);
  EXPECT_NE(run({"generate", "the king", "--max-tokens", "20", "--seed", "4"}).out, said.out);
}

TEST_F(TrainedRunTest, GeneratesTheSampleThatTrainingShowed) {
  const Said said = run({"generate", "The ", "--max-tokens", "4", "--temperature", "0.7", "--seed", "1234"});
  EXPECT_GT(said.out.size(), std::string("The \n").size());
  EXPECT_EQ(trained_.out, said.out) << "everything else is on standard error";
}

TEST_F(TrainedRunTest, WarnsOfTextsLongerThanTheSamples) {
  const Said said = run({"generate", "the king", "--max-tokens", "3000"});
  EXPECT_EQ(said.code, 0) << said.err;
  EXPECT_TRUE(contains(said.err, "warning: the output may reach 300")) << said.err;
  EXPECT_TRUE(contains(said.err, "(seq_length): later text may be incoherent")) << said.err;
}

// A benchmark of three rows; tests/tasks checks its figures.
constexpr const char* kTask =
    "task: small\ndataset_path: json\ndataset_kwargs: {data_files: {test: rows.jsonl}}\ntest_split: test\n"
    "output_type: multiple_choice\ndoc_to_text: q\ndoc_to_target: label\ndoc_to_choice: ['corn', 'ships']\n";
constexpr const char* kTaskRows =
    "{\"q\": \"the king asked about\", \"label\": 0}\n{\"q\": \"his council of\", \"label\": 1}\n"
    "{\"q\": \"the experts\", \"label\": 1}\n";

TEST_F(TrainedRunTest, ScoresTasksAndWritesResults) {
  write_text(own_ / "tasks/small.yaml", kTask);
  write_text(own_ / "tasks/rows.jsonl", kTaskRows);
  write_text(own_ / "tasks/all.yaml", "group: all\ntask: [small]\naggregate_metric_list: [{metric: acc}]\n");
  const std::string scores = own_ / "scores.json", answers = own_ / "answers.jsonl";
  const Said table = run({"eval", "--tasks", own_ / "tasks", "--json", scores, "--log-samples", answers});
  ASSERT_EQ(table.code, 0) << table.err;
  EXPECT_TRUE(contains(table.out, "task   shots  rows  metric     value  std. error\n")) << table.out;
  EXPECT_TRUE(contains(table.out, "\nsmall      0     3  acc       ")) << table.out;
  EXPECT_TRUE(contains(table.out, "\nall              3  acc       ")) << table.out;
  const auto json = nlohmann::json::parse(read_text(scores));
  EXPECT_EQ(json["run"], "small");
  EXPECT_EQ(json["step"], 6);
  EXPECT_EQ(json["n-shot"]["small"], 0);
  EXPECT_EQ(json["results"]["small"]["acc,none"], json["groups"]["all"]["acc,none"]);
  double right = 0;
  int lines = 0;
  std::istringstream samples(read_text(answers));
  for (std::string line; std::getline(samples, line); ++lines) {
    const auto sample = nlohmann::json::parse(line);
    EXPECT_EQ(sample["continuations"], (std::vector<std::string>{" corn", " ships"}));
    const int best = sample["loglikelihoods"][1] > sample["loglikelihoods"][0] ? 1 : 0;
    right += best == sample["target"][0] ? 1 : 0;
  }
  EXPECT_EQ(lines, 3);
  EXPECT_DOUBLE_EQ(json["results"]["small"]["acc,none"].get<double>(), right / 3);
  // Figures do not depend on batch size and threads, but differ for the previous checkpoint.
  const std::string text = run({"eval", "--tasks", own_ / "tasks", "--json"}).out;
  EXPECT_EQ(nlohmann::json::parse(text), json);
  for (const char* size : {"1", "5"})
    EXPECT_EQ(run({"eval", "--tasks", own_ / "tasks", "--json", "--batch-size", size, "--threads", size}).out, text);
  // Its own files are replaced, but no others.
  EXPECT_EQ(run({"eval", "--tasks", own_ / "tasks", "--json", scores, "--log-samples", answers}).code, 0);
  const std::string tasks = own_ / "tasks", rows = own_ / "tasks/rows.jsonl";
  const std::string refused = rows + " is there already and is no file of ";
  for (const std::vector<std::string>& args : {std::vector<std::string>{"--json", rows}, {"--log-samples", rows}}) {
    const Said said = run({"eval", "--tasks", tasks, args[0], args[1]});
    EXPECT_EQ(said.code, 2);
    EXPECT_TRUE(contains(said.err, "witan eval: " + args[0] + " " + refused)) << said.err;
  }
  EXPECT_EQ(read_text(rows), kTaskRows);
  run({"eval", "--tasks", own_ / "tasks", "--run", "small@3", "--log-samples", own_ / "before.jsonl"});
  EXPECT_NE(read_text(own_ / "before.jsonl"), read_text(answers));
}

TEST_F(TrainedRunTest, TasksSupportFewerRowsMoreExamplesAndShorterContexts) {
  const std::string task = own_ / "small.yaml";
  write_text(task, kTask);
  write_text(own_ / "rows.jsonl", kTaskRows);
  const auto json =
      nlohmann::json::parse(run({"eval", "--tasks", task, "--json", "--limit", "2", "--num-fewshot", "1"}).out);
  EXPECT_EQ(json["results"]["small"]["sample_len"], 2);
  EXPECT_EQ(json["n-shot"]["small"], 1);
  const Said truncated = run({"eval", "--tasks", task, "--max-length", "2"});
  EXPECT_EQ(truncated.code, 0) << truncated.err;
  EXPECT_TRUE(contains(truncated.err, "warning: small: ")) << truncated.err;
  EXPECT_TRUE(contains(truncated.err, "are longer than 2 tokens (--max-length)")) << truncated.err;
  expect_refusal({"eval", "--tasks", task, "--all", "--runs-folder", runs()}, 2, {"--all"});
  expect_refusal({"eval", "--limit", "2", "--runs-folder", runs()}, 2, {"--tasks"});
  expect_refusal({"eval", "--deterministic", "--runs-folder", runs()}, 2, {"--tasks"});
  write_text(task, std::string(kTask) + "process_docs: !function utils.process\n");
  expect_refusal({"eval", "--tasks", task, "--runs-folder", runs()}, 4, {"small.yaml: process_docs: ", "Python"});
}

// Several batches need no more than one, whatever scratch space the threads have; a shorter last one has its own share.
TEST_F(TrainedRunTest, EvaluationFitsItsArenaOnAnyNumberOfThreads) {
  for (int i = 0; i < 20; ++i) write_text(own_ / ("text/" + std::to_string(i) + ".txt"), some_text(60));
  const std::string runs = own_ / "runs";
  const Said trained = witan({"train",
                              "--runs-folder",
                              runs,
                              "--data",
                              own_ / "text",
                              "--tokenizer-vocab-size",
                              "300",
                              "--train-iters",
                              "1",
                              "--sample-tokens",
                              "0",
                              "--held-out-fraction",
                              "0.3",
                              "--threads",
                              "1",
                              "--ranks",
                              "1",
                              "--global-batch-size",
                              "8",
                              "--num-layers",
                              "2",
                              "--hidden-size",
                              "64",
                              "--micro-batch-size",
                              "8",
                              "--seq-length",
                              "128",
                              "--eval-iters",
                              "2"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  std::string table, all;
  for (const char* threads : {"1", "2", "3", "4"}) {
    const auto eval = [&](std::vector<std::string> args) {
      args.insert(args.end(), {"--runs-folder", runs, "--threads", threads});
      const Said said = witan(args);
      EXPECT_EQ(said.code, 0) << threads << " threads: " << said.err;
      return said.out;
    };
    const std::string here = eval({"eval"}), here_all = eval({"eval", "--all", "--json"});
    eval({"eval", "--all"});
    eval({"eval", "--json"});
    eval({"eval", "--data", own_ / "text", "--json"});
    if (table.empty()) table = here, all = here_all;
    EXPECT_EQ(here, table) << threads << " threads";
    EXPECT_EQ(here_all, all) << threads << " threads";
  }
}

TEST_F(TrainedRunTest, GreedyTextIsIndependentOfTheSeed) {
  const std::string text = run({"generate", "the", "--greedy", "--max-tokens", "10"}).out;
  EXPECT_EQ(run({"generate", "the", "--greedy", "--max-tokens", "10", "--seed", "9"}).out, text);
  EXPECT_EQ(run({"generate", "the", "--top-k", "1", "--max-tokens", "10", "--seed", "9"}).out, text);
}

TEST_F(TrainedRunTest, PromptsMayComeFromAnySourceOrNone) {
  const std::string text = run({"generate", "the king", "--max-tokens", "5"}).out;
  EXPECT_EQ(run({"generate", "-", "--max-tokens", "5"}, "the king").out, text);
  const Said empty = run({"generate", "--max-tokens", "5"});
  EXPECT_EQ(empty.code, 0) << empty.err;
  EXPECT_FALSE(empty.out.empty());
  EXPECT_EQ(run({"generate", "the king", "--max-tokens", "0"}).out, "the king\n");
}

TEST_F(TrainedRunTest, StatisticsAreNotInTheData) {
  const Said said = run({"generate", "the king", "--max-tokens", "5", "--verbose"});
  EXPECT_EQ(said.out, run({"generate", "the king", "--max-tokens", "5"}).out);
  EXPECT_TRUE(contains(said.err, "tokens/s; run small, step 6")) << said.err;
}

TEST_F(TrainedRunTest, RefusesImpossibleSampling) {
  expect_refusal({"generate", "x", "--temperature", "-1", "--runs-folder", runs()}, 3, {"temperature"});
  expect_refusal({"generate", "x", "--top-p", "0", "--runs-folder", runs()}, 3, {"top_p"});
  expect_refusal({"generate", "x", "--top-k", "-4", "--runs-folder", runs()}, 3, {"top_k"});
}

TEST_F(TrainedRunTest, EvaluatesLikeTraining) {
  const Said said = run({"eval", "--json"});
  ASSERT_EQ(said.code, 0) << said.err;
  const auto json = nlohmann::json::parse(said.out);
  EXPECT_EQ(json["step"], 6);
  const std::string metrics = read_text(fs::path(runs()) / "small/metrics.jsonl");
  std::istringstream lines(metrics);
  nlohmann::json last;
  for (std::string line; std::getline(lines, line);)
    if (auto event = nlohmann::json::parse(line); event["kind"] == "eval") last = event;
  EXPECT_NEAR(json["loss"].get<double>(), last["loss"].get<double>(), 1e-6);
  EXPECT_NEAR(json["bits_per_byte"].get<double>(), last["bits_per_byte"].get<double>(), 1e-6);
  EXPECT_NEAR(json["perplexity"].get<double>(), std::exp(json["loss"].get<double>()), 1e-6);
  const auto all = nlohmann::json::parse(run({"eval", "--all", "--json"}).out);
  EXPECT_GE(all["tokens"].get<double>(), json["tokens"].get<double>());
}

TEST_F(TrainedRunTest, EvaluatesEveryByteOfGivenText) {
  const std::string text = some_text(30);
  write_text(own_ / "new.txt", text);
  const auto json = nlohmann::json::parse(run({"eval", "--data", own_ / "new.txt", "--json"}).out);
  EXPECT_EQ(json["bytes"].get<double>(), static_cast<double>(text.size()));
  EXPECT_GT(json["bits_per_byte"].get<double>(), 0);
  const Said table = run({"eval", "--data", own_ / "new.txt"});
  EXPECT_TRUE(contains(table.out, "perplexity  ")) << table.out;
  EXPECT_TRUE(contains(table.out, "bits/byte  ")) << table.out;
}

TEST_F(TrainedRunTest, EvalAcceptsListsAndFlagsLikeTrain) {
  const std::string a = own_ / "a.txt", b = own_ / "b.jsonl";
  write_text(a, some_text(10));
  write_text(b, "{\"text\": \"the king and his ships\"}\n{\"txt\": 3}\n");
  const auto bytes = [&](std::vector<std::string> data) {
    data.insert(data.begin(), "eval");
    data.insert(data.end(), {"--json", "--bad-row-share", "0.6"});
    const Said said = run(data);
    EXPECT_EQ(said.code, 0) << said.err;
    return nlohmann::json::parse(said.out)["bytes"].get<double>();
  };
  const double both = static_cast<double>(some_text(10).size()) + 22;
  EXPECT_EQ(bytes({"--data", a, b}), both);
  EXPECT_EQ(bytes({"--data", a + "," + b}), both);
  EXPECT_EQ(bytes({"--data", a, "--data", b}), both);
  write_text(a, "caf\xe9");
  expect_refusal({"eval", "--data", a, "--runs-folder", runs()}, 4, {"a.txt: byte 3", "--replace-invalid-utf8"});
  EXPECT_EQ(run({"eval", "--data", a, "--replace-invalid-utf8"}).code, 0);
}

TEST_F(TrainedRunTest, EvalNamesSkippedFiles) {
  const fs::path folder = own_ / "folder";
  fs::create_directories(folder);
  write_text(folder / "a.txt", some_text(10) + "caf\xe9");
  write_text(folder / "picture", std::string("\0\1", 2));
  write_text(folder / "rows.jsonl", "{\"text\": \"the king\"}\n{\"txt\": 3}\n");
  fs::create_symlink("nowhere", folder / "link.txt");
  const Said said = run({"eval", "--data", folder, "--replace-invalid-utf8", "--bad-row-share", "0.6"});
  EXPECT_EQ(said.code, 0) << said.err;
  for (const char* words :
       {"1 binary file (", "1 broken link (", "1 of 2 rows is unusable", "U+FFFD replaces 1 byte sequence"})
    EXPECT_TRUE(contains(said.err, words)) << words << "\n" << said.err;
}

TEST_F(TrainedRunTest, EvalRefusesMissingText) {
  expect_refusal({"eval", "--data", own_ / "none.txt", "--runs-folder", runs()}, 4, {"none.txt"});
  write_text(own_ / "empty.txt", "");
  expect_refusal({"eval", "--data", own_ / "empty.txt", "--runs-folder", runs()}, 4, {"empty"});
  expect_refusal({"eval", "--data", "x", "--all", "--runs-folder", runs()}, 2, {"--all"});
}

TEST_F(TrainedRunTest, WritesTheReport) {
  const std::string copied = copy();
  const fs::path page = fs::path(copied) / "small/report.html";
  fs::remove(page);
  const Said said = witan({"report", "--runs-folder", copied});
  EXPECT_EQ(said.code, 0) << said.err;
  EXPECT_TRUE(contains(read_text(page), "<html"));
  for (const std::string& piece :
       {std::string("steps         6 of 6"), std::string("bits/byte at step 6"), page.string()})
    EXPECT_TRUE(contains(said.out, piece)) << piece << " in\n" << said.out;
  EXPECT_EQ(witan({"report", "small", "--runs-folder", copied}).code, 0);
  fs::remove(fs::path(copied) / "small/metrics.jsonl");
  expect_refusal({"report", "--runs-folder", copied}, 4, {"metrics.jsonl"});
}

TEST_F(TrainedRunTest, RefusalsOfMissingRunsNameExistingOnes) {
  for (const char* command : {"generate", "eval"})
    expect_refusal({command, "--run", "smal", "--runs-folder", runs()}, 2,
                   {"there is no run smal", "did you mean small?"});
  expect_refusal({"report", "smal", "--runs-folder", runs()}, 2, {"did you mean small?"});
  expect_refusal({"generate", "--runs-folder", own_ / "none"}, 2, {"train one first", "witan train"});
}

TEST_F(TrainedRunTest, ReportsARunWithoutACheckpoint) {
  const std::string copied = copy();
  fs::remove_all(fs::path(copied) / "small/checkpoints");
  expect_refusal({"generate", "--runs-folder", copied}, 5,
                 {"small: metrics.jsonl says that the checkpoint of step ", "Restore one from a copy"});
  fs::remove(fs::path(copied) / "small/metrics.jsonl");
  expect_refusal({"generate", "--runs-folder", copied}, 5, {"small has no checkpoint yet"});
}

TEST_F(TrainedRunTest, SkipsADamagedCheckpointAndRefusesTheLastOne) {
  const std::string copied = copy();
  const fs::path checkpoints = fs::path(copied) / "small/checkpoints";
  damage(checkpoints / "step-6");
  const Said said = witan({"generate", "the", "--max-tokens", "3", "--verbose", "--runs-folder", copied});
  EXPECT_EQ(said.code, 0) << said.err;
  EXPECT_TRUE(contains(said.err, "warning: ") && contains(said.err, "step 3")) << said.err;
  damage(checkpoints / "step-3");
  expect_refusal({"generate", "--runs-folder", copied}, 5, {"no checkpoint is intact", "step-3", "step-6"});
}

// All steps are in a checkpoint, but the process was killed afterwards.
TEST_F(TrainedRunTest, ARunKilledAfterItsLastCheckpointIsFinished) {
  for (const std::string& last : {std::string(), std::string("{\"kind\":\"measured_memory\""),
                                  std::string("{\"kind\":\"end\",\"reason\":\"failed: lost rank 1\"}\n")}) {
    fs::remove_all(own_ / "runs");
    const std::string copied = copy();
    const fs::path run = fs::path(copied) / "small", metrics = run / "metrics.jsonl";
    std::string text = read_text(metrics);
    text.resize(text.find("{\"kind\":\"measured_memory\""));
    write_text(metrics, text + last);
    fs::remove(run / "report.html");
    const auto call = [&](const std::vector<std::string>& more) {
      std::vector<std::string> words = {"train", "--runs-folder", copied, "--run", "small"};
      words.insert(words.end(), more.begin(), more.end());
      const Said said = witan(words);
      EXPECT_EQ(said.code, 0) << said.err;
    };
    const auto state = [&] {
      for (const auto& one : nlohmann::json::parse(witan({"runs", "--runs-folder", copied, "--json"}).out))
        if (one["name"] == "small") return one["state"].get<std::string>();
      return std::string("there is none");
    };
    EXPECT_EQ(state(), "failed");
    call({"--dry-run"});
    EXPECT_EQ(read_text(metrics), text + last);
    call({});
    EXPECT_EQ(state(), "finished");
    EXPECT_EQ(read_text(metrics), text + "{\"kind\":\"end\",\"reason\":\"finished\"}\n");
    EXPECT_TRUE(fs::exists(run / "report.html"));
    EXPECT_TRUE(contains(read_text(run / "train.log"),
                         "end: finished (recorded by a later call: the process ended after its last save)"));
    call({});
    EXPECT_EQ(read_text(metrics), text + "{\"kind\":\"end\",\"reason\":\"finished\"}\n") << "reported once";
  }
}

TEST_F(TrainedRunTest, TrainContinuesWithTheRunsOwnConfiguration) {
  const std::string copied = copy();
  const std::vector<std::string> again = {"train", "--runs-folder", copied, "--run", "small"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), again.begin(), again.end());
    return more;
  };
  const Said finished = witan(again);
  EXPECT_TRUE(contains(finished.err, "is finished: 6 steps are done")) << finished.err;
  EXPECT_EQ(finished.out, "");
  expect_refusal(with({"--train-iters", "7", "--num-layers", "3"}), 3,
                 {"num_layers = 3 (was 2)", "--run NAME", "--fresh"});
  const Said said = witan(with({"--train-iters", "7"}));
  EXPECT_EQ(said.code, 0) << said.err;
  EXPECT_TRUE(contains(said.err, "step 6 of 7")) << said.err;
  EXPECT_TRUE(fs::exists(fs::path(copied) / "small/checkpoints/step-7"));
}

TEST_F(TrainedRunTest, MissingShardsAreDataErrors) {
  const std::string copied = copy();
  fs::remove_all(fs::path(copied) / "small/data");
  expect_refusal({"eval", "--runs-folder", copied}, 4, {"tokens"});
}

}  // namespace
}  // namespace witan::test
