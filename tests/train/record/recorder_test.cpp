#include "witan/train/record/recorder.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <optional>
#include <utility>

#include "support/comes_true.h"
#include "support/rank.h"
#include "support/run_files.h"
#include "support/temp_folder.h"
#include "train/step/run_support.h"
#include "witan/base/files/file.h"
#include "witan/train/signals/signals.h"
#include "witan/train/step/engine.h"

namespace witan {
namespace {

using test::count;

TEST(Recorder, MetricsLinesAreMeansSinceTheLastOne) {
  const test::TempFolder folder;
  const RunFolder run(folder.path(), "x");
  RunConfig config = testing::small_config();
  config.train.log_interval = 3;
  config.train.train_iters = 8;
  config.model.moe.moe_expert_capacity_factor = 1.25;
  std::FILE* quiet = std::fopen("/dev/null", "w");
  {
    Progress progress(quiet, progress_options(quiet));
    Recorder recorder(resolve(config, {}), {.step_flops = 1e9, .ceiling_gflops = 8}, run, progress);
    recorder.begin({}, 0, 0);
    for (int64_t step = 1; step <= 8; ++step) {
      TrainState state;
      state.step = step;
      StepResult result;
      result.loss = static_cast<double>(step);
      result.layer_norms = LayerNorms{.embedding = 0.5, .layers = {1.0 / 3, NAN}, .head = 2};
      result.router = testing::router_values(config.model.moe, {{"dropped_share", 0.25}, {"router_entropy", 1.5}},
                                             {{5, 1, 1, 1}, {2, 2, 2, 2}});
      if (step % 4 == 0) result.activations = {{"mlp_rms", {1.0 / 3, NAN}}};
      recorder.step(state, result, 0.5, 0.1);
    }
    TrainState end;
    end.step = 8;
    recorder.evaluation(end, {16 * 0.5, 16}, 4);
  }
  std::fclose(quiet);
  const Metrics metrics = read_metrics(run.metrics());
  ASSERT_EQ(metrics.steps.size(), 3u);
  const int64_t steps[] = {3, 6, 8};
  const double losses[] = {2, 5, 7.5};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(metrics.steps[i].step, steps[i]);
    EXPECT_DOUBLE_EQ(metrics.steps[i].loss, losses[i]);
    EXPECT_DOUBLE_EQ(metrics.steps[i].load_max_over_mean.value(), 2.5);  // the maximum is 5, the mean 2
    EXPECT_EQ(metrics.steps[i].dropped_share, 0.25);
    EXPECT_EQ(metrics.steps[i].router, (std::map<std::string, double>{{"router_entropy", 1.5}, {"dead_experts", 0}}));
    EXPECT_DOUBLE_EQ(metrics.steps[i].tokens_per_s, 16 * 12 / 0.5);
    EXPECT_NEAR(metrics.steps[i].gflops, 2, 1e-12);
    EXPECT_NEAR(metrics.steps[i].ceiling_share, 0.25, 1e-12);
  }
  ASSERT_EQ(metrics.layers.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    const LayersEvent& layers = metrics.layers[i];
    EXPECT_EQ(layers.step, steps[i]);
    ASSERT_EQ(layers.grad_norms.size(), 2u);
    EXPECT_EQ(layers.grad_norms[0], 0.3333333) << "seven digits";
    EXPECT_TRUE(std::isnan(layers.grad_norms[1]));
    EXPECT_EQ(layers.embedding_grad_norm, 0.5);
    EXPECT_EQ(layers.head_grad_norm, 2);
  }
  ASSERT_EQ(metrics.activations.size(), 2u) << "at their own intervals";
  EXPECT_EQ(metrics.activations[0].step, 4);
  EXPECT_EQ(metrics.activations[1].step, 8);
  EXPECT_EQ(metrics.activations[0].statistics.at("mlp_rms")[0], 0.3333333) << "seven digits";
  EXPECT_TRUE(std::isnan(metrics.activations[0].statistics.at("mlp_rms")[1]));
  ASSERT_EQ(metrics.experts.size(), 3u);
  EXPECT_EQ(metrics.experts[0].load[0], (std::vector<double>{0.625, 0.125, 0.125, 0.125}));
  EXPECT_EQ(metrics.experts[0].statistics.at("load_max_over_mean"), (std::vector<std::vector<double>>{{2.5}, {1}}));
  EXPECT_EQ(metrics.experts[0].statistics.at("router_entropy"), (std::vector<std::vector<double>>{{0}, {0}}));
  EXPECT_EQ(metrics.experts[0].statistics.count("expert_counts"), 0u) << "as shares";
  ASSERT_EQ(metrics.evals.size(), 1u);
  EXPECT_DOUBLE_EQ(metrics.evals[0].loss, 0.5);
  EXPECT_NEAR(metrics.evals[0].bits_per_byte, 8 / std::log(2.0) / 4, 1e-12);
}

constexpr StepScalar kTest{
    .key = "a_test", .tensorboard = StepScalar::Tag{"a-test"}, .megatron = StepScalar::Text{"a test: ", "{:.2f}"}};

struct SetsAScalar : StepFeature {
  void report(const StepReport::Result&, StepResult& result) override { result.scalars.set(kTest, 42.25); }
};

// The test declares a figure and a feature that neither the engine nor a recorder knows.
TEST(Recorder, RecordsScalarsOfFeaturesWhereDeclared) {
  for (const char* format : {"witan", "megatron"}) {
    const test::TempFolder folder;
    const RunFolder run(folder.path(), "x");
    RunConfig config = testing::small_config();
    config.log.log_format = format;
    testing::Rank rank(1);
    const Groups groups = make_meta_groups(Layout(config.parallel, 1, config.model.moe.num_experts), 0);
    Engine engine(rank.stream, groups, resolve(config, {}));
    engine.features().add<SetsAScalar>();
    std::vector<Batch> batches;
    for (int64_t i = 0; i < config.micro_batches(); ++i) batches.push_back(testing::random_batch(config, i));
    std::FILE* quiet = std::fopen("/dev/null", "w");
    {
      Progress progress(quiet, progress_options(quiet));
      Recorder recorder(resolve(config, {}), {}, run, progress);
      recorder.begin({}, 0, 0);
      TrainState state;
      state.step = config.train.log_interval;
      recorder.step(state, engine.step(batches, 1, 0), 0.5, 0.1);
    }
    std::fclose(quiet);
    const Metrics metrics = read_metrics(run.metrics());
    ASSERT_EQ(metrics.steps.size(), 1U);
    EXPECT_EQ(metrics.steps[0].scalars.get("a_test"), 42.25);
    EXPECT_NE(test::event_bytes(run.tensorboard()).find("a-test"), std::string::npos);
    const bool in_log = read_file(run.log()).find("| a test: 42.25 |") != std::string::npos;
    EXPECT_EQ(in_log, config.log.megatron()) << format;
  }
}

// GPU readings exist only for runs on GPUs; this test has its own NVML.
TEST(Recorder, WritesGpuReadingsWithAStep) {
  ::setenv("WITAN_LIBRARY_PATH", WITAN_FAKE_NVML, 1);
  for (const bool on_gpu : {false, true}) {
    const test::TempFolder folder;
    const RunFolder run(folder.path(), "x");
    RunConfig config = testing::small_config();
    config.train.train_iters = 1 << 20;
    std::FILE* quiet = std::fopen("/dev/null", "w");
    {
      Progress progress(quiet, progress_options(quiet));
      Recorder recorder(resolve(config, {}), {.on_gpu = on_gpu}, run, progress);
      recorder.begin({}, 0, 0);
      TrainState state;
      const auto gpus_come = [&] {
        ++state.step;
        recorder.step(state, {}, 0.5, 0.1);
        return !read_metrics(run.metrics()).gpus.empty();
      };
      if (on_gpu) test::comes_true(gpus_come);
      for (int i = 0; i < 5 && !on_gpu; ++i) gpus_come();
    }
    std::fclose(quiet);
    const Metrics metrics = read_metrics(run.metrics());
    ASSERT_EQ(metrics.gpus.size(), on_gpu ? 1u : 0u);
    if (!on_gpu) continue;
    EXPECT_EQ(metrics.gpus[0].step, metrics.steps.back().step);
    EXPECT_EQ(metrics.gpus[0].temperature, (std::vector<double>{60, 61}));
  }
  ::unsetenv("WITAN_LIBRARY_PATH");
}

TEST(Recorder, PerLayerLoggingWritesExpertsInEveryStep) {
  // Written outside of the loop because g++ 12 miscompiles the list there.
  const std::vector<std::vector<double>> counts = {{5, 1, 0, 0}, {2, 2, 2, 0}};
  for (const bool per_layer : {false, true}) {
    const test::TempFolder folder;
    const RunFolder run(folder.path(), "x");
    RunConfig config = testing::small_config();
    config.train.log_interval = 3;
    config.train.train_iters = 6;
    config.model.moe.moe_per_layer_logging = per_layer;
    std::FILE* quiet = std::fopen("/dev/null", "w");
    {
      Progress progress(quiet, progress_options(quiet));
      Recorder recorder(resolve(config, {}), {}, run, progress);
      recorder.begin({}, 0, 0);
      for (int64_t step = 1; step <= 6; ++step) {
        TrainState state;
        state.step = step;
        StepResult result;
        result.router = testing::router_values(config.model.moe, {}, counts);
        recorder.step(state, result, 0.5, 0.1);
      }
    }
    std::fclose(quiet);
    const Metrics metrics = read_metrics(run.metrics());
    EXPECT_EQ(metrics.steps.size(), 2u);
    ASSERT_EQ(metrics.experts.size(), per_layer ? 6u : 2u);
    EXPECT_EQ(metrics.experts.back().statistics.at("dead_experts"), (std::vector<std::vector<double>>{{2}, {1}}));
    EXPECT_EQ(metrics.steps.back().router.at("dead_experts"), 3);
  }
}

// A recorder whose progress goes to memory, like to a log.
class RecorderLog {
 public:
  RecorderLog(const RunConfig& config, const RunPlan& plan, std::function<double()> now = {})
      : config_(resolve(config, {})), run_(folder_.path(), "x"), out_(::open_memstream(&text_, &size_)) {
    progress_.emplace(out_, ProgressOptions{.quiet_seconds = 0, .now = std::move(now)});
    recorder_.emplace(config_, plan, run_, *progress_);
  }
  ~RecorderLog() {
    recorder_.reset();
    progress_.reset();
    std::fclose(out_);
    std::free(text_);
  }
  RecorderLog(const RecorderLog&) = delete;
  RecorderLog& operator=(const RecorderLog&) = delete;

