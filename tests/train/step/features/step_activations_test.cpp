// Activation statistics compared with the tensors themselves. Recomputation and layout do not change them, and
// measuring does not change a step. layouts/every_layout_test.cpp tests layouts of every axis.
#include "witan/train/step/features/step_activations.h"

#include <gtest/gtest.h>

#include <cmath>

#include "train/step/layouts/laid_out.h"
#include "train/step/run_support.h"
#include "witan/tensor/observer.h"
#include "witan/tensor/trace_context.h"

namespace witan {
namespace {

using testing::laid_out;
using testing::run_engine;
using testing::small_config;
using testing::Trajectory;

struct Figures {
  double squares = 0, largest = 0, zeros = 0, elements = 0;

  void add(const Tensor& tensor) {
    for (const double value : tensor.span<double>()) {
      squares += value * value;
      largest = std::max(largest, std::abs(value));
      zeros += value == 0;
      ++elements;
    }
  }
  double rms() const { return std::sqrt(squares / elements); }
};

// Observes the forwards of a pre-norm model: a module's output is that of its last op, and the first output of the norm
// after a layer is the residual stream.
class Watcher : public TensorObserver {
 public:
  void kernel(Stream&, const char*, const Cost&, int64_t, int64_t) override {}
  void allocated(Stream&, const Tensor&) override {}
  void gradients_of(Stream&, std::span<const Tensor>) override {}
  void parameter_gradient(Stream&, const Tensor&) override {}
  void computed(Stream& stream, std::string_view op, std::span<const Tensor> outputs) override {
    const TraceContext& at = stream.trace_context();
    if (at.phase != TraceContext::Phase::forward || at.micro_batch < 0) return;
    last_[{at.micro_batch, std::string(at.module)}] = outputs.front();
    if (op.find("norm") != std::string_view::npos) sums_[{at.micro_batch, norms_[at.micro_batch]++}] = outputs.front();
  }

  Figures of_module(const std::string& module) const {
    Figures all;
    for (const auto& [key, tensor] : last_)
      if (key.second == module) all.add(tensor);
    return all;
  }
  // The input of the norm-th norm in each forward.
  Figures of_norm(int norm) const {
    Figures all;
    for (const auto& [key, tensor] : sums_)
      if (key.second == norm) all.add(tensor);
    return all;
  }

