// Injected NaNs and spikes never reach the weights, their origin is reported, and the run continues equally on all
// ranks and after resuming.
#include "witan/train/loop/anomaly.h"

#include <gmock/gmock.h>

#include <cmath>
#include <csignal>
#include <limits>
#include <nlohmann/json.hpp>

#include "support/message_of.h"
#include "support/rank.h"
#include "train/loop/trainer_support.h"
#include "witan/base/threads/threads.h"
#include "witan/checkpoint/manifest.h"
#include "witan/checkpoint/store.h"
#include "witan/parallel/mesh_shorthand.h"
#include "witan/tensor/host.h"
#include "witan/train/state/rewinds.h"
#include "witan/train/step/device.h"

namespace witan {
namespace {

using test::message_of;
using ::testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Parameter& parameter_named(Engine& engine, const std::string& name) {
  for (Parameter* parameter : engine.model().parameters())
    if (parameter->name() == name) return *parameter;
  throw Error(ExitCode::internal, "no parameter " + name);
}

void poison(const Tensor& tensor, int64_t element) {
  copy_from_host(tensor, element * 4, &kNan, 4);
}

class Anomalies : public testing::Trainer {
 protected:
  using Injection = std::function<void(int rank, int64_t step, std::vector<Batch>& batches, Engine& engine)>;

  RunConfig config(const std::string& name) {
    RunConfig config = Trainer::config(name);
    config.train.sample_tokens = 0;
    config.train.straggler_threshold = 0;
    return config;
  }
  RunResult run_injected(const RunConfig& config, Injection injection) {
    struct Reset {
      RunAids& aids;
      ~Reset() { aids.before_step = {}; }
    };
    const Reset reset{aids_};
    aids_.before_step = std::move(injection);
    return run(config);
  }
  std::vector<AnomalyEvent> anomalies(const std::string& name) {
    return read_metrics(folder_ / name / "metrics.jsonl").anomalies;
  }
  TrainState state(const std::string& name, int64_t step) {
    return TrainState::from_json(open_checkpoint(checkpoint(name, step)).scalars);
  }

  // The loss mask of one rank's micro-batch in one step.
  static Injection nan_in_data(int64_t at, int of_rank) {
    return [=](int rank, int64_t step, std::vector<Batch>& batches, Engine&) {
      if (rank == of_rank && step == at) batches.back().loss_mask[3] = kNan;
    };
  }
};

// A skipped update leaves weights, moments and buffers as they were after the previous step.
TEST_F(Anomalies, ANanInTheDataIsSkippedAndNamed) {
  RunConfig skips = config("skips"), before = config("before");
  before.train.train_iters = 7;
  run(before);
  skips.train.train_iters = 8;
  run_injected(skips, nan_in_data(8, 1));
  EXPECT_EQ(state("skips", 8).updates, 7);
  EXPECT_EQ(state("skips", 8).consumed_samples, 64);
  const auto events = anomalies("skips");
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].step, 8);
  EXPECT_EQ(events[0].what, "nan");
  EXPECT_EQ(events[0].action, "skip");
  EXPECT_THAT(events[0].text, HasSubstr("first, in the forward of micro-batch 3 on rank 1, the output of "));
  EXPECT_EQ(events[0].folder, "anomalies/step-8");
  EXPECT_THAT(read_file(folder_ / "skips" / "train.log"), HasSubstr("step 8: nan: first, in the forward"));

  const auto weights_of = [&](const fs::path& folder) {
    const Checkpoint checkpoint = open_checkpoint(folder);
    ThreadPool pool(1);
    Stream stream({}, reserve_arena({}, int64_t{64} << 20), pool);
    std::vector<StateTensor> tensors;
    std::string bytes;
    for (const auto& [name, entry] : checkpoint.manifest.tensors) {
      if (name.starts_with("batch.")) continue;
      tensors.push_back({name, stream.empty(entry.shape, entry.dtype), entry.shape, {0, entry.shape.elements()}});
      tensors.back().kind = entry.kind;
    }
    load_tensors(checkpoint, tensors, Extra::allow);
    for (const StateTensor& one : tensors)
      bytes.append(reinterpret_cast<const char*>(one.local.raw()), static_cast<size_t>(one.local.bytes()));
    return bytes;
  };
  EXPECT_EQ(weights_of(checkpoint("skips", 8)), weights_of(checkpoint("before", 7)));
}

