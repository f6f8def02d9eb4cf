#include "witan/train/step/loss_gradients.h"

#include <gtest/gtest.h>

#include "support/message_of.h"
#include "support/rank.h"
#include "witan/base/error.h"

namespace witan {
namespace {

using test::message_of;
using testing::Rank;
using testing::values;
using Over = LossSpec::Over;

double read(const Tensor& gradient) {
  return values(gradient).front();
}

TEST(LossGradients, AreCoefficientsDividedByMicroBatches) {
  Rank rank(1);
  LossGradients gradients(rank.stream, DType::f64, nullptr);
  gradients.expect(8);
  gradients.begin_step();
  const Tensor whole = gradients.of({"lm loss", 1, Over::tokens}),
               mean = gradients.of({"z_loss", 0.5, Over::micro_batches});
  EXPECT_EQ(whole.shape(), Shape({1}));
  EXPECT_EQ(read(whole), 1);
  EXPECT_EQ(read(mean), 0.5 / 8);
  EXPECT_EQ(read(gradients.of({"penalty", 0.5, Over::tokens})), 0.5);
  EXPECT_EQ(gradients.of({"another", 0.5, Over::micro_batches}).raw(), mean.raw()) << "equal ones are shared";
  gradients.expect(3);
  EXPECT_EQ(read(mean), 0.5 / 3) << "at the same address";
  EXPECT_EQ(read(whole), 1);
  EXPECT_FALSE(gradients.scaled());
}

TEST(LossGradients, AreMultipliedByTheLossScale) {
  Rank rank(1);
  OptimizerConfig config;
  config.initial_loss_scale = 1024;
  LossScaler scaler(rank.stream, config);
  LossGradients gradients(rank.stream, DType::f32, &scaler);
  gradients.expect(4);
  gradients.begin_step();
  const Tensor mean = gradients.of({"z_loss", 0.5, Over::micro_batches});
  EXPECT_EQ(read(mean), 128) << "also in the step that first records it";
  scaler.restore({.scale = 64});
  gradients.begin_step();
  EXPECT_EQ(read(mean), 8);
  EXPECT_TRUE(gradients.scaled());
}

TEST(LossGradients, RefuseMoreThanTheLimit) {
  Rank rank(1);
  LossGradients gradients(rank.stream, DType::f32, nullptr);
  for (int i = 0; i < 64; ++i) EXPECT_EQ(read(gradients.of({"loss", static_cast<double>(i)})), i);
  EXPECT_EQ(message_of<Error>([&] {
              gradients.of({"extra", 64});
            }),
            "the loss extra has one more coefficient than the 64 that a step's losses may have: let losses share "
            "coefficients");
  EXPECT_EQ(read(gradients.of({"again", 63})), 63);
}

}  // namespace
}  // namespace witan
