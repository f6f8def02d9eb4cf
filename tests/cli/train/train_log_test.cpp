// Logs of a run besides metrics.jsonl: Megatron-LM's log, TensorBoard's files, progress.txt; and a call's message about
// the checkpoint from which it resumes.
#include <cmath>
#include <regex>
#include <sstream>

#include "cli/cli_support.h"
#include "support/run_files.h"
#include "witan/base/files/file.h"
#include "witan/base/threads/threads.h"
#include "witan/checkpoint/store.h"
#include "witan/report/events/metrics.h"
#include "witan/train/config/config.h"
#include "witan/train/state/train_state.h"

namespace witan::test {
namespace {

namespace fs = std::filesystem;

class TrainLog : public ::testing::Test {
 protected:
  TrainLog() {
    for (int i = 0; i < 20; ++i) write_text(own_ / ("text/" + std::to_string(i) + ".txt"), some_text(40));
    write_text(own_ / "run.toml",
               "train_iters = 6\nseq_length = 16\nhidden_size = 16\nnum_layers = 2\nnum_experts = 4\n"
               "ffn_hidden_size = 16\nsample_tokens = 3\ntokenizer_vocab_size = 300\n"
               "held_out_fraction = 0.05\nmicro_batch_size = 2\nglobal_batch_size = 8\nranks = 2\n"
               "threads = 1\neval_interval = 4\nsave_interval = 3\nkeep_last = 9\n"
               "lr_warmup_iters = 2\nlr_decay_iters = 6\n");
  }
  // Runs witan train --run NAME with these settings and `flags`.
  Said train(const std::string& run, const std::string& flags = "") {
    std::vector<std::string> args = {"train",         "--config",    own_ / "run.toml", "--data", own_ / "text",
                                     "--runs-folder", own_ / "runs", "--run",           run};
    std::istringstream words(flags);
    for (std::string word; words >> word;) args.push_back(word);
    Said said = witan(args);
    EXPECT_EQ(said.code, 0) << said.err;
    return said;
  }
  fs::path folder(const std::string& run) { return own_ / "runs" / run; }
  Metrics metrics(const std::string& run) { return read_metrics(folder(run) / "metrics.jsonl"); }
  // The bytes of all tensors at a step.
  std::string tensors(const std::string& run, int64_t step) {
    const fs::path at = folder(run) / "checkpoints" / ("step-" + std::to_string(step));
    return read_text(at / "shard-00000.safetensors") + read_text(at / "shard-00001.safetensors");
  }
  RunConfig config(const std::string& run) {
    RunConfig config;
    read_toml(config.fields(), (folder(run) / "config.toml").string());
    return config;
  }

