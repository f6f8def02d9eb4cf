// The test's own objective, with two losses and two columns, in every kind of layout.
#include "witan/train/step/objective.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <set>

#include "support/rank.h"
#include "support/temp_folder.h"
#include "train/step/layouts/laid_out.h"
#include "train/step/run_support.h"
#include "witan/data/batches/loader.h"
#include "witan/data/datasets/indexed_dataset.h"
#include "witan/train/data/run_samples.h"

namespace witan {
namespace {

using testing::divisible_config;
using testing::kFsdp;
using testing::laid_out;
using testing::LaidOut;
using testing::Rank;
using testing::values;

constexpr double kAnchor = 0.25;

// -sum_t A_t w_row log p_t / targets, as in a policy gradient, and kAnchor times the plain cross entropy.
class PolicyGradient : public Objective {
 public:
  enum class Rows : bool { equal, weighted };
  explicit PolicyGradient(Rows rows = Rows::weighted) : rows_(rows) {}

  std::vector<ColumnSpec> columns() const override {
    if (rows_ == Rows::equal) return {{"advantages"}};
    return {{"advantages"}, {"group_weight", ColumnSpec::Per::sample}};
  }

  std::vector<LossSpec> losses() const override { return {{kLanguageLoss}, {"anchor", kAnchor}}; }

  void record(const ObjectivePass& pass, ModelOutput& out) const override {
    const auto& [tape, model, inputs, micro_batch, scaled, context, reference] = pass;
    const Tensor weights = target_weights(pass), plain = target_weights(pass);
    const Tensor& advantages = inputs.column(micro_batch, "advantages");
    const Tensor rows = rows_ == Rows::weighted ? inputs.column(micro_batch, "group_weight") : Tensor();
    for (int64_t t = 0; !tape.stream().is_meta() && t < weights.elements(); ++t) {
      double& weight = weights.data<double>()[t];
      weight *= static_cast<double>(advantages.data<float>()[t]);
      if (rows.defined()) weight *= static_cast<double>(rows.data<float>()[t * rows.elements() / weights.elements()]);
    }
    const Tensor& targets = inputs.targets(micro_batch);
    tape.add_loss(losses()[0], model.loss(tape, out.logits, targets, weights).loss);
    tape.add_loss(losses()[1], model.loss(tape, std::move(out.logits), targets, plain).loss);
  }

