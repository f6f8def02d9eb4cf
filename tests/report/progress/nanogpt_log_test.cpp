#include "witan/report/progress/nanogpt_log.h"

#include <gtest/gtest.h>

namespace witan::nanogpt_log {
namespace {

// In the formats of modded-nanogpt's train_gpt.py: {:.4f}, {:.0f}ms, {:.2f}ms.
TEST(NanogptLog, HasTheLinesOfTheProgram) {
  const Progress at{50, 1750, 7.0119};
  EXPECT_EQ(format_step(at), "step:50/1750 train_time:7012ms step_avg:140.24ms");
  EXPECT_EQ(format_validation(at, 7.62094, {}), "step:50/1750 val_loss:7.6209 train_time:7012ms step_avg:140.24ms");
  EXPECT_EQ(format_validation(at, 7.62094, 1.02338),
            "step:50/1750 val_loss:7.6209 val_balance_loss:1.0234 step_time:140.24ms");
  EXPECT_EQ(format_validation({0, 1750, 0}, 10.825, {}), "step:0/1750 val_loss:10.8250 train_time:0ms step_avg:0.00ms");
}

TEST(NanogptLog, ChecksAreThoseOfTutelsExample) {
  EXPECT_EQ(format_check("weights-init"),
            "[DEBUG(weights-init)] Validating all parameters are in proper states..\n"
            "[DEBUG(weights-init)] Validation passed. ✅");
}

}  // namespace
}  // namespace witan::nanogpt_log