  TempFolder own_;
};

constexpr const char* kAll =
    "--log-format megatron --log-interval 2 --log-throughput --log-params-norm --log-num-zeros-in-grad --log-progress "
    "--timing-log-level 2";

TEST_F(TrainLog, StandardOutputHasMegatronLmsLines) {
  const Said said = train("m", kAll);
  const std::regex interval(
      R"( \[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] iteration +(\d+)/       6 \| consumed samples: +(\d+) \| )"
      R"(elapsed time per iteration \(ms\): \d+\.\d \| throughput per GPU \(TFLOP/s/GPU\): \d+\.\d \| )"
      R"(learning rate: (\d\.\d{6}E-\d\d) \| global batch size:     8 \| lm loss: (\d\.\d{6}E\+\d\d) \| )"
      R"(load_balancing_loss: \d\.\d{6}E\+\d\d \| loss scale: 1\.0 \| grad norm: (\d+\.\d{3}) \| num zeros: (\d+\.\d) \| )"
      R"(params norm: (\d+\.\d{3}) \| number of skipped iterations:   0 \| number of nan iterations:   0 \|)");
  const Metrics told = metrics("m");
  std::istringstream lines(said.out);
  int64_t intervals = 0;
  for (std::string line; std::getline(lines, line);) {
    std::smatch found;
    if (!std::regex_match(line, found, interval)) continue;
    const int64_t step = 2 * ++intervals;
    EXPECT_EQ(std::stoll(found[1]), step);
    EXPECT_EQ(std::stoll(found[2]), 8 * step);
    const auto event = std::find_if(told.steps.begin(), told.steps.end(), [&](auto& e) { return e.step == step; });
    ASSERT_NE(event, told.steps.end());
    EXPECT_NEAR(std::stod(found[3]), event->lr, 1e-6 * event->lr);
    EXPECT_NEAR(std::stod(found[5]), event->grad_norm, 5e-4);
    EXPECT_DOUBLE_EQ(std::stod(found[6]), event->scalars.get(kNumZeros).value());
    EXPECT_NEAR(std::stod(found[7]), event->scalars.get(kParamsNorm).value(), 5e-4);
    // A checkpoint splits an interval of metrics.jsonl, but not of this log: steps 3 and 4 are separate there.
    if (step == 2) {
      EXPECT_NEAR(std::stod(found[4]), event->loss, 1e-5);
    } else if (step == 4) {
      EXPECT_NEAR(std::stod(found[4]), (told.steps[1].loss + told.steps[2].loss) / 2, 1e-5);
    }
  }
  EXPECT_EQ(intervals, 3) << said.out;
  for (const char* piece :
       {" > number of parameters on (tensor, pipeline) model parallel rank (0, 0): ",
        "Number of buckets for gradient all-reduce / reduce-scatter: 1\nParams for bucket 1 (",
        "\n\tembedding.weight\n", "> total number of epochs: ",
        "done with setup ...\n(min, max) time across ranks (ms):\n    model-and-optimizer-", "training ...\n",
        "Number of parameters in transformer layers in billions:  0.00\n",
        "Theoretical memory footprints: weight and optimizer=",
        "[Rank 0] (after 2 iterations) memory (MB) | allocated: ",
        "    forward-compute ................................: (", "    optimizer ....",
        " validation loss at iteration 4 | lm loss value: ", "    evaluate ....",
        "  successfully saved checkpoint from iteration       3 to ", "[after training is done] datetime: "})
    EXPECT_TRUE(contains(said.out, piece)) << piece << " is not in\n" << said.out;
  EXPECT_FALSE(contains(said.out, "bits per byte")) << "messages are on standard error";
  EXPECT_TRUE(contains(said.err, "bits per byte"));
  EXPECT_TRUE(contains(read_text(folder("m") / "train.log"), " iteration        2/       6 | consumed samples:"));
}

// modded-nanogpt's lines, with Tutel's balance and checks, are all of standard output.
TEST_F(TrainLog, StandardOutputHasModdedNanogptsLines) {
  const Said said = train("n", "--log-format nanogpt --log-interval 2 --check-states");
  const std::regex step(R"(step:(\d)/6 train_time:(\d+)ms step_avg:(\d+\.\d\d)ms)");
  const std::regex validation(
      R"(step:(\d)/6 val_loss:(\d+\.\d{4}) val_balance_loss:(\d\.\d{4}) step_time:(\d+\.\d\d)ms)");
  const std::regex check(R"(\[DEBUG\((weights-init|gradients|weights-upd)\)\] Validat.*)");
  const Metrics told = metrics("n");
  std::istringstream lines(said.out);
  std::string steps, evaluations, checks;
  for (std::string line; std::getline(lines, line);) {
    std::smatch found;
    if (std::regex_match(line, found, step)) {
      steps += found[1];
      EXPECT_NEAR(std::stod(found[3]), std::stod(found[2]) / std::stod(found[1]), 0.5);
    } else if (std::regex_match(line, found, validation)) {
      const EvalEvent& event = told.evals.at(evaluations.size());
      evaluations += found[1];
      EXPECT_NEAR(std::stod(found[2]), event.loss, 5e-5);
      EXPECT_NEAR(std::stod(found[3]), event.router.at("load_balancing_loss"), 5e-5);
      EXPECT_GE(std::stod(found[3]), 0.9) << "1 for balanced loads";
    } else {
      EXPECT_TRUE(std::regex_match(line, found, check)) << line;
      checks += found[1].str().at(8);
    }
  }
  EXPECT_EQ(steps, "246");
  EXPECT_EQ(evaluations, "46");
  EXPECT_EQ(checks, "iissuussuussuussuussuussuu") << said.out;
  EXPECT_TRUE(contains(said.err, "bits per byte"));
  EXPECT_TRUE(contains(read_text(folder("n") / "train.log"), "step:6/6 val_loss:"));
}

TEST_F(TrainLog, ChecksOfStatesAreLogged) {
  train("checked", "--check-states");
  const std::string log = read_text(folder("checked") / "train.log");
  EXPECT_TRUE(contains(log, "states validated after initialization\n"));
  EXPECT_TRUE(contains(log, "step 6: states validated after the reduction of gradients and the update\n"));
}

TEST_F(TrainLog, MemoryGoesToTensorboardInEveryFormat) {
  for (const std::string format : {"witan", "megatron", "nanogpt"}) {
    train(format, "--log-memory-to-tensorboard --log-format " + format);
    const std::string events = event_bytes(folder(format) / "tensorboard");
    for (const char* tag :
         {"mem-reserved-bytes", "mem-allocated-bytes", "mem-max-allocated-bytes\x15", "mem-allocated-count"})
      EXPECT_EQ(count(events, tag), 6U) << tag << " with " << format;
  }
}

TEST_F(TrainLog, MoreLoggingDoesNotChangeTraining) {
  train("quiet", "--tensorboard-dir none");
  train("loud", std::string(kAll) + " --log-memory-to-tensorboard --check-states");
  EXPECT_EQ(tensors("quiet", 6), tensors("loud", 6));
  EXPECT_FALSE(fs::exists(folder("quiet") / "tensorboard"));
  EXPECT_FALSE(fs::exists(folder("quiet") / "progress.txt"));
  EXPECT_FALSE(metrics("quiet").steps[0].scalars.get(kParamsNorm).has_value());
}

TEST_F(TrainLog, TheNormMatchesTheSavedParameters) {
  train("norm", "--log-params-norm");
  const Checkpoint checkpoint = open_checkpoint(folder("norm") / "checkpoints" / "step-6");
  double square = 0;
  std::vector<StateTensor> values;
  ThreadPool pool(1);
  Stream stream({Device::Kind::cpu}, Arena::reserve(1 << 24), pool);
  for (const auto& [name, entry] : checkpoint.manifest.tensors)
    if (name.find('/') == std::string::npos)
      values.push_back({name, stream.empty(entry.shape, entry.dtype), entry.shape, {0, entry.shape.elements()}, true});
  load_tensors(checkpoint, values, Extra::allow);
  for (const StateTensor& value : values)
    for (const float x : value.local.span<float>()) square += double{x} * x;
  EXPECT_NEAR(metrics("norm").steps.back().scalars.get(kParamsNorm).value(), std::sqrt(square),
              1e-9 * std::sqrt(square));
}

TEST_F(TrainLog, ProgressFileHasEveryJobAndCheckpoint) {
  train("p", "--log-progress --train-iters 3");
  train("p", "--train-iters 6");
  const std::regex text(
      "[^\t]+\tJob ID: [^\t]*\t# GPUs: 2\tStarting job\n"
      "[^\t]+\tJob ID: [^\t]*\t# GPUs: 2\tSaved checkpoint\tIteration: 3\tJob throughput: [0-9.]+ "
      "TFLOP/s/GPU\tCumulative throughput: [0-9.]+ TFLOP/s/GPU\tFloating-point operations: [0-9.e+]+\tTokens \\(in "
      "billions\\): 0.00\n"
      "[^\t]+\tJob ID: [^\t]*\t# GPUs: 2\tStarting job\n[^\t]+\t[^\t]+\t[^\t]+\tSaved checkpoint\tIteration: "
      "6\t[^\n]+\n");
  EXPECT_TRUE(std::regex_match(read_text(folder("p") / "progress.txt"), text))
      << read_text(folder("p") / "progress.txt");
}

TEST_F(TrainLog, AResumedRunAddsAnEventFile) {
  // The new file repeats no values of the last start.
  const auto files = [&](const fs::path& in) {
    std::ptrdiff_t all = 0, of_session = 0;
    for (const auto& entry : fs::directory_iterator(in))
      ++(entry.path().filename().string().starts_with("events.out.tfevents.0.") ? of_session : all);
    EXPECT_EQ(of_session, 1);
    return all;
  };
  train("t", "--train-iters 3");
  EXPECT_EQ(files(folder("t") / "tensorboard"), 1);
  train("t", "--train-iters 6");
  EXPECT_EQ(files(folder("t") / "tensorboard"), 2);
  train("elsewhere", "--tensorboard-dir " + (own_ / "events").string());
  EXPECT_EQ(files(own_ / "events"), 1);
  EXPECT_FALSE(fs::exists(folder("elsewhere") / "tensorboard"));
}

TEST_F(TrainLog, LoadsWeightsWithAFreshOptimizer) {
  train("whole");
  train("weights", "--train-iters 3");
  const std::string before = tensors("weights", 3);
  train("weights", "--no-load-optim");
  EXPECT_EQ(tensors("whole", 3), before);
  EXPECT_NE(tensors("whole", 6), tensors("weights", 6));
  // The next step's loss depends only on the weights; Adam's update differs.
  const Metrics whole = metrics("whole"), weights = metrics("weights");
  EXPECT_EQ(whole.steps[3].loss, weights.steps[3].loss);
  EXPECT_NE(whole.steps[5].loss, weights.steps[5].loss);
  const auto state = TrainState::from_json(open_checkpoint(folder("weights") / "checkpoints" / "step-6").scalars);
  EXPECT_EQ(state.updates, 3);
  EXPECT_EQ(state.step, 6);
  EXPECT_FALSE(config("weights").load.no_load_optim) << "the next call resumes as usual";
}

TEST_F(TrainLog, AnotherOptimizerNeedsOnlyWeights) {
  train("o", "--train-iters 3");
  EXPECT_EQ(
      witan({"train", "--runs-folder", own_ / "runs", "--run", "o", "--train-iters", "6", "--optimizer", "sgd"}).code,
      5);
  EXPECT_EQ(config("o").optimizer.optimizer, "adam") << "the refused call changed nothing";
  train("o", "--optimizer sgd --no-load-optim");
  EXPECT_EQ(metrics("o").steps.size(), 6u);
}

// "As long as the run" refers to the checkpoint's run for one call and is not fixed by it. A warm-up longer than the
// run is not an error.
TEST_F(TrainLog, AScheduleAsLongAsTheRunStaysSo) {
  train("a", "--train-iters 3 --lr-decay-iters 0 --lr-warmup-iters 4");
  const Said said = train("a", "--lr 0.5 --use-checkpoint-opt-param-scheduler --lr-decay-iters 0 --lr-warmup-iters 4");
  EXPECT_NE(said.err.find("not used     lr = 0.5 (the checkpoint's: 0.001)"), std::string::npos) << said.err;
  EXPECT_EQ(config("a").optimizer.lr_decay_iters, 0);
  EXPECT_EQ(config("a").optimizer.lr, 0.001);
  const auto steps = metrics("a").steps;
  EXPECT_DOUBLE_EQ(steps.at(3).lr, 0.001) << "end of the warm-up";
  EXPECT_DOUBLE_EQ(steps.at(5).lr, 0.0001) << "past the end of the checkpoint's schedule";
}

TEST_F(TrainLog, TheCheckpointsScheduleOverridesTheCommandLine) {
  train("whole");
  train("parts", "--train-iters 3");
  train("parts",
        "--lr 0.5 --min-lr 0.4 --lr-warmup-iters 5 --lr-decay-style linear --weight-decay 0.3 "
        "--lr-decay-iters 100 --use-checkpoint-opt-param-scheduler");
  EXPECT_EQ(tensors("whole", 6), tensors("parts", 6));
  EXPECT_EQ(config("parts").optimizer.lr, config("whole").optimizer.lr);
  EXPECT_FALSE(config("parts").load.use_checkpoint_opt_param_scheduler);
}

TEST_F(TrainLog, RandomNumbersHaveNoStateToLoad) {
  train("whole");
  train("parts", "--train-iters 3");
  const Said said = train("parts", "--no-load-rng");
  EXPECT_TRUE(contains(said.err, "no_load_rng has no effect")) << said.err;
  EXPECT_EQ(tensors("whole", 6), tensors("parts", 6));
}

}  // namespace
}  // namespace witan::test