 private:
  Rows rows_;
};

// Micro-batch `number` of the run, with random columns.
Batch batch_with_columns(const RunConfig& config, int64_t number) {
  Batch batch = testing::random_batch(config, number);
  const Philox rng(5, static_cast<uint64_t>(number));
  for (const ColumnSpec& spec : PolicyGradient().columns()) {
    const size_t size = spec.per == ColumnSpec::Per::token ? batch.tokens.size() : static_cast<size_t>(batch.sequences);
    Column column{spec, {}};
    for (size_t i = 0; i < size; ++i) column.values.push_back(static_cast<float>(rng.normal(100 * i + size)));
    batch.columns.push_back(std::move(column));
  }
  return batch;
}

std::vector<Batch> sized_batches(const RunConfig& config, const Layout& layout, PolicyGradient::Rows rows) {
  Batch batch = sized_batch(config);
  for (const ColumnSpec& spec : PolicyGradient(rows).columns()) batch.columns.push_back({spec});
  return std::vector<Batch>(static_cast<size_t>(config.micro_batches() / layout.data_ranks()), batch);
}

// The memory that an engine uses on the meta device.
int64_t planned_bytes(const ResolvedConfig& config, const Layout& layout, int rank, PolicyGradient::Rows rows) {
  ThreadPool pool(1);
  Stream stream({Device::Kind::meta, rank}, Arena::meta(), pool);
  const Groups groups = make_meta_groups(layout, rank);
  Engine engine(stream, groups, config);
  engine.use_objective(std::make_unique<PolicyGradient>(rows));
  for (const int64_t iteration : {1, 2}) {
    engine.step(sized_batches(*config, layout, rows), iteration, iteration - 1);
    engine.params_norm();
  }
  return stream.arena().high_water();
}

struct Figures {
  std::vector<double> losses, anchors, norms, params_norms;
};

// Returns a function that makes a rank's micro-batches for consecutive steps.
using MakeStream = std::function<std::function<std::vector<Batch>()>(const RunConfig&, const Layout&, int rank)>;

MakeStream random_batches() {
  return [](const RunConfig& config, const Layout& layout, int rank) {
    return [&, rank, step = int64_t{0}]() mutable {
      const int64_t own = config.micro_batches() / layout.data_ranks(),
                    first = step++ * config.micro_batches() + layout.data_rank(rank) * own;
      std::vector<Batch> batches;
      for (int64_t i = 0; i < own; ++i) batches.push_back(batch_with_columns(config, first + i));
      return batches;
    };
  };
}

// Takes steps on the config's ranks, each in exactly the memory used on the meta device.
Figures steps_of(const RunConfig& given, int64_t steps, PolicyGradient::Rows rows = PolicyGradient::Rows::weighted,
                 const MakeStream& make_stream = random_batches()) {
  const ResolvedConfig config = resolve(given, {});
  const Layout layout(config->parallel, static_cast<int>(config->parallel.ranks), config->model.moe.num_experts);
  ThreadWorld world(layout.world_size());
  Figures figures;
  world.run([&](int rank) {
    const int64_t bytes = planned_bytes(config, layout, rank, rows);
    ThreadPool pool(1);
    Stream stream({}, reserve_arena({}, bytes), pool);
    const Groups groups = make_groups(world, layout, rank, stream, sums_of(*config));
    Engine engine(stream, groups, config);
    engine.use_objective(std::make_unique<PolicyGradient>(rows));
    const auto next = make_stream(*config, layout, rank);
    for (int64_t step = 0; step < steps; ++step) {
      const StepResult result = engine.step(next(), step + 1, step);
      const double norm = engine.params_norm();
      if (rank != 0) continue;
      figures.losses.push_back(result.loss);
      EXPECT_EQ(result.other_losses.front().first, "anchor");
      figures.anchors.push_back(result.other_losses.front().second);
      figures.norms.push_back(result.gradient_norm);
      figures.params_norms.push_back(norm);
    }
    EXPECT_EQ(stream.arena().high_water(), bytes) << "rank " << rank;
  });
  return figures;
}

void expect_equal(const Figures& found, const Figures& expected) {
  for (const auto figure : {&Figures::losses, &Figures::anchors, &Figures::norms, &Figures::params_norms}) {
    ASSERT_EQ((found.*figure).size(), (expected.*figure).size());
    for (size_t i = 0; i < (found.*figure).size(); ++i)
      EXPECT_NEAR((found.*figure)[i], (expected.*figure)[i], 1e-9 * std::abs((expected.*figure)[i]));
  }
}

RunConfig policy_config() {
  RunConfig config = divisible_config();
  config.train.micro_batch_size = 2;
  config.model.moe.moe_z_loss_coeff = 1e-3;
  return laid_out(config, {});
}

TEST(Objective, LossesAndColumnsOfEveryLayoutEqualOneRankInFloat64) {
  const std::vector<LaidOut> layouts = {
      {"replicate=4"},
      {"shard=2", kFsdp},
      {"context=2"},
      {.mesh = "context=2", .comm = "p2p"},
      {"tensor=2,expert_tensor=1"},
      {.mesh = "tensor=2,expert_tensor=1", .loss_parallel = false},
      {"pipeline=2"},
      {"pipeline=2", "auto", 2},
      {"replicate=2,expert=2"},
      {"context=2,tensor=2,pipeline=2,expert=2,expert_tensor=2"},
  };
  for (const char* recompute : {"selective", "full"}) {
    RunConfig config = policy_config();
    config.model.recompute_granularity = recompute;
    const Figures one = steps_of(config, 3);
    for (const LaidOut& layout : layouts) {
      SCOPED_TRACE(cat(recompute, ", ", described(layout)));
      expect_equal(steps_of(laid_out(config, layout), 3), one);
    }
  }
}

// Shards with a column file that another program wrote, read by loaders on all ranks, sequential or packed.
TEST(Objective, ReadsColumnFilesInEveryLayout) {
  const test::TempFolder folder;
  const auto advantage_of = [](int32_t token) { return static_cast<float>(token % 7) - 2.5f; };
  std::vector<float> column;
  IndexedWriter writer(folder / "tokens", 60);
  for (int64_t document = 0; document < 40; ++document) {
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < 3 + document % 11; ++i) ids.push_back(static_cast<int32_t>((document * 7 + i * i) % 60));
    for (const int32_t id : ids) column.push_back(advantage_of(id));
    writer.add(ids);
  }
  writer.finish();
  fs::create_directory(folder / "tokens.columns");
  std::ofstream(folder / "tokens.columns" / "advantages.f32", std::ios::binary)
      .write(reinterpret_cast<const char*>(column.data()), static_cast<std::streamsize>(column.size() * sizeof(float)));
  const auto tokens = open_tokens(folder / "tokens");