// For a NaN in an expert's weights, the report names the expert and its rank, and a rewind restores the weights.
TEST_F(Anomalies, AnExpertWithANanIsNamedAndRestoredByARewind) {
  RunConfig ill = config("ill"), well = config("well");
  ill.parallel = well.parallel = {2, 2, 2};
  ill.train.on_nan = "rewind";
  std::string name, expert;
  const auto injection = [&](int rank, int64_t step, std::vector<Batch>&, Engine& engine) {
    if (step != 7 || rank != 1 || !name.empty()) return;  // only once, although the step is repeated
    for (Parameter* parameter : engine.model().parameters())
      if (parameter->spec().expert) name = parameter->name();
    const Parameter& experts = parameter_named(engine, name);
    const int64_t each = experts.elements() / experts.shape()[0];
    expert = cat(name, ", expert ", experts.shape()[0] + 1, ": ");
    for (int64_t element = 0; element < each; ++element) poison(experts.value_shard(), each + element);
  };
  run_injected(ill, injection);
  const auto events = anomalies("ill");
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].action, "rewind");
  EXPECT_EQ(events[0].step, 4);
  EXPECT_EQ(events[0].at, 7);
  EXPECT_THAT(events[0].text, HasSubstr("non-finite values: " + expert));
  EXPECT_THAT(events[0].text, HasSubstr("back to step-4, and on without samples 32 to 55"));
  const std::vector<Rewind> rewinds = {{4, 7, 32, 56}};
  EXPECT_EQ(state("ill", 12).rewinds, rewinds);
  EXPECT_EQ(state("ill", 12).consumed_samples, 56 + 8 * 8);
  EXPECT_EQ(state("ill", 12).updates, 12);
  EXPECT_EQ(steps("ill").size(), 12u);

  // Compares it with a run that skips the same samples from the start.
  RunConfig four = well;
  four.train.train_iters = 4;
  run(four);
  Manifest manifest = open_checkpoint(checkpoint("well", 4)).manifest;
  manifest.scalars["consumed_samples"] = 56;
  manifest.scalars.erase("sources");
  write_file_atomically(checkpoint("well", 4) / kManifestName, manifest_text(manifest));
  run(well);
  EXPECT_EQ(weights("ill", 12), weights("well", 12));
  expect_same_steps("ill", "well");
}

// A transient fault in one rank's gradient before its reduction does not recur when the step is repeated.
TEST_F(Anomalies, AnIrreproducibleFaultIsReportedAsTransient) {
  RunConfig passing = config("passing");
  int times = 0;
  const auto injection = [&](int rank, int64_t step, std::vector<Batch>&, Engine& engine) {
    if (step != 3 || rank != 1) return;
    Parameter& parameter = *engine.model().parameters().back();
    parameter.gradient_ready = [&times, of_engine = parameter.gradient_ready](Parameter& ready) {
      if (++times == 2) poison(ready.gradient_part(0), 5);  // after the second of two micro-batches
      of_engine(ready);
    };
  };
  run_injected(passing, injection);
  EXPECT_GE(times, 4);
  const auto events = anomalies("passing");
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].step, 3);
  EXPECT_THAT(events[0].text, HasSubstr("computed again, all values of the step were finite: a fault of memory"));
  EXPECT_THAT(events[0].text, HasSubstr("non-finite gradients: "));
  EXPECT_EQ(state("passing", 12).updates, 11);
}

