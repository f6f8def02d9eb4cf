// witan train from the user's perspective: output and exit codes.
#include "cli/train/train_command.h"

#include <nlohmann/json.hpp>
#include <sstream>

#include "witan/report/events/metrics.h"
#include "witan/tensor/cuda.h"

namespace witan::test {
namespace {

namespace fs = std::filesystem;

// With 289 words, one model runs on 1, 2 and 4 ranks, which resume each other's checkpoints.
TEST_F(TrainCommandTest, AnOddVocabularyTrainsOnAnyNumberOfTensorRanks) {
  const auto on = [&](const std::string& run, const std::string& ranks, const std::string& steps) {
    return train({"--run",
                  run,
                  "--ranks",
                  ranks,
                  "--tensor-model-parallel-size",
                  ranks,
                  "--sequence-parallel",
                  "true",
                  "--num-experts",
                  "0",
                  "--num-query-groups",
                  "4",
                  "--tokenizer-vocab-size",
                  "289",
                  "--init-method",
                  "torch",
                  "--dtype",
                  "float64",
                  "--sample-tokens",
                  "0",
                  "--train-iters",
                  steps});
  };
  const auto losses = [&](const std::string& run) {
    std::vector<double> of_steps;
    for (const StepEvent& step : read_metrics(own_ / ("runs/" + run + "/metrics.jsonl")).steps)
      of_steps.push_back(step.loss);
    return of_steps;
  };
  for (const char* ranks : {"1", "2", "4"}) {
    const Said said = on(ranks, ranks, "2");
    ASSERT_EQ(said.code, 0) << said.err;
    ASSERT_EQ(losses(ranks).size(), 2U);
    for (size_t step = 0; step < 2; ++step) EXPECT_NEAR(losses(ranks)[step], losses("1")[step], 1e-9) << ranks;
  }
  const Said moved = on("1", "2", "3"), back = on("2", "1", "3");
  EXPECT_EQ(moved.code, 0) << moved.err;
  EXPECT_EQ(back.code, 0) << back.err;
  ASSERT_EQ(losses("1").size(), 3U);
  ASSERT_EQ(losses("2").size(), 3U);
  EXPECT_NEAR(losses("1")[2], losses("2")[2], 1e-9);
}

TEST_F(TrainCommandTest, TrainsReportsTheEndAndStartsOver) {
  const Said first = train();
  EXPECT_EQ(first.code, 0) << first.err;
  for (const char* word : {"tokenizer", "model", "ranks", "work", "about"})
    EXPECT_NE(first.err.find(word), std::string::npos) << word;
  for (const char* word : {"validation   ", "bits per byte", "Kneser-Ney", "tokens/s in the median step; 2 steps in ",
                           "memory", "report", "continue", "write text"})
    EXPECT_NE(first.err.find(word), std::string::npos) << word;
  EXPECT_TRUE(first.out.starts_with("The ")) << "only the sample: " << first.out;
  EXPECT_EQ(std::count(first.out.begin(), first.out.end(), '\n'), 1) << first.out;
  EXPECT_TRUE(fs::exists(own_ / "runs/default/report.html"));

  const Said again = train();
  EXPECT_EQ(again.code, 0);
  EXPECT_NE(again.err.find("is finished: 2 steps are done"), std::string::npos) << again.err;

  EXPECT_EQ(again.err.find("not used"), std::string::npos) << again.err;
  EXPECT_EQ(again.out, "");
  const Said unused = train({"--lr", "0.5"});
  EXPECT_EQ(unused.code, 0);
  EXPECT_NE(unused.err.find("not used     lr = 0.5 (the run's: 0.001)\n"), std::string::npos) << unused.err;

  const Said longer = witan({"train", "--runs-folder", own_ / "runs", "--train-iters", "3"});
  EXPECT_EQ(longer.code, 0) << longer.err;
  EXPECT_NE(longer.err.find("step 2 of 3"), std::string::npos) << longer.err;

  const Said fresh = train({"--fresh"});
  EXPECT_EQ(fresh.code, 0) << fresh.err;
  EXPECT_TRUE(fs::exists(own_ / "runs/default.1/report.html"));
}

// The command suggested on the line with this label, without a trailing remark, as words.
std::vector<std::string> suggested(const std::string& said, const std::string& label) {
  const size_t at = said.find("\n" + label);
  if (at == std::string::npos) return {};
  std::string line = said.substr(at + 1 + label.size(), said.find('\n', at + 1) - at - 1 - label.size());
  std::istringstream words(line.substr(0, line.find("   (")));
  std::vector<std::string> all;
  for (std::string word; words >> std::quoted(word, '\'');) all.push_back(word);
  return all;
}

TEST_F(TrainCommandTest, CommandsSuggestedAtTheEndWork) {
  const Said first = train({"--run", "mine"});
  ASSERT_EQ(first.code, 0) << first.err;
  for (const char* label : {"continue     ", "write text   ", "the report   "}) {
    std::vector<std::string> words = suggested(first.err, label);
    ASSERT_GT(words.size(), 3u) << label << first.err;
    EXPECT_EQ(words.front(), "witan");
    words.erase(words.begin());
    const Said said = witan(words);
    EXPECT_EQ(said.code, 0) << label << said.err;
  }
}

TEST_F(TrainCommandTest, AMissingGpuIsADeviceError) {
  if (cuda::devices() > 0) GTEST_SKIP() << "this machine has a GPU";
  const Said said = train({"--device", "cuda"});
  EXPECT_EQ(said.code, 10) << said.err;
  EXPECT_NE(said.err.find("device = cuda: "), std::string::npos) << said.err;
}

TEST_F(TrainCommandTest, RefusesWhatNoGpuSupportsBeforeLookingForOne) {
  const Said experts = witan({"plan", "--device", "cuda", "--num-experts", "2048"});
  EXPECT_EQ(experts.code, 3) << experts.err;
  EXPECT_NE(experts.err.find("the GPU router supports at most 1024"), std::string::npos) << experts.err;
  const Said chosen = witan({"plan", "--device", "cuda", "--num-experts", "128", "--moe-router-topk", "65"});
  EXPECT_EQ(chosen.code, 3) << chosen.err;
  EXPECT_NE(chosen.err.find("supports at most 64"), std::string::npos) << chosen.err;
  const Said gpu = train({"--device", "gpu"});
  EXPECT_EQ(gpu.code, 3);
  EXPECT_NE(gpu.err.find("did you mean cuda?"), std::string::npos) << gpu.err;
}

TEST_F(TrainCommandTest, RefusesToResumeWithAnotherModel) {
  ASSERT_EQ(train().code, 0);
  const Said other = train({"--num-query-groups", "4"});
  EXPECT_EQ(other.code, 3);
  EXPECT_NE(other.err.find("num_query_groups = 4 (was 2)"), std::string::npos) << other.err;
  EXPECT_NE(other.err.find("--fresh"), std::string::npos) << other.err;
}

// Errors are found before text is tokenized, and are not reported as a changed configuration of the run.
TEST_F(TrainCommandTest, ChecksInitialWeightsBeforeAnyWork) {
  const auto refused = [&](const std::vector<std::string>& more, const std::string& piece) {
    const Said said = train(more);
    EXPECT_EQ(said.code, 3) << said.err;
    EXPECT_TRUE(contains(said.err, piece)) << said.err;
  };
  refused({"--data-weights", "1,2,3"}, "data_weights = 1,2,3: 3 weights for 1 dataset: give one for each");
  refused({"--split", "99;1"}, "split = 99;1 must be up to three shares");
  EXPECT_FALSE(fs::exists(own_ / "runs")) << "before any work";
  const Said nowhere = train({"--upcycle", "nope"});
  EXPECT_EQ(nowhere.code, 5) << nowhere.err;
  EXPECT_TRUE(contains(nowhere.err, "upcycle = nope: there is neither a checkpoint, nor a run")) << nowhere.err;
  EXPECT_FALSE(contains(nowhere.err, "tokeniz")) << nowhere.err;
  EXPECT_FALSE(fs::exists(own_ / "runs")) << "before any work";
  ASSERT_EQ(train().code, 0);
  refused({"--data-weights", "x"}, "data_weights = x: x is not a number from 0 on");
  refused({"--split", "99;1"}, "split = 99;1 must be up to three shares");
}

TEST_F(TrainCommandTest, AnotherPathToTheSameTextIsTheSameRun) {
  ASSERT_EQ(train().code, 0);
  const fs::path link = own_ / "link";
  fs::create_directory_symlink(own_ / "text", link);
  for (const fs::path& same : {own_ / "runs/../text", link})
    EXPECT_EQ(train({"--data", same, "--train-iters", "2"}).code, 0) << same;
  fs::copy(own_ / "text", own_ / "other");
  const Said other = train({"--data", own_ / "other"});
  EXPECT_EQ(other.code, 3) << other.err;
  EXPECT_TRUE(contains(other.err, "data = \"" + (own_ / "other").string() + "\" (was ")) << other.err;
}

// The call's settings override the run's, and errors distinguish the two where they conflict.
TEST_F(TrainCommandTest, RefusalsDistinguishTheRunsValuesFromTheCalls) {
  ASSERT_EQ(train({"--mesh", "shard=2,expert=2"}).code, 0);
  const std::string remembered = "expert_model_parallel_size = 2 is from config.toml of the run " +
                                 (own_ / "runs/default").string() +
                                 ": give --expert-model-parallel-size (or expert=N in --mesh) to change it";
  for (const char* command : {"train", "plan"})
    expect_refusal({command, "--runs-folder", own_ / "runs", "--mesh", "tensor=1", "--train-iters", "3"}, 3,
                   {"expert_model_parallel_size = 2: more ranks than the 1 there are", remembered});
  const Said own = witan({"train", "--runs-folder", own_ / "runs", "--mesh", "tensor=1,expert=2"});
  EXPECT_EQ(own.code, 3);
  EXPECT_FALSE(contains(own.err, "config.toml")) << own.err;
  const Said other =
      witan({"train", "--runs-folder", own_ / "runs", "--mesh", "tensor=1,expert=1", "--train-iters", "3"});
  EXPECT_EQ(other.code, 0) << other.err;
  EXPECT_TRUE(contains(other.err, "ranks        1 of ")) << other.err;
}

TEST_F(TrainCommandTest, ReportsItsLayoutAndSharding) {
  const Said said = train({"--mesh", "replicate=2,shard=2,expert=2", "--data-parallel-sharding-strategy",
                           "optim_grads_params", "--global-batch-size", "4", "--micro-batch-size", "1"});
  ASSERT_EQ(said.code, 0) << said.err;
  EXPECT_TRUE(contains(said.err, "\nlayout       replicate=2,shard=2,expert=2\n")) << said.err;
  EXPECT_TRUE(
      contains(said.err,
               "\nsharded      HSDP (optim_grads_params): values, gradients and optimizer are sharded over shard "
               "(2 ranks); experts are not sharded, since expert_shard has one rank; each of 2 replicas"))
      << said.err;
}

// This holds for short runs and for long logging intervals.
TEST_F(TrainCommandTest, ReportsTheFirstAndTheLastStep) {
  const Said said = train({"--train-iters", "3", "--log-interval", "100"});
  ASSERT_EQ(said.code, 0) << said.err;
  EXPECT_TRUE(contains(said.err, "\nstep 1/3  loss ")) << said.err;
  EXPECT_FALSE(contains(said.err, "step 2/3")) << said.err;
  EXPECT_TRUE(contains(said.err, "\nstep 3/3  loss ")) << said.err;
  const Said longer = train({"--train-iters", "5", "--log-interval", "100"});
  EXPECT_TRUE(contains(longer.err, "\nstep 4/5  loss ")) << longer.err;
}

// Messages from before the log was opened are included.
TEST_F(TrainCommandTest, LogsWarnings) {
  const std::vector<std::string> warnings = {"kv_lora_rank = 64 has no effect: it needs multi_latent_attention = true",
                                             "lr_warmup_iters = 3 is not below train_iters = 3",
                                             "no_load_rng has no effect"};
  const Said said = train({"--train-iters", "3", "--kv-lora-rank", "64", "--lr-warmup-iters", "3", "--no-load-rng"});
  ASSERT_EQ(said.code, 0) << said.err;
  const std::string log = read_text(own_ / "runs/default/train.log");
  for (const std::string& warning : warnings) {
    EXPECT_TRUE(contains(said.err, warning)) << said.err;
    EXPECT_TRUE(contains(log, "Z warning " + warning)) << log;
  }
}

// At this rate no evaluation is better than the first.
TEST_F(TrainCommandTest, TheSuggestedCommandContinuesAnEarlyStoppedRun) {
  const Said stopped = train({"--train-iters", "20", "--eval-interval", "2", "--early-stopping-patience", "1", "--lr",
                              "1e-12", "--lr-warmup-iters", "0"});
  ASSERT_EQ(stopped.code, 0) << stopped.err;
  const std::string line = "continue     witan train --runs-folder " + (own_ / "runs").string();
  EXPECT_TRUE(contains(stopped.err, line + " --early-stopping-patience 0\n")) << stopped.err;
  const auto again = [&](const std::vector<std::string>& flags) {
    std::vector<std::string> words = {"train", "--runs-folder", own_ / "runs"};
    words.insert(words.end(), flags.begin(), flags.end());
    return witan(words);
  };
  const Said early = again({});
  EXPECT_TRUE(contains(early.err, "was stopped early, after 4 of 20 steps")) << early.err;
  EXPECT_TRUE(contains(early.err, line + " --early-stopping-patience 0\n")) << early.err;
  const Said fewer = again({"--train-iters", "3"});
  EXPECT_EQ(fewer.code, 0);
  EXPECT_TRUE(contains(fewer.err, "has done 4 of 20 steps, and train_iters = 3 asks for no more")) << fewer.err;
  EXPECT_FALSE(contains(fewer.err, "stopped early")) << fewer.err;
  EXPECT_TRUE(contains(fewer.err, line + " --early-stopping-patience 0\n")) << fewer.err;
  EXPECT_TRUE(contains(again({"--train-iters", "3", "--early-stopping-patience", "0"}).err,
                       line + " --early-stopping-patience 0\n"));
  const Said on = again({"--early-stopping-patience", "0", "--train-iters", "6"});
  EXPECT_EQ(on.code, 0) << on.err;
  EXPECT_EQ(read_metrics(own_ / "runs/default/metrics.jsonl").steps.size(), 6U);
}

// Both limits are reached: more steps alone would stop again before the first one.
TEST_F(TrainCommandTest, AFinishedRunAtItsEarlyStopContinuesPastBoth) {
  const Said finished = train({"--train-iters", "4", "--eval-interval", "2", "--early-stopping-patience", "1", "--lr",
                               "1e-12", "--lr-warmup-iters", "0", "--lr-decay-style", "constant"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  const std::string command = "witan train --runs-folder " + (own_ / "runs").string();
  const std::string line = "continue     " + command + " --early-stopping-patience 0 --train-iters 8\n";
  EXPECT_TRUE(contains(finished.err, line)) << finished.err;
  const auto again = [&](const std::vector<std::string>& flags) {
    std::vector<std::string> words = {"train", "--runs-folder", own_ / "runs"};
    words.insert(words.end(), flags.begin(), flags.end());
    return witan(words);
  };
  EXPECT_TRUE(contains(again({}).err, line));
  const Said stopped = again({"--train-iters", "6"});
  EXPECT_TRUE(contains(stopped.err, "was stopped early, after 4 of 4 steps")) << stopped.err;
  EXPECT_TRUE(contains(stopped.err, line)) << stopped.err;
  EXPECT_EQ(again({"--early-stopping-patience", "0", "--train-iters", "8"}).code, 0);
  EXPECT_EQ(read_metrics(own_ / "runs/default/metrics.jsonl").steps.size(), 8U);
}

TEST_F(TrainCommandTest, FreshKeepsTheConfigurationAndArchivesOnlyWhenItCanStart) {
  ASSERT_EQ(train().code, 0);
  EXPECT_EQ(train({"--fresh", "--data", own_ / "nowhere"}).code, 4);
  EXPECT_EQ(train({"--fresh", "--moe-router-topk", "1"}).code, 3);
  EXPECT_FALSE(fs::exists(own_ / "runs/default.1")) << "the run is not archived";
  const Said anew = witan({"train", "--runs-folder", own_ / "runs", "--fresh"});
  EXPECT_EQ(anew.code, 0) << anew.err;
  EXPECT_NE(anew.err.find("1 layer of width 16"), std::string::npos) << anew.err;
}

// Some problems of a text are found only by reading all of it.
TEST_F(TrainCommandTest, AFailedFreshStartDoesNotArchiveTheRun) {
  ASSERT_EQ(train().code, 0);
  write_text(own_ / "empty.txt", "");
  write_text(own_ / "rows.jsonl", "{\"text\": \"one row\"}\n{\"text\": \n{\"txt\": 1}\n");
  const std::string config = read_text(own_ / "runs/default/config.toml");
  for (const char* data : {"empty.txt", "rows.jsonl"}) {
    const Said failed = train({"--fresh", "--data", own_ / data});
    EXPECT_EQ(failed.code, 4) << failed.err;
    EXPECT_FALSE(contains(failed.err, "archived")) << failed.err;
    EXPECT_FALSE(fs::exists(own_ / "runs/default.1"));
    EXPECT_EQ(read_text(own_ / "runs/default/config.toml"), config);
    const Said again = witan({"train", "--runs-folder", own_ / "runs"});
    EXPECT_TRUE(contains(again.err, "is finished: 2 steps are done")) << again.err;
  }
  std::string rows;
  for (int i = 0; i < 2000; ++i) rows += "{\"text\": \"" + some_text(5) + "\"}\n";
  write_text(own_ / "rows.jsonl", rows + "{\"text\": \n");
  const Said anew = train({"--fresh", "--data", own_ / "rows.jsonl"});
  EXPECT_EQ(anew.code, 0) << anew.err;
  const std::string archived = "archived     " + (own_ / "runs/default.1").string() + "\n";
  EXPECT_TRUE(contains(anew.err, archived)) << anew.err;
  const fs::path broken = own_ / "runs/default/data/tokens.quarantine.jsonl";
  EXPECT_TRUE(contains(anew.err, "see " + broken.string())) << anew.err;
  EXPECT_TRUE(fs::exists(broken));
  EXPECT_FALSE(fs::exists(own_ / "runs/.default.fresh"));
}

TEST_F(TrainCommandTest, RestoresALostConfigurationFromTheCheckpoint) {
  ASSERT_EQ(train().code, 0);
  write_text(own_ / "runs/default/config.toml", "");
  const Said longer = witan({"train", "--runs-folder", own_ / "runs", "--train-iters", "3"});
  EXPECT_EQ(longer.code, 0) << longer.err;
  EXPECT_NE(longer.err.find("1 layer of width 16"), std::string::npos) << longer.err;
}

TEST_F(TrainCommandTest, AnnouncesALongerSchedule) {
  ASSERT_EQ(train({"--lr-warmup-iters", "0"}).code, 0);
  const Said longer = witan({"train", "--runs-folder", own_ / "runs", "--train-iters", "20"});
  EXPECT_NE(longer.err.find("the learning rate goes from"), std::string::npos) << longer.err;
}

// The words after "continue     witan" in the output, up to a remark in brackets.
std::vector<std::string> advised(const std::string& said) {
  const std::string label = "\ncontinue     witan ";
  const size_t begin = said.find(label) + label.size();
  std::istringstream line(said.substr(begin, std::min(said.find('\n', begin), said.find("   (", begin)) - begin));
  std::vector<std::string> words;
  for (std::string word; line >> word;) words.push_back(word);
  return words;
}

// A schedule as long as the run, stretched to twice its length, would be halfway up again.
TEST_F(TrainCommandTest, AdviceToContinueKeepsTheLearningRate) {
  const Said first = train({"--train-iters", "20", "--lr-warmup-iters", "2"});
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_TRUE(contains(first.err, "train --runs-folder " + (own_ / "runs").string() +
                                      " --train-iters 40 --lr-decay-iters 20   (the learning rate stays at 0.0001; "
                                      "without --lr-decay-iters it goes up to 0.000"))
      << first.err;
  const Said finished = train({"--train-iters", "20", "--lr-warmup-iters", "2"});
  EXPECT_EQ(advised(finished.err), advised(first.err)) << "at any time";
  const Said longer = witan(advised(first.err));
  ASSERT_EQ(longer.code, 0) << longer.err;
  EXPECT_FALSE(contains(longer.err, "the learning rate goes")) << longer.err;
  const auto steps = read_metrics(own_ / "runs/default/metrics.jsonl").steps;
  EXPECT_DOUBLE_EQ(steps.back().lr, 1e-4);
  EXPECT_EQ(steps.back().step, 40);
  EXPECT_TRUE(contains(longer.err, " --train-iters 80\n")) << "no jump remains: " << longer.err;
}

// Scripts without --run start the run named default: the first line says so, without a question.
TEST_F(TrainCommandTest, ReportsWhichRunItUsesIfAnotherIsTheLatest) {
  ASSERT_EQ(train({"--run", "mine"}).code, 0);
  const Said another = train();
  EXPECT_EQ(another.code, 0) << another.err;
  const std::string folder = (own_ / "runs").string();
  EXPECT_TRUE(another.err.starts_with("run          new run " + folder + "/default on " + (own_ / "text").string() +
                                      "; the latest run is mine: --run mine resumes that one\n"))
      << another.err;
  const Said again = train({"--train-iters", "4"});
  EXPECT_TRUE(again.err.starts_with("run          resuming " + folder + "/default at step 2\n")) << again.err;
  const Said fresh = train({"--fresh"});
  EXPECT_TRUE(fresh.err.starts_with("run          new run " + folder + "/default on " + (own_ / "text").string() +
                                    "; the present run of this name will be kept\n"))
      << fresh.err;
  EXPECT_FALSE(contains(train().err, "the latest run is")) << "now this one is the latest";
  EXPECT_FALSE(contains(train({"--run", "mine"}).err, "the latest run is")) << "as requested";
}

TEST_F(TrainCommandTest, ProgressShowsLearningRateAndGradientNorm) {
  const Said said = train({"--train-iters", "2", "--lr", "0.25", "--lr-warmup-iters", "2"});
  EXPECT_TRUE(contains(said.err, "\nstep 1/2  loss ")) << said.err;
  EXPECT_TRUE(contains(said.err, "  lr 0.125  grad norm ")) << said.err;
}

// The line of an evaluated step waits for the evaluation.
TEST_F(TrainCommandTest, LinesShowOnlyTheirOwnEvaluation) {
  const Said said = train({"--train-iters", "3", "--eval-interval", "2", "--log-interval", "1"});
  ASSERT_EQ(said.code, 0) << said.err;
  std::istringstream lines(said.err);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("step 1/3")) {
      EXPECT_FALSE(contains(line, "validation")) << line;
    } else if (line.starts_with("step 3/3")) {
      EXPECT_TRUE(contains(line, "validation") && !contains(line, "at step")) << line;
    }
  }
}

TEST_F(TrainCommandTest, WarmUpIsNotAChangedSchedule) {
  ASSERT_EQ(train({"--lr-warmup-iters", "10", "--lr-decay-iters", "100"}).code, 0);
  const Said longer = witan({"train", "--runs-folder", own_ / "runs", "--train-iters", "3"});
  EXPECT_EQ(longer.code, 0) << longer.err;
  EXPECT_EQ(longer.err.find("the learning rate goes from"), std::string::npos) << longer.err;
}

TEST_F(TrainCommandTest, PlanReadsTheRunsConfiguration) {
  ASSERT_EQ(train().code, 0);
  const Said plan = witan({"plan", "--runs-folder", own_ / "runs"});
  EXPECT_EQ(plan.code, 0) << plan.err;
  EXPECT_NE(plan.out.find("One step: 128 tokens"), std::string::npos) << plan.out;
}

TEST_F(TrainCommandTest, PlanIgnoresARunThatTrainWouldNotResume) {
  ASSERT_EQ(train().code, 0);
  const auto plan = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"plan", "--runs-folder", own_ / "runs", "--json"});
    return witan(more);
  };
  const auto assumed = [](const Said& said) {
    return said.code == 0 ? nlohmann::json::parse(said.out).value("assumed_vocabulary", 0) : -said.code;
  };
  EXPECT_EQ(assumed(plan({"--lr", "0.1"})), 0) << "the run's tokenizer exists";
  const Said other = plan({"--tokenizer-vocab-size", "4000"});
  EXPECT_EQ(assumed(other), 4000) << other.err;
  EXPECT_TRUE(contains(other.err, "shown for a new run (--run NAME): " + (own_ / "runs/default").string() +
                                      " has another configuration (tokenizer_vocab_size = 4000 (was 300))"))
      << other.err;
  EXPECT_FALSE(contains(other.err, "planned for the run")) << other.err;
  EXPECT_EQ(assumed(plan({"--data", own_ / "other.txt"})), 4096);
  // The plan is as if there were no run.
  const Said made = witan({"tokenizer", "train", own_ / "text", "--output", own_ / "own.json", "--vocab-size", "290"});
  ASSERT_EQ(made.code, 0) << made.err;
  const Said given = plan({"--tokenizer", own_ / "own.json", "--print-layout"});
  const Said alone =
      witan({"plan", "--runs-folder", own_ / "none", "--json", "--tokenizer", own_ / "own.json", "--print-layout"});
  EXPECT_EQ(given.code, 0) << given.err;
  EXPECT_EQ(given.out, alone.out);
}

}  // namespace
}  // namespace witan::test