 private:
  std::map<std::pair<int64_t, std::string>, Tensor> last_;
  std::map<std::pair<int64_t, int>, Tensor> sums_;
  std::map<int64_t, int> norms_;
};

TEST(StepActivations, AreThoseOfTheForwards) {
  RunConfig config = small_config();
  config.model.dtype = "float64";
  config.model.moe.num_experts = 0;
  config.model.mlp.swiglu = false;
  config.train.global_batch_size = 4;
  config.log.log_activations = 1;
  const ResolvedConfig resolved = resolve(config, {});
  ThreadWorld world(1);
  world.run([&](int rank) {
    ThreadPool pool(1);
    Stream stream({Device::Kind::cpu}, reserve_arena({Device::Kind::cpu}, int64_t{1} << 30), pool);
    const Groups groups = make_groups(world, Layout(resolved->parallel, 1, 0), rank, stream, sums_of(*resolved));
    Engine engine(stream, groups, resolved);
    Watcher watcher;
    stream.observe(&watcher);
    const StepResult result = engine.step(testing::own_batches(config, groups.layout(), rank, 0), 1, 0);
    stream.observe(nullptr);
    const auto near = [](double found, double expected) { EXPECT_NEAR(found, expected, 1e-12 * expected); };
    for (size_t layer = 0; layer < 2; ++layer) {
      SCOPED_TRACE(layer);
      const auto figure = [&](const char* name) { return result.activations.at(name)[layer]; };
      const Figures attention = watcher.of_module(cat("layers.", layer, ".attention.o_proj")),
                    mlp = watcher.of_module(cat("layers.", layer, ".mlp.down_proj"));
      // Each layer has two norms, and the second one sees the output of attention.
      const Figures residual = watcher.of_norm(static_cast<int>(2 * layer + 2));
      ASSERT_EQ(attention.elements, 4 * 12 * 32);
      ASSERT_EQ(mlp.elements, 4 * 12 * 32);
      ASSERT_EQ(residual.elements, 4 * 12 * 32);
      near(figure("attention_rms"), attention.rms());
      near(figure("attention_max"), attention.largest);
      near(figure("mlp_rms"), mlp.rms());
      near(figure("mlp_max"), mlp.largest);
      near(figure("residual_rms"), residual.rms());
      near(figure("residual_max"), residual.largest);
      EXPECT_EQ(figure("mlp_zeros"), mlp.zeros / mlp.elements);
    }
    EXPECT_EQ(result.activations.size(), activation_statistics().size());
  });
}

RunConfig measured(const char* dtype = "float32") {
  RunConfig config = testing::divisible_config(dtype);
  config.train.global_batch_size = 4;
  config.log.log_activations = 1;
  config.parallel.deterministic = true;  // so that a step starts with the same bits as in other layouts
  return config;
}

// 7 figures of 4 layers in each of 2 steps.
TEST(StepActivations, RecomputationAndChunksChangeNoBit) {
  const RunConfig config = measured();
  const Trajectory one = run_engine(config, 2);
  ASSERT_EQ(one.activations.size(), 2u * 7 * 4);
  for (const double value : one.activations) EXPECT_TRUE(std::isfinite(value));
  RunConfig full = config, selective = config;
  full.model.recompute_granularity = "full";
  selective.model.recompute_granularity = "selective";
  selective.model.recompute_modules = "moe,mlp,layernorm";
  EXPECT_EQ(run_engine(full, 2).activations, one.activations);
  EXPECT_EQ(run_engine(selective, 2).activations, one.activations);
  EXPECT_EQ(run_engine(laid_out(config, {"pipeline=2"}), 2).activations, one.activations);
  EXPECT_EQ(run_engine(laid_out(full, {"pipeline=2", "auto", 2}), 2).activations, one.activations);
}

// Without sequence_parallel each tensor-parallel rank measures all tokens, which count once.
TEST(StepActivations, TensorParallelRanksMayHoldAllTokens) {
  RunConfig config = measured("float64"), whole = laid_out(config, {"tensor=2,expert_tensor=1"});
  config.model.moe.num_experts = whole.model.moe.num_experts = 0;
  whole.parallel = laid_out(whole, {"tensor=2"}).parallel;
  whole.parallel.sequence_parallel = false;
  const Trajectory one = run_engine(config, 2), two = run_engine(whole, 2);
  ASSERT_EQ(one.activations.size(), two.activations.size());
  for (size_t i = 0; i < one.activations.size(); ++i)
    EXPECT_NEAR(two.activations[i], one.activations[i], 1e-9 * one.activations[i]) << i;
}

TEST(StepActivations, MtpModulesFollowTheLayers) {
  RunConfig config = measured();
  config.model.mtp_num_layers = 2;
  const Trajectory one = run_engine(config, 2);
  ASSERT_EQ(one.activations.size(), 2u * 7 * 6);
  EXPECT_EQ(run_engine(laid_out(config, {"pipeline=2"}), 2).activations, one.activations);
}

TEST(StepActivations, LayersWithoutAttentionHaveNone) {
  RunConfig config = measured();
  config.model.attention.no_attention_freq = "[0,1,0,0]";
  testing::with_rank_engines(config, [&](Stream&, const Groups& groups, Engine& engine, int rank) {
    const StepResult result = engine.step(testing::own_batches(config, groups.layout(), rank, 0), 1, 0);
    EXPECT_TRUE(std::isnan(result.activations.at("attention_rms")[1]));
    EXPECT_GT(result.activations.at("attention_rms")[2], 0);
    EXPECT_GT(result.activations.at("mlp_rms")[1], 0);
  });
}

TEST(StepActivations, IncludeLogitsOfQkClip) {
  RunConfig config = measured();
  config.optimizer.qk_clip = true;
  testing::with_rank_engines(config, [&](Stream&, const Groups& groups, Engine& engine, int rank) {
    const StepResult result = engine.step(testing::own_batches(config, groups.layout(), rank, 0), 1, 0);
    const std::vector<double>& logits = result.activations.at("attention_logit_max");
    ASSERT_EQ(logits.size(), 4u);
    EXPECT_EQ(std::ranges::max(logits), result.scalars.get(kMaxAttentionLogit));
  });
}

TEST(StepActivations, OnlyDueStepsMeasureAndNoneChangesTheRun) {
  RunConfig config = measured();
  const Trajectory all = run_engine(config, 5);
  config.log.log_activations = 2;
  const Trajectory some = run_engine(config, 5);
  config.log.log_activations = 0;
  const Trajectory none = run_engine(config, 5);
  ASSERT_EQ(some.activations.size(), 2u * 7 * 4);
  EXPECT_TRUE(none.activations.empty());
  const auto of_step = [&](const Trajectory& run, std::ptrdiff_t line) {
    return std::vector(run.activations.begin() + line * 28, run.activations.begin() + (line + 1) * 28);
  };
  EXPECT_EQ(of_step(some, 0), of_step(all, 1));
  EXPECT_EQ(of_step(some, 1), of_step(all, 3));
  EXPECT_EQ(all.losses, none.losses);
  EXPECT_TRUE(all.weights == none.weights);
}

}  // namespace
}  // namespace witan