  Recorder& recorder() { return *recorder_; }
  void step(int64_t step, double seconds, Recorder::Line line = Recorder::Line::now) {
    TrainState state;
    state.step = step;
    StepResult result;
    result.loss = 3;
    recorder_->step(state, result, seconds, 0, line);
  }
  void evaluation(int64_t step, double loss) {
    TrainState state;
    state.step = step;
    recorder_->evaluation(state, {16 * loss, 16}, 4);
  }
  // The line that starts with this text.
  std::string line(const std::string& start) {
    std::fflush(out_);
    const std::string all = "\n" + std::string(text_, size_);
    const size_t at = all.find("\n" + start);
    return at == std::string::npos ? "" : all.substr(at + 1, all.find('\n', at + 1) - at - 1);
  }
  Metrics metrics() const { return read_metrics(run_.metrics()); }
  std::string train_log() const { return read_file(run_.path() / "train.log"); }
  // The contents of all TensorBoard files.
  std::string tensorboard() const { return test::event_bytes(run_.tensorboard()); }

 private:
  const ResolvedConfig config_;
  test::TempFolder folder_;
  RunFolder run_;
  char* text_ = nullptr;
  size_t size_ = 0;
  std::FILE* out_;
  std::optional<Progress> progress_;
  std::optional<Recorder> recorder_;
};

RunConfig ten_steps() {
  RunConfig config = testing::small_config();
  config.train.log_interval = 1;
  config.train.train_iters = 10;
  return config;
}

TEST(Recorder, AnEvaluationBelongsToItsStep) {
  RecorderLog log(ten_steps(), {.step_flops = 1e9, .step_seconds = 0.5});
  log.recorder().begin({}, 1, 0);
  log.step(1, 0.5);
  log.step(5, 0.5, Recorder::Line::with_evaluation);
  EXPECT_EQ(log.line("step 5/10"), "") << "it is pending";
  log.evaluation(5, 2.5);
  EXPECT_TRUE(log.line("step 5/10").find("  validation 2.500  14.427 bits/byte  lr ") != std::string::npos)
      << log.line("step 5/10");
  log.step(7, 0.5);
  EXPECT_TRUE(log.line("step 7/10").find("  validation 2.500  14.427 bits/byte at step 5  lr ") != std::string::npos)
      << log.line("step 7/10");
  log.step(10, 0.5, Recorder::Line::with_evaluation);
  log.evaluation(10, 2);
  EXPECT_TRUE(log.line("step 10/10").find("  validation 2.000  11.542 bits/byte  lr ") != std::string::npos)
      << log.line("step 10/10");
  EXPECT_NE(log.line("step 7/10").find("  ETA "), std::string::npos) << log.line("step 7/10");
  EXPECT_EQ(log.line("step 10/10").find("  ETA "), std::string::npos) << "nothing is pending";
}

TEST(Recorder, EvaluationsReportRouterBalance) {
  RunConfig config = ten_steps();
  config.model.moe.moe_router_enable_expert_bias = true;
  config.model.moe.moe_router_score_function = "sigmoid";
  RecorderLog log(config, {});
  log.recorder().begin({}, 1, 0);
  log.step(1, 0.5);
  TrainState state;
  state.step = 1;
  const StepStatistics router = testing::router_values(
      config.model.moe, {{"load_balancing_loss", 4.0 / 3}, {"router_entropy", 1.5}, {"z_loss", 0.25}}, {{3, 1}});
  log.recorder().evaluation(state, {16 * 2.5, 16, 0, router}, 4);
  const Metrics metrics = log.metrics();
  const EvalEvent& found = metrics.evals.at(0);
  EXPECT_EQ(found.router, (std::map<std::string, double>{{"dead_experts", 0},
                                                         {"load_balancing_loss", 1.333333},
                                                         {"load_max_over_mean", 1.5},
                                                         {"router_entropy", 1.5},
                                                         {"z_loss", 0.25}}))
      << "seven digits, without the bias";
  EXPECT_NE(log.train_log().find("step 1: validation loss 2.5000, 14.4270 bits per byte; dead_experts 0, "
                                 "load_balancing_loss 1.3333, load_max_over_mean 1.5, router_entropy 1.5, z_loss 0.25"),
            std::string::npos)
      << log.train_log();
}

TEST(Recorder, PrintsAndLogsWarnings) {
  RecorderLog log(ten_steps(), {});
  log.recorder().warn("weights of another tokenizer");
  log.recorder().log_warning("said before");
  EXPECT_EQ(log.line("warning: weights"), "warning: weights of another tokenizer");
  EXPECT_EQ(log.line("warning: said"), "");
  const std::string lines = log.train_log();
  EXPECT_NE(lines.find(" warning weights of another tokenizer\n"), std::string::npos) << lines;
  EXPECT_NE(lines.find(" warning said before\n"), std::string::npos) << lines;
}

// Ctrl-Z, and `fg` an hour later.
TEST(Recorder, StoppedTimeIsNotInTheTimeLeft) {
  std::atomic<double> now = 1000;
  RecorderLog log(ten_steps(), {.step_flops = 1e9, .step_seconds = 0.5}, [&] { return now.load(); });
  log.recorder().begin({}, 1, 0);
  log.recorder().begins(StepWatch::Doing::step, 1);
  for (int64_t step = 1; step <= 5; ++step) {
    now += step == 4 ? 3600 : 1;
    log.step(step, 1);
  }
  const std::string line = log.line("step 5/10");
  const size_t eta = line.find("  ETA ");
  ASSERT_NE(eta, std::string::npos) << line;
  // About a second per step. In the interrupted one, all but the time between two polls counts as a stop.
  EXPECT_NEAR(std::stod(line.substr(eta + 6)), 5, 1.5) << line;
  EXPECT_TRUE(line.ends_with(" s")) << line;
}

// The signal was sent to another process, so this one has not reported it.
TEST(Recorder, ReportsSignalsToOtherProcesses) {
  const StopSignals none(StopSignals::Answer::stop);
  RecorderLog log(ten_steps(), {.step_flops = 1e9});
  log.recorder().begin({}, 1, 0);
  log.step(1, 0.5);
  EXPECT_EQ(log.line("Another process"), "");
  log.recorder().record_end(RunEnd::preempted, Recorder::Saves::step);
  EXPECT_EQ(log.line("Another process"), "Another process was asked to stop: saving");
}

// After a rewind the state equals a checkpoint's.
TEST(Recorder, ReportsOnlySavedSteps) {
  const StopSignals none(StopSignals::Answer::stop, StopSignals::Voice::silent);
  RecorderLog log(ten_steps(), {.step_flops = 1e9});
  log.recorder().begin({}, 1, 2);
  log.step(3, 0.5);
  log.recorder().rewound(2);
  const std::string why = ": nothing to save, as the run went back to step 2, whose checkpoint it resumes from";
  log.recorder().record_end(RunEnd::exit_interval, Recorder::Saves::nothing_after_rewind);
  EXPECT_EQ(log.line("exit_interval"), "exit_interval" + why);
  log.recorder().record_end(RunEnd::interrupted, Recorder::Saves::nothing_after_rewind);
  EXPECT_EQ(log.line("Another process"), "Another process was asked to stop" + why);
  std::raise(SIGINT);  // the handler has reported it
  log.recorder().record_end(RunEnd::interrupted, Recorder::Saves::nothing_after_rewind);
  EXPECT_EQ(log.line("stopping"), "stopping" + why);
}

// A ceiling measured on a busy machine may be exceeded.
TEST(Recorder, FasterStepsRaiseTheCeiling) {
  RecorderLog log(ten_steps(), {.step_flops = 1e9, .ceiling_gflops = 1});
  log.recorder().begin({}, 1, 0);
  log.step(1, 2);
  log.step(2, 0.5);
  log.step(3, 1);
  EXPECT_TRUE(log.line("step 1/10").find("(50 % of ceiling)") != std::string::npos) << log.line("step 1/10");
  EXPECT_TRUE(log.line("step 2/10").find("(100 % of ceiling)") != std::string::npos) << log.line("step 2/10");
  EXPECT_TRUE(log.line("step 3/10").find("(50 % of ceiling)") != std::string::npos) << log.line("step 3/10");
  EXPECT_EQ(
      log.line("note: "),
      "note: this step reached 2 GFLOP/s, more than the 1 that were measured as this machine's ceiling: it was busy "
      "then; `witan doctor` measures it again");
  EXPECT_EQ(log.recorder().best_gflops(), 2);
  log.step(4, 0.25);
  EXPECT_EQ(log.line("note: this step reached 4"), "") << "once is enough";
  EXPECT_EQ(log.recorder().best_gflops(), 4);
  for (const StepEvent& event : log.metrics().steps) EXPECT_LE(event.ceiling_share, 1);
}

// SessionEndInfo in HParamsPluginData: the status, then the time.
constexpr const char* kSuccess = "\x22\x0B\x08\x01\x11";
constexpr const char* kFailure = "\x22\x0B\x08\x02\x11";

TEST(Recorder, TensorboardRecordsHowARunEnded) {
  RecorderLog finished(ten_steps(), {}), stopped(ten_steps(), {}), failed(ten_steps(), {});
  for (RecorderLog* log : {&finished, &stopped, &failed}) log->recorder().begin({}, 1, 0);
  finished.recorder().end(RunEnd::finished, {});
  stopped.recorder().end(RunEnd::preempted, {});
  failed.recorder().failed("no room");
  EXPECT_EQ(count(finished.tensorboard(), kSuccess), 1u);
  EXPECT_EQ(count(stopped.tensorboard(), "_hparams_/session_end_info"), 0u) << "it may be resumed";
  EXPECT_EQ(count(failed.tensorboard(), kFailure), 1u);
}

// Readers drop the text of a start that a rewind undoes.
TEST(Recorder, ARewindWritesTheConfigurationAgain) {
  RecorderLog log(ten_steps(), {});
  log.recorder().begin({}, 1, 4);
  log.recorder().rewound(2);
  const std::string events = log.tensorboard();
  EXPECT_EQ(count(events, "```toml\n[train]\n"), 2u);
  EXPECT_EQ(count(events, "_hparams_/session_start_info"), 1u);
}

}  // namespace
}  // namespace witan
