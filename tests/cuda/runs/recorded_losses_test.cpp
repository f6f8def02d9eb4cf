// Losses that modules record and an objective that reads columns, in steps on GPUs that are one recorded graph.
#include <gtest/gtest.h>

#include "cuda/runs/engine_support.h"
#include "witan/nn/attention/grouped_query.h"
#include "witan/ops/pointwise/activation.h"
#include "witan/ops/pointwise/elementwise.h"

namespace witan::testing {
namespace {

// Attention that records the mean of max(y, 0)^2 over its output y, of the step's tokens or of each micro-batch's.
class PenalisedAttention : public GroupedQueryAttention {
 public:
  PenalisedAttention(const Builder& builder, const MultiHeadSpec& spec, const MixerModel& model,
                     const ContextAxis& context, LossSpec loss, int64_t tokens)
      : GroupedQueryAttention(builder, spec, model.width, model.bias, context, model.norm),
        loss_(std::move(loss)),
        values_(static_cast<double>(tokens * model.width)) {}

  std::vector<LossSpec> losses() const override { return {loss_}; }

  Var forward(Tape& tape, const Var& x, const Positions& where, const Randomness& randomness,
              const Var& embedded) override {
    Var y = GroupedQueryAttention::forward(tape, x, where, randomness, embedded);
    tape.add_loss(loss_, ops::scale(tape, ops::sum(tape, ops::squared_relu(tape, y, {})), 1 / values_));
    return y;
  }

 private:
  LossSpec loss_;
  double values_;  // in the mean
};

struct PenalisedSpec : public MultiHeadSpec {
  std::unique_ptr<TokenMixer> make(const Builder& builder, const MixerModel& model,
                                   const ContextAxis& context) const override {
    return std::make_unique<PenalisedAttention>(builder, *this, model, context, loss, tokens);
  }

  LossSpec loss;
  int64_t tokens = 0;
};

// Replaces a layer's attention by one that records this loss.
void penalise_layer(RunConfig& config, int64_t layer, const LossSpec& loss, int64_t tokens) {
  auto spec = std::make_shared<PenalisedSpec>();
  static_cast<MultiHeadSpec&>(*spec) = std::get<MultiHeadSpec>(config.model.layers()[static_cast<size_t>(layer)].mixer);
  spec->loss = loss;
  spec->tokens = tokens;
  config.model.mixers[layer] = CustomMixer{std::move(spec)};
}

// -sum_t A_t log p_t / targets, as a policy gradient has it, and a quarter of the plain cross entropy. It reads the
// column on the device.
class AdvantageObjective : public Objective {
 public:
  std::vector<ColumnSpec> columns() const override { return {{"advantages"}}; }
  std::vector<LossSpec> losses() const override { return {{kLanguageLoss}, {"anchor", 0.25}}; }