TEST_F(Anomalies, StopEndsTheRunBeforeTheUpdate) {
  RunConfig stops = config("stops");
  stops.train.on_nan = "stop";
  const std::string said = message_of<DivergedError>([&] { run_injected(stops, nan_in_data(6, 0)); });
  EXPECT_THAT(said, HasSubstr("step 6 was not finite: first, in the forward of micro-batch 1 on rank 0"));
  EXPECT_THAT(said, HasSubstr("on_nan = stop ended the run before its update; the last checkpoint is intact: the same "
                              "command with --on-nan skip or a smaller --lr resumes from it"));
  EXPECT_THAT(read_file(folder_ / "stops" / "train.log"), HasSubstr("on_nan = stop ended the run"));
  const Metrics metrics = read_metrics(folder_ / "stops" / "metrics.jsonl");
  ASSERT_TRUE(metrics.end);
  EXPECT_TRUE(metrics.end->failed());
  EXPECT_THAT(metrics.end->reason, HasSubstr("step 6 was not finite"));
  EXPECT_TRUE(fs::exists(folder_ / "stops" / "anomalies" / "step-6" / kManifestName));
  EXPECT_EQ(anomalies("stops").back().action, "stop");
}

// Runs of four ranks continue after a rewind in each layout. A run that is killed after the rewind, or stopped before
// the step, ends with the same bits.
class AnomalousLayouts : public Anomalies, public ::testing::WithParamInterface<const char*> {};

TEST_P(AnomalousLayouts, ARunRewindsAndResumesBitwise) {
  const auto laid = [&](const std::string& name) {
    RunConfig config = this->config(name);
    config.parallel = {1, 1, 1};
    config.parallel.mesh = GetParam();
    expand_mesh(config.parallel, {});
    config.parallel.sequence_parallel = config.parallel.tensor_model_parallel_size > 1;
    config.train.on_nan = "rewind";
    return config;
  };
  // The fault depends on the data, so it recurs with the same samples.
  std::vector<int32_t> tokens;
  run_injected(laid("looks"), [&](int rank, int64_t step, std::vector<Batch>& batches, Engine&) {
    if (rank == 0 && step == 7) tokens = batches.front().tokens;
  });
  const auto by_data = [&](int, int64_t, std::vector<Batch>& batches, Engine&) {
    if (batches.front().tokens == tokens) batches.front().loss_mask[0] = kNan;
  };
  run_injected(laid("whole"), by_data);
  ASSERT_EQ(anomalies("whole").size(), 1u);
  EXPECT_EQ(anomalies("whole")[0].action, "rewind");
  EXPECT_EQ(state("whole", 12).consumed_samples, 56 + 8 * 8);

  RunConfig stopped = laid("stopped");  // before the step, with a checkpoint that the uninterrupted run lacks
  stopped.train.train_iters = 6;
  run_injected(stopped, by_data);
  run_injected(laid("stopped"), by_data);
  EXPECT_EQ(weights("whole", 12), weights("stopped", 12));
  expect_same_steps("whole", "stopped");

  RunConfig killed = laid("killed");  // after the rewind, before the next checkpoint
  EXPECT_THROW(run_injected(killed,
                            [&](int rank, int64_t step, std::vector<Batch>& batches, Engine& engine) {
                              by_data(rank, step, batches, engine);
                              if (step == 7 && !std::isnan(batches.front().loss_mask[0]) && rank == 0)
                                throw IoError("killed");
                            }),
               IoError);
  // The fault is gone, and the samples remain skipped.
  run(killed);
  EXPECT_EQ(weights("whole", 12), weights("killed", 12));
  expect_same_steps("whole", "killed");
}

// The moments of steps undone by a rewind led to the anomaly. A later checkpoint's optimizer belongs to the present
// call and is loaded.
TEST_F(Anomalies, ARewindToAResetOptimizerResetsItAgain) {
  RunConfig first = config("anew");
  first.train.train_iters = 4;
  run(first);
  RunConfig anew = config("anew");
  anew.load.no_load_optim = true;
  anew.train.on_nan = "rewind";
  const auto are_zero = [](Engine& engine) {
    const std::vector<StateTensor> all = engine.state();
    return std::ranges::all_of(all, [](const StateTensor& one) {
      return one.kind != StateTensor::Kind::optimizer ||
             std::ranges::all_of(testing::values(one.local), [](double value) { return value == 0; });
    });
  };
  std::vector<int64_t> begun, begun_anew;  // steps of rank 0, and those that started with zero moments
  run_injected(anew, [&](int rank, int64_t step, std::vector<Batch>& batches, Engine& engine) {
    if (rank != 0) return;
    const bool first_time = std::ranges::find(begun, step) == begun.end();
    begun.push_back(step);
    if (are_zero(engine)) begun_anew.push_back(step);
    if (first_time && (step == 7 || step == 11)) batches.back().loss_mask[3] = kNan;
  });
  EXPECT_EQ(begun, (std::vector<int64_t>{5, 6, 7, 5, 6, 7, 8, 9, 10, 11, 9, 10, 11, 12}));
  EXPECT_EQ(begun_anew, (std::vector<int64_t>{5, 5}));
}