  for (const char* packing : {"none", "best_fit"}) {
    RunConfig config = policy_config();
    config.data.data_packing = packing;
    const auto from_files = [&](const RunConfig& of, const Layout& layout, int rank) {
      const auto loader = std::make_shared<Loader>(
          open_samples(tokens, of.data, 5, true),
          LoaderOptions{.micro_batch_size = of.train.micro_batch_size,
                        .global_batch_size = of.train.global_batch_size,
                        .data_parallel_rank = layout.data_rank(rank),
                        .data_parallel_size = layout.data_ranks(),
                        .batch = {.columns = PolicyGradient(PolicyGradient::Rows::equal).columns()}});
      return [loader, advantage_of] {
        std::vector<Batch> batches = loader->next();
        for (const Batch& batch : batches)
          for (size_t i = 0; i < batch.targets.size(); ++i)
            if (batch.loss_mask[i] > 0) {
              EXPECT_EQ(batch.columns[0].values[i], advantage_of(batch.targets[i]));
            }
        return batches;
      };
    };
    const auto steps = [&](const LaidOut& layout) {
      return steps_of(laid_out(config, layout), 3, PolicyGradient::Rows::equal, from_files);
    };
    const Figures one = steps({});
    for (const LaidOut& layout : std::vector<LaidOut>{
             {"replicate=2"}, {"context=2"}, {"tensor=2,expert_tensor=1"}, {"pipeline=2"}, {"replicate=2,expert=2"}}) {
      SCOPED_TRACE(cat(packing, ", ", described(layout)));
      expect_equal(steps(layout), one);
    }
  }
}

// One micro-batch's pass and the total of its losses.
struct Pass {
  Pass(Rank& rank, Transformer& model, const StepInputs& inputs) : tape(rank.stream) {
    ModelOutput out = model.forward(tape, inputs.input(0));
    logits = values(out.logits.value());
    PolicyGradient().record({tape, model, inputs, 0, false}, out);
  }
  double total(LossGradients& gradients) const {
    double sum = 0;
    for (const LossRecord& loss : tape.losses())
      sum += values(gradients.of(loss)).front() * values(loss.value.value()).front();
    return sum;
  }
  Tape tape;
  std::vector<double> logits;
};

class ObjectiveGradients : public ::testing::TestWithParam<const char*> {};

TEST_P(ObjectiveGradients, EqualDifferencesOfAllRecordedLosses) {
  RunConfig config = testing::small_config();
  config.model.dtype = "float64";
  config.model.moe.moe_aux_loss_coeff = "0.1";
  config.model.moe.moe_z_loss_coeff = 0.01;
  config.model.recompute_granularity = GetParam();
  config.validate();
  Rank rank;
  const Groups groups = make_meta_groups(Layout(config.parallel, 1, config.model.moe.num_experts), 0);
  Transformer model(rank.stream, config.model, 3, groups.of(Axis::expert));
  for (Parameter* parameter : model.parameters())
    parameter->bind_gradient(rank.stream.empty(parameter->value().shape(), DType::f64));
  const Batch batch = batch_with_columns(config, 0);
  StepInputs inputs(rank.stream, {batch});
  inputs.upload(rank.stream, {batch});
  LossGradients gradients(rank.stream, DType::f64, nullptr);
  gradients.expect(4);

  Pass pass(rank, model, inputs);
  std::multiset<std::string> names;
  std::vector<std::pair<Var, Tensor>> roots;
  for (const LossRecord& loss : pass.tape.losses()) {
    names.insert(loss.name);
    roots.emplace_back(loss.value, gradients.of(loss));
  }
  EXPECT_EQ(names, (std::multiset<std::string>{"anchor", "lm loss", "load_balancing_loss", "load_balancing_loss",
                                               "z_loss", "z_loss"}));
  // The objective's value by its definition.
  const auto V = static_cast<size_t>(config.model.padded_vocab_size());
  const auto vocabulary = static_cast<size_t>(config.model.vocab_size);
  double expected = 0;
  for (size_t t = 0; t < batch.tokens.size(); ++t) {
    double sum = 0;
    for (size_t v = 0; v < vocabulary; ++v) sum += std::exp(pass.logits[t * V + v]);
    const double nats = std::log(sum) - pass.logits[t * V + static_cast<size_t>(batch.targets[t])];
    const size_t row = t / static_cast<size_t>(batch.sequence_length);
    expected += static_cast<double>(batch.loss_mask[t]) * static_cast<double>(batch.columns[0].values[t]) *
                static_cast<double>(batch.columns[1].values[row]) * nats / static_cast<double>(batch.loss_tokens);
  }
  const auto policy = std::ranges::find(pass.tape.losses(), std::string(kLanguageLoss), &LossRecord::name);
  EXPECT_NEAR(values(policy->value.value()).front(), expected, 1e-12);

  pass.tape.backward(roots);
  for (Parameter* parameter : model.parameters())
    for (const int64_t i : {int64_t{0}, parameter->value().elements() / 2, parameter->value().elements() - 1}) {
      double& value = parameter->value().data<double>()[i];
      const double before = value, gradient = values(parameter->gradient())[static_cast<size_t>(i)], step = 1e-5;
      value = before + step;
      const double above = Pass(rank, model, inputs).total(gradients);
      value = before - step;
      const double below = Pass(rank, model, inputs).total(gradients);
      value = before;
      EXPECT_NEAR((above - below) / (2 * step), gradient, 1e-8 + 1e-6 * std::abs(gradient))
          << parameter->name() << " " << i;
    }
}

INSTANTIATE_TEST_SUITE_P(Recomputed, ObjectiveGradients, ::testing::Values("selective", "full"));

}  // namespace
}  // namespace witan