  void record(const ObjectivePass& pass, ModelOutput& out) const override {
    const auto& [tape, model, inputs, micro_batch, scaled, context, reference] = pass;
    const Tensor plain = target_weights(pass), weights = tape.stream().empty_like(plain);
    // A column of advantages takes the place of the mask, which it includes.
    kernels::loss_weights(tape.stream(), weights, inputs.column(micro_batch, "advantages"), inputs.target_count());
    const Tensor& targets = inputs.targets(micro_batch);
    tape.add_loss(losses()[0], model.loss(tape, out.logits, targets, weights).loss);
    tape.add_loss(losses()[1], model.loss(tape, std::move(out.logits), targets, plain).loss);
  }
};

std::vector<Batch> batches_with_advantages(const RunConfig& config, const Layout& layout, int rank, int64_t step) {
  std::vector<Batch> batches = own_batches(config, layout, rank, step);
  for (size_t i = 0; i < batches.size(); ++i) {
    const Philox rng(5, static_cast<uint64_t>(1000 * step + 100 * layout.data_rank(rank)) + i);
    Column column{{"advantages"}, {}};
    for (size_t t = 0; t < batches[i].targets.size(); ++t)
      column.values.push_back(batches[i].loss_mask[t] * static_cast<float>(rng.normal(t)));
    batches[i].columns.push_back(std::move(column));
  }
  return batches;
}

struct LossesOfSteps {
  std::vector<double> losses, others, norms;  // `others`: in the order of StepResult::other_losses
};

// Steps of the configuration's objective, or of one that reads columns.
LossesOfSteps losses_of_steps(const RunConfig& given, bool reads_columns, int64_t steps) {
  const ResolvedConfig config = resolve(given, {});
  const int ranks = static_cast<int>(config->parallel.ranks);
  const Layout layout(config->parallel, ranks, config->model.moe.num_experts);
  const int64_t beyond_plan = int64_t{64} << 20;  // the plan is of the configuration's objective
  const int64_t arena = make_plan(config).arena_bytes() + beyond_plan;
  LossesOfSteps found;
  ThreadWorld world(ranks);
  world.run([&](int rank) {
    ThreadPool pool(1);
    Stream stream(device_of(*config, rank), reserve_arena(device_of(*config, rank), arena), pool);
    const Groups groups =
        make_groups(world, layout, rank, stream, sums_of(config), peers_of(config->parallel, layout, rank));
    Engine engine(stream, groups, config);
    if (reads_columns) engine.use_objective(std::make_unique<AdvantageObjective>());
    for (int64_t step = 0; step < steps; ++step) {
      const auto batches = (reads_columns ? batches_with_advantages : own_batches)(*config, layout, rank, step);
      const StepResult result = engine.step(batches, step + 1, step);
      if (rank != 0) continue;
      found.losses.push_back(result.loss);
      found.norms.push_back(result.gradient_norm);
      for (const auto& [name, value] : result.other_losses) found.others.push_back(value);
    }
  });
  return found;
}

void expect_same_losses(const LossesOfSteps& found, const LossesOfSteps& expected, double relative) {
  expect_near(found.losses, expected.losses, relative);
  expect_near(found.others, expected.others, relative);
  expect_near(found.norms, expected.norms, 10 * relative);
}

// Recorded steps have the bits of eager ones, also on two GPUs, and in float64 the figures of the CPU.
void expect_recorded_losses(const RunConfig& config, bool reads_columns, size_t others) {
  constexpr int64_t kSteps = 5;
  const LossesOfSteps gpu = losses_of_steps(config, reads_columns, kSteps);
  ASSERT_EQ(gpu.others.size(), kSteps * others);
  RunConfig host = config;
  host.parallel.device = "cpu";
  expect_same_losses(gpu, losses_of_steps(host, reads_columns, kSteps), 1e-9);
  for (const int ranks : {1, 2}) {
    if (ranks > cuda::devices()) continue;
    RunConfig recorded = config;
    recorded.model.dtype = "bfloat16";
    recorded.parallel.ranks = recorded.parallel.expert_model_parallel_size = ranks;
    recorded.parallel.deterministic = true;
    RunConfig eager = recorded;
    eager.parallel.cuda_graph = false;
    expect_same_losses(losses_of_steps(recorded, reads_columns, kSteps), losses_of_steps(eager, reads_columns, kSteps),
                       0);
  }
}

class RecordedLossesOnGpus : public EngineOnGpus {};

TEST_F(RecordedLossesOnGpus, OfModulesAreThoseOfTheCpuAndOfEagerSteps) {
  for (const char* recompute : {"selective", "full"}) {
    SCOPED_TRACE(recompute);
    RunConfig config = gpu_config("float64"), plain = config;
    config.model.recompute_granularity = plain.model.recompute_granularity = recompute;
    const int64_t all = config.train.global_batch_size * config.data.seq_length,
                  some = config.train.micro_batch_size * config.data.seq_length;
    penalise_layer(config, 0, {"activity_loss", 0.5}, all);
    penalise_layer(config, 1, {"spread_loss", 0.25, LossSpec::Over::micro_batches}, some);
    expect_recorded_losses(config, false, 2);
    EXPECT_NE(losses_of_steps(config, false, 1).norms, losses_of_steps(plain, false, 1).norms)
        << "the losses have gradients";
  }
}

TEST_F(RecordedLossesOnGpus, OfColumnsAreThoseOfTheCpuAndOfEagerSteps) {
  expect_recorded_losses(gpu_config("float64"), true, 1);
}

TEST_F(RecordedLossesOnGpus, OfAFrozenReferenceAreThoseOfTheCpuAndOfEagerSteps) {
  for (const int64_t adapters : {0, 4}) {
    SCOPED_TRACE(adapters);
    RunConfig config = gpu_config("float64");
    config.data.sft = config.data.preferences = true;
    config.data.tokenizer = "t.json";
    config.objective.objective = "preference";
    config.objective.rpo_alpha = 0.5;
    config.model.lora_rank = adapters;
    if (adapters > 0) config.model.lora_target_modules = "q_proj,o_proj";
    const size_t figures = 5;
    expect_recorded_losses(config, false, figures);
  }
}

}  // namespace
}  // namespace witan::testing