INSTANTIATE_TEST_SUITE_P(Meshes, AnomalousLayouts,
                         ::testing::Values("replicate=4", "shard=4", "expert=2,replicate=4", "tensor=2,replicate=2",
                                           "pipeline=2,replicate=2"),
                         [](const auto& mesh) {
                           std::string name = mesh.param;
                           for (char& letter : name)
                             if (!std::isalnum(static_cast<unsigned char>(letter))) letter = '_';
                           return name;
                         });

// The anomalous step is the one after which the run should end: it rewinds and ends there.
TEST_F(Anomalies, ARunThatRewindsWhileEndingResumesBitwise) {
  struct Case {
    const char* name;
    RunEnd end;
    int64_t exit_interval;
    int signal;
    const char* said;
  };
  const Case cases[] = {{"interval", RunEnd::exit_interval, 7, 0, "exit_interval: nothing to save"},
                        {"signal", RunEnd::preempted, 0, SIGTERM, "stopping: nothing to save"}};
  const auto rewinding = [&](const std::string& name) {
    RunConfig config = this->config(name);
    config.train.on_nan = "rewind";
    return config;
  };
  // The fault depends on the data, so it recurs with the same samples.
  std::vector<int32_t> tokens;
  run_injected(rewinding("looks"), [&](int rank, int64_t step, std::vector<Batch>& batches, Engine&) {
    if (rank == 0 && step == 7) tokens = batches.front().tokens;
  });
  const auto by_data = [&](std::vector<Batch>& batches) {
    const bool wrong = batches.front().tokens == tokens;
    if (wrong) batches.front().loss_mask[0] = kNan;
    return wrong;
  };
  const auto injected = [&](int, int64_t, std::vector<Batch>& batches, Engine&) { by_data(batches); };
  run_injected(rewinding("whole"), injected);
  for (const Case& one : cases) {
    RunConfig config = rewinding(one.name);
    config.train.exit_interval = one.exit_interval;
    const RunResult ended = run_injected(config, [&](int, int64_t, std::vector<Batch>& batches, Engine&) {
      if (by_data(batches) && one.signal != 0) std::raise(one.signal);
    });
    EXPECT_EQ(ended.end, one.end) << one.name;
    EXPECT_EQ(ended.step, 4) << "at its position\n" << one.name;
    verify_checkpoint(open_checkpoint(checkpoint(one.name, 4)));
    EXPECT_FALSE(fs::exists(checkpoint(one.name, 7))) << one.name;
    EXPECT_THAT(read_file(folder_ / one.name / "train.log"),
                HasSubstr(cat(one.said, ", as the run went back to step 4, whose checkpoint it resumes from\n")));
    const Metrics metrics = read_metrics(folder_ / one.name / "metrics.jsonl");
    ASSERT_TRUE(metrics.end);
    EXPECT_EQ(metrics.end->reason, reason_of(one.end));
    EXPECT_EQ(metrics.steps.back().step, 4) << "undone steps are removed";
    ASSERT_EQ(metrics.anomalies.size(), 1u);
    EXPECT_EQ(metrics.anomalies[0].action, "rewind");
    config.train.exit_interval = 0;
    const RunResult resumed = run_injected(config, injected);
    EXPECT_EQ(resumed.resumed_from, 4);
    EXPECT_EQ(resumed.end, RunEnd::finished);
    EXPECT_EQ(state(one.name, 12).consumed_samples, state("whole", 12).consumed_samples) << one.name;
    EXPECT_EQ(weights("whole", 12), weights(one.name, 12)) << one.name;
    expect_same_steps("whole", one.name);
  }
}

