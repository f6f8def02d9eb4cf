#include "witan/train/step/non_finite.h"

#include <gtest/gtest.h>

#include <limits>

#include "train/step/run_support.h"

namespace witan {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();

TEST(NonFinite, CountsByKindInEveryDtype) {
  ThreadPool pool(1);
  Stream stream({}, reserve_arena({}, int64_t{1} << 20), pool);
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    const Tensor tensor = stream.zeros({2, 5}, dtype);
    EXPECT_FALSE(count_non_finite(tensor).any());
    dispatch_floating(dtype, [&]<class T>() {
      tensor.data<T>()[3] = static_cast<T>(kInfinity);
      tensor.data<T>()[4] = static_cast<T>(kNan);
      tensor.data<T>()[9] = static_cast<T>(-kInfinity);
    });
    const NonFiniteCount count = count_non_finite(tensor);
    EXPECT_EQ(count.first, 3) << name_of(dtype);
    EXPECT_EQ(describe(count), "1 NaN and 2 infinite");
  }
  EXPECT_FALSE(count_non_finite(stream.zeros({2}, DType::i64)).any());
}

std::vector<Batch> weighted_batches(const RunConfig& config, float weight) {
  std::vector<Batch> batches(static_cast<size_t>(config.micro_batches()));
  for (Batch& batch : batches) {
    batch.sequences = config.train.micro_batch_size;
    batch.sequence_length = config.data.seq_length;
    const auto places = static_cast<size_t>(batch.sequences * batch.sequence_length);
    for (size_t i = 0; i < places; ++i) {
      batch.tokens.push_back(static_cast<int32_t>(i * 7 % 61));
      batch.targets.push_back(static_cast<int32_t>(i * 11 % 61));
      batch.positions.push_back(static_cast<int32_t>(i % static_cast<size_t>(batch.sequence_length)));
    }
    batch.sequence_ids.resize(places);
    batch.loss_mask.assign(places, 1);
    batch.loss_tokens = static_cast<int64_t>(places);
  }
  batches.back().loss_mask[5] = weight;
  return batches;
}

// Watching does not change a step and finds nothing if all values are finite: unused memory of receive buffers is not
// examined.
TEST(NonFinite, AFiniteStepHasNone) {
  for (const std::string recompute : {"none", "full"}) {
    RunConfig config = testing::small_config();
    config.model.recompute_granularity = recompute;
    testing::with_rank_engines(config, [&](Stream& stream, const Groups&, Engine& engine, int) {
      const auto good = weighted_batches(config, 1), bad = weighted_batches(config, kNan);
      engine.step(bad, 1, 0);  // leaves the memory full of NaNs
      const StepResult first = engine.step(good, 2, 0);
      EXPECT_FALSE(first.skipped);
      EXPECT_FALSE(engine.find_non_finite(good, 3, 1, {}).has_value());
      EXPECT_EQ(stream.observer(), nullptr);
      EXPECT_TRUE(engine.non_finite_values().empty());
      EXPECT_TRUE(engine.non_finite_gradients().empty());
    });
  }
}

TEST(NonFinite, TheFirstIsNamedByPassModuleAndOp) {
  const RunConfig config = testing::small_config();
  testing::with_rank_engines(config, [&](Stream&, const Groups&, Engine& engine, int) {
    const auto bad = weighted_batches(config, kNan), good = weighted_batches(config, 1);
    EXPECT_TRUE(engine.step(bad, 1, 0).skipped);
    EXPECT_FALSE(engine.non_finite_gradients().empty());
    auto found = engine.find_non_finite(bad, 1, 0, {});
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->phase, TraceContext::Phase::forward);
    EXPECT_EQ(found->micro_batch, config.micro_batches() - 1);
    EXPECT_EQ(found->what.rfind("the output of cross_entropy", 0), 0u) << found->what;

    Parameter* norm = nullptr;
    for (Parameter* parameter : engine.model().parameters())
      if (parameter->name().find("layers.1.") == 0 && norm == nullptr) norm = parameter;
    norm->value_shard().data<float>()[1] = kInfinity;
    EXPECT_EQ(engine.non_finite_values(), std::vector<std::string>{norm->name() + ": 1 infinite"});
    EXPECT_TRUE(engine.step(good, 2, 0).skipped);
    found = engine.find_non_finite(good, 2, 0, {});
    ASSERT_TRUE(found.has_value());
    EXPECT_NE(found->what.find(" in layers.1."), std::string::npos) << found->what;
    EXPECT_EQ(found->micro_batch, 0);
  });
}

}  // namespace
}  // namespace witan
