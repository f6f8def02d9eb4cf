// A loss that the test's own module records. No other code names it, yet every layout trains with it, and it is
// reported like all losses.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>

#include "support/message_of.h"
#include "support/rank.h"
#include "support/run_files.h"
#include "support/running_mean.h"
#include "support/temp_folder.h"
#include "train/step/layouts/laid_out.h"
#include "train/step/run_support.h"
#include "witan/ops/shape/redistribute.h"
#include "witan/report/events/metrics.h"
#include "witan/report/page/charts.h"
#include "witan/train/record/recorder.h"

namespace witan {
namespace {

using testing::kFsdp;
using testing::laid_out;
using testing::LaidOut;
using testing::Rank;
using testing::values;

// loss [1] = sum of y^2 / count, over this rank's part y.
Var mean_square(Tape& tape, const Var& y, double count) {
  const int64_t n = y.value().elements();
  const Tensor loss = tape.stream().empty({1}, accumulator(y.dtype()));
  const Cost cost{2.0 * static_cast<double>(n), kernels::bytes_of(y.value())};
  kernels::charge(tape.stream(), "mean_square", cost, [&] {
    dispatch_floating(y.dtype(), [&]<class T>() {
      Accumulator<T> sum = 0;
      for (int64_t i = 0; i < n; ++i) sum += std::pow(static_cast<Accumulator<T>>(y.value().data<T>()[i]), 2);
      loss.data<Accumulator<T>>()[0] = sum / static_cast<Accumulator<T>>(count);
    });
  });
  return tape.record("mean_square", loss, {y}, [in = tape.save(y), n, count](Backward& b, const Tensor& gradient) {
    const Tensor x = b.value(in), dx = b.stream().empty_like(x);
    kernels::charge(b.stream(), "mean_square_backward", {static_cast<double>(n), kernels::bytes_of(x, dx)}, [&] {
      dispatch_floating(x.dtype(), [&]<class T>() {
        const Accumulator<T> scale = 2 * gradient.data<Accumulator<T>>()[0] / static_cast<Accumulator<T>>(count);
        for (int64_t i = 0; i < n; ++i) dx.data<T>()[i] = T(scale * static_cast<Accumulator<T>>(x.data<T>()[i]));
      });
    });
    b.add(in, dx);
  });
}

// The loss is the mean square of a mixer's output, over the tokens of the step or of each micro-batch.
struct Penalty {
  LossSpec loss;
  int64_t tokens = 0;  // in the mean
  bool declared = true;
};

class PenalisedMean : public testing::RunningMean {
 public:
  PenalisedMean(const Builder& builder, int64_t channels, const MixerModel& model, const ContextAxis& context,
                Penalty penalty)
      : RunningMean(builder, channels, model, context),
        tensor_(builder.tensor),
        context_(context),
        penalty_(std::move(penalty)) {}

  std::vector<LossSpec> losses() const override {
    return penalty_.declared ? std::vector{penalty_.loss} : std::vector<LossSpec>();
  }

  Var forward(Tape& tape, const Var& x, const Positions& where, const Randomness& randomness,
              const Var& embedded) override {
    Var y = RunningMean::forward(tape, x, where, randomness, embedded);
    const Placement partial = Placement::partial(), whole = Placement::replicate();
    Var loss = mean_square(tape, y, static_cast<double>(penalty_.tokens * y.size(2)));
    if (tensor_ && tensor_->residual.kind == Placement::Kind::shard)
      loss = ops::redistribute(tape, std::move(loss), tensor_->group, partial, whole);
    if (penalty_.loss.over == LossSpec::Over::micro_batches && context_.divides())
      loss = ops::redistribute(tape, std::move(loss), *context_.group, partial, whole);
    tape.add_loss(penalty_.loss, std::move(loss));
    return y;
  }

 private:
  std::optional<TensorAxis> tensor_;
  ContextAxis context_;
  Penalty penalty_;
};

struct PenalisedMeanKind : testing::RunningMeanKind {
  PenalisedMeanKind(int64_t of_all_ranks, Penalty its) : RunningMeanKind(of_all_ranks), penalty(std::move(its)) {}