TEST_F(Anomalies, MaxRewindsEndsARunWithRecurringAnomalies) {
  RunConfig endless = config("endless");
  endless.train.on_nan = "rewind";
  endless.train.max_rewinds = 2;
  const std::string said = message_of<DivergedError>([&] { run_injected(endless, nan_in_data(6, 0)); });
  EXPECT_THAT(said, HasSubstr("The run went back 2 times already (max_rewinds)"));
  const auto events = anomalies("endless");
  ASSERT_EQ(events.size(), 3u);
  EXPECT_THAT(events[1].text, HasSubstr("without samples 32 to 63"));
  EXPECT_EQ(events[1].action, "rewind");
  EXPECT_EQ(events[2].action, "stop");
}

TEST_F(Anomalies, StopWithoutACheckpointDoesNotMentionOne) {
  RunConfig stops = config("early-stop");
  stops.train.on_nan = "stop";
  EXPECT_THAT(message_of<DivergedError>([&] { run_injected(stops, nan_in_data(2, 0)); }),
              HasSubstr("nothing was saved yet: start again with --on-nan skip or a smaller --lr"));
}

TEST_F(Anomalies, NeverRewindsToACheckpointAmongAnomalies) {
  RunConfig streak = config("streak");
  streak.train.on_nan = "rewind";
  const auto injected = [](int rank, int64_t step, std::vector<Batch>& batches, Engine&) {
    if (rank == 0 && step >= 2 && step <= 5) batches.back().loss_mask[3] = kNan;
  };
  streak.train.exit_interval = 4;  // ends and saves after the third of four consecutive anomalies
  run_injected(streak, injected);
  ASSERT_TRUE(fs::exists(checkpoint("streak", 4)));
  streak.train.exit_interval = 0;
  run_injected(streak, injected);
  const auto events = anomalies("streak");
  ASSERT_EQ(events.size(), 4u);
  for (const auto& event : events) EXPECT_EQ(event.action, "skip") << event.step;
  EXPECT_THAT(events[3].text, HasSubstr("there is no checkpoint from before these steps to go back to yet"));
  EXPECT_EQ(state("streak", 12).updates, 8);
}

TEST_F(Anomalies, WithoutACheckpointThereIsNoRewind) {
  RunConfig early = config("early");
  early.train.on_nan = "rewind";
  run_injected(early, nan_in_data(2, 0));
  EXPECT_EQ(anomalies("early").front().action, "skip");
  EXPECT_THAT(anomalies("early").front().text, HasSubstr("there is no checkpoint to go back to yet"));
  EXPECT_EQ(state("early", 12).updates, 11);
}

// skip_step_sigma detects a loss spike, which is undone.
TEST_F(Anomalies, ASpikeRewindsAndRestoresTheWindow) {
  RunConfig spiky = config("spiky");
  spiky.optimizer.skip_step_sigma = 50;
  spiky.optimizer.skip_step_window = 6;
  spiky.train.on_spike = "rewind";
  int times[2] = {};
  run_injected(spiky, [&](int rank, int64_t step, std::vector<Batch>& batches, Engine&) {
    if (step != 7 || ++times[rank] > 1) return;
    for (float& weight : batches.front().loss_mask) weight *= 1e4F;
  });
  const auto events = anomalies("spiky");
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].what, "spike");
  EXPECT_EQ(events[0].action, "rewind");
  EXPECT_EQ(state("spiky", 12).spikes.steps, 12) << "of the remaining steps";
}