  std::unique_ptr<TokenMixer> make(const Builder& builder, const MixerModel& model,
                                   const ContextAxis& context) const override {
    return std::make_unique<PenalisedMean>(builder, channels, model, context, penalty);
  }

  Penalty penalty;
};

void penalise(RunConfig& config, int64_t layer, Penalty penalty) {
  config.model.mixers[layer] = CustomMixer{std::make_shared<PenalisedMeanKind>(32, std::move(penalty))};
}

// Layers 0 and 2 record one loss, and layer 3 another one.
RunConfig recipe(double coefficient = 1) {
  RunConfig config = testing::divisible_config();
  config.train.global_batch_size = 4;
  const int64_t tokens = config.train.micro_batch_size * config.data.seq_length, all = 4 * config.data.seq_length;
  for (const int64_t layer : {0, 2}) penalise(config, layer, {{"activity_loss", 0.5 * coefficient}, all});
  penalise(config, 3, {{"spread_loss", 0.25 * coefficient, LossSpec::Over::micro_batches}, tokens});
  return laid_out(config, {});
}

using Losses = std::vector<std::pair<std::string, double>>;

struct Found {
  std::vector<Losses> losses;  // for each step
  std::vector<double> norms;
};

Found run(const RunConfig& config, int64_t steps = 3) {
  Found found;
  testing::with_rank_engines(config, [&](Stream&, const Groups& groups, Engine& engine, int rank) {
    for (int64_t step = 0; step < steps; ++step) {
      const StepResult result = engine.step(testing::own_batches(config, groups.layout(), rank, step), step + 1, step);
      if (rank > 0) continue;
      found.losses.push_back(result.other_losses);
      found.losses.back().emplace_back("the model's", result.loss);
      found.norms.push_back(result.gradient_norm);
    }
  });
  return found;
}

// Compares with the records of each micro-batch's forward, computed by a model with the engine's initial weights.
TEST(RecordedLoss, IsSummedOverModulesAndMicroBatches) {
  const RunConfig config = recipe();
  Rank rank(1);
  const Groups groups = make_meta_groups(Layout(config.parallel, 1, config.model.moe.num_experts), 0);
  Engine engine(rank.stream, groups, resolve(config, {}));
  const std::vector<Batch> batches = testing::own_batches(config, groups.layout(), 0, 0);
  Transformer model(rank.stream, config.model, static_cast<uint64_t>(config.train.seed), groups.of(Axis::expert));
  StepInputs inputs(rank.stream, batches);
  inputs.upload(rank.stream, batches);
  std::map<std::string, double> expected;
  for (int64_t i = 0; i < inputs.micro_batches(); ++i) {
    Tape tape(rank.stream);
    model.forward(tape, inputs.input(i));
    for (const LossRecord& loss : tape.losses()) expected[loss.name] += values(loss.value.value()).front();
  }
  const StepResult result = engine.step(batches, 1, 0);
  ASSERT_EQ(result.other_losses.size(), 2U);
  EXPECT_EQ(result.other_losses[0].first, "activity_loss");
  EXPECT_NEAR(result.other_losses[0].second, expected.at("activity_loss"), 1e-12);
  EXPECT_EQ(result.other_losses[1].first, "spread_loss");
  EXPECT_NEAR(result.other_losses[1].second, expected.at("spread_loss") / 4, 1e-12) << "the mean of four";
}

TEST(RecordedLoss, IsTheSameInEveryLayout) {
  const std::vector<LaidOut> layouts = {
      {"replicate=4"},
      {"shard=2", kFsdp},
      {"context=2"},
      {.mesh = "context=2", .comm = "p2p"},
      {"tensor=2,expert_tensor=1"},
      {"pipeline=2"},
      {"pipeline=2", "auto", 2},
      {"replicate=2,expert=2"},
      {"context=2,tensor=2,pipeline=2,expert=2,expert_tensor=1"},
  };
  for (const char* recompute : {"selective", "full"}) {
    RunConfig config = recipe();
    config.model.recompute_granularity = recompute;
    const Found one = run(config);
    EXPECT_NE(one.norms, run(recipe(0)).norms) << "the losses have gradients";
    for (const LaidOut& layout : layouts) {
      SCOPED_TRACE(cat(recompute, ", ", described(layout)));
      const Found found = run(laid_out(config, layout));
      ASSERT_EQ(found.losses.size(), one.losses.size());
      for (size_t step = 0; step < one.losses.size(); ++step) {
        EXPECT_NEAR(found.norms[step], one.norms[step], 1e-9 * one.norms[step]);
        ASSERT_EQ(found.losses[step].size(), one.losses[step].size());
        for (size_t i = 0; i < one.losses[step].size(); ++i) {
          const auto& [name, value] = one.losses[step][i];
          EXPECT_EQ(found.losses[step][i].first, name);
          EXPECT_NEAR(found.losses[step][i].second, value, 1e-9 * value) << name << " of step " << step;
        }
      }
    }
  }
}

TEST(RecordedLoss, AppearsInMetricsTensorBoardChartsAndLogs) {
  for (const char* format : {"witan", "megatron"}) {
    const test::TempFolder folder;
    const RunFolder files(folder.path(), "x");
    RunConfig config = recipe();
    config.log.log_format = format;
    Rank rank(1);
    const Groups groups = make_meta_groups(Layout(config.parallel, 1, config.model.moe.num_experts), 0);
    Engine engine(rank.stream, groups, resolve(config, {}));
    const StepResult result = engine.step(testing::own_batches(config, groups.layout(), 0, 0), 1, 0);
    std::FILE* quiet = std::fopen("/dev/null", "w");
    {
      Progress progress(quiet, progress_options(quiet));
      Recorder recorder(resolve(config, {}), {}, files, progress);
      recorder.begin({}, 0, 0);
      TrainState state;
      state.step = config.train.log_interval;
      recorder.step(state, result, 0.5, 0.1);
    }
    std::fclose(quiet);
    const Metrics metrics = read_metrics(files.metrics());
    ASSERT_EQ(metrics.steps.size(), 1U);
    EXPECT_EQ(metrics.steps[0].scalars.get("activity_loss"), result.other_losses[0].second);
    EXPECT_EQ(metrics.steps[0].scalars.get("spread_loss"), result.other_losses[1].second);
    const std::vector<Chart> charts = make_charts(metrics);
    EXPECT_NE(std::ranges::find(charts, "Activity loss", &Chart::title), charts.end());
    EXPECT_NE(test::event_bytes(files.tensorboard()).find("activity_loss"), std::string::npos);
    const std::string in_log = fmt::format(" spread_loss: {:.6E} | loss scale", result.other_losses[1].second);
    EXPECT_EQ(read_file(files.log()).find(in_log) != std::string::npos, config.log.megatron()) << in_log;
  }
}

TEST(RecordedLoss, RequiresAUniqueDeclaredName) {
  const auto message_with = [](Penalty penalty) {
    RunConfig config = recipe();
    penalise(config, 3, std::move(penalty));
    return test::message_of<Error>([&] { run(config, 1); });
  };
  EXPECT_NE(message_with({{"secret_loss"}, 16, false})
                .find("the loss secret_loss was recorded, but is not declared: name it in Module::losses(), or in "
                      "Objective::losses()"),
            std::string::npos);
  for (const char* taken : {"grad_norm", "z_loss", "loss_scale", "lm loss"})
    EXPECT_NE(message_with({{taken}, 16}).find(cat("the loss ", taken, " has the name of another figure of a step")),
              std::string::npos)
        << taken;
  EXPECT_NE(message_with({{"activity_loss", 1, LossSpec::Over::micro_batches}, 16})
                .find("the loss activity_loss has the name of another figure of a step"),
            std::string::npos)
      << "from layers 0 and 2, over tokens";
}

}  // namespace
}  // namespace witan