// One rank recomputes the step from its folder with the same loss.
TEST_F(Anomalies, TheFolderHasTheInputsOfTheStep) {
  RunConfig kept = config("kept");
  std::vector<std::vector<Batch>> batches(2);
  run_injected(kept, [&](int rank, int64_t step, std::vector<Batch>& own, Engine&) {
    if (rank == 1 && step == 6) own[0].loss_mask[7] = kNan;
    if (step == 6) batches[static_cast<size_t>(rank)] = own;
  });
  const RecordedAnomaly recorded = open_anomaly(folder_ / "kept" / "anomalies" / "step-6");
  EXPECT_EQ(recorded.step, 6);
  EXPECT_EQ(recorded.updates, 5);
  EXPECT_EQ(recorded.about["consumed_samples"], 40);
  ASSERT_EQ(recorded.batches.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(recorded.batches[i].tokens, batches[i / 2][i % 2].tokens);
    EXPECT_EQ(recorded.batches[i].targets, batches[i / 2][i % 2].targets);
  }
  EXPECT_TRUE(std::isnan(recorded.batches[2].loss_mask[7]));
  EXPECT_THAT(message_of<CheckpointError>([&] { open_anomaly(checkpoint("kept", 4)); }),
              HasSubstr("is a checkpoint, and not the folder of an anomaly"));
  const auto refusal = [&](const fs::path& folder) {
    return message_of<CheckpointError>([&] { open_anomaly(folder); });
  };
  const std::string expected = ": give the folder of a step that went wrong, RUN/anomalies/step-N, which";
  const fs::path run = folder_ / "kept", anomalies = run / "anomalies";
  const std::string give = cat("give one of its steps that went wrong, as ", (anomalies / "step-6").string());
  EXPECT_THAT(refusal(run), HasSubstr(cat(run.string(), " is the folder of a run: ", give)));
  EXPECT_THAT(refusal(run / "checkpoints"), HasSubstr(cat("checkpoints has checkpoints of a run: ", give)));
  EXPECT_THAT(refusal(anomalies), HasSubstr(cat(anomalies.string(), " has several: ", give)));
  EXPECT_THAT(refusal(run / "train.log"), HasSubstr("train.log is a file" + expected));
  EXPECT_THAT(refusal(folder_ / "nothing"), HasSubstr("nothing does not exist" + expected));
  EXPECT_THAT(refusal(run / "data"), HasSubstr("is not the folder of a step that went wrong: it has no manifest.json"));
  fs::remove_all(anomalies);
  EXPECT_THAT(refusal(run),
              HasSubstr(cat("is the folder of a run, and there is no step that went wrong in ", anomalies.string())));
}

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// The log has a line for each anomaly and says once that later ones are not investigated.
TEST_F(Anomalies, OnlyTheFirstAreKept) {
  RunConfig often = config("often");
  often.train.keep_anomalies = 1;
  run_injected(often, [](int, int64_t step, std::vector<Batch>& batches, Engine&) {
    if (step % 3 == 0) batches.front().loss_mask[0] = kNan;
  });
  EXPECT_TRUE(fs::exists(folder_ / "often" / "anomalies" / "step-3"));
  EXPECT_FALSE(fs::exists(folder_ / "often" / "anomalies" / "step-6"));
  const auto events = anomalies("often");
  ASSERT_EQ(events.size(), 4u);
  EXPECT_THAT(events[1].text, HasSubstr("loss nan, gradient norm nan; not investigated"));
  EXPECT_EQ(events[2].text, "loss nan, gradient norm nan");
  const std::string log = read_file(folder_ / "often" / "train.log");
  EXPECT_EQ(count_of(log, "not investigated"), 1u) << log;
  for (const int64_t step : {3, 6, 9, 12}) EXPECT_EQ(count_of(log, cat("warning step ", step, ": ")), 1u) << log;
  EXPECT_EQ(count_of(log, "; the step was skipped"), 4u) << log;
}

TEST_F(Anomalies, ReportsOnceThatLaterRewindsAreNotKept) {
  RunConfig often = config("back");
  often.train.keep_anomalies = 1;
  often.train.on_nan = "rewind";
  often.train.max_rewinds = 10;
  const std::vector<int64_t> wrong = {5, 6, 7, 6};  // in this order; each rewinds the run to step 4
  size_t injected = 0;
  run_injected(often, [&](int rank, int64_t step, std::vector<Batch>& batches, Engine&) {
    if (rank != 0 || injected == wrong.size() || step != wrong[injected]) return;
    batches.front().loss_mask[0] = kNan;
    ++injected;
  });
  EXPECT_EQ(injected, wrong.size());
  const std::string log = read_file(folder_ / "back" / "train.log");
  EXPECT_EQ(count_of(log, "warning step "), wrong.size()) << log;
  EXPECT_EQ(count_of(log, ": nan: "), wrong.size()) << log;
  EXPECT_EQ(count_of(log, "not investigated"), 1u) << log;
}

}  // namespace
}  // namespace witan
