#include "witan/planner/meta_rank.h"

#include <gtest/gtest.h>

#include "train/run/run_support.h"
#include "witan/train/record/times.h"

namespace witan {
namespace {

constexpr int64_t kLevel = 2;  // the least has no times of an interval

// Bytes that a rank of two sends in what it logs.
double logged(int64_t train_iters) {
  RunConfig config = testing::small_config();
  config.parallel = {2, 1, 1};
  config.log.log_format = "megatron";
  config.log.timing_log_level = kLevel;
  config.train.train_iters = train_iters;
  config.train.log_interval = 10;
  MetaRank meta(resolve(config, {}), layout_of(config), 0);
  meta.reset_costs();
  meta.log();
  double bytes = 0;
  for (const auto& [group, operations] : meta.sent())
    for (const auto& [operation, sent] : operations) bytes += sent;
  return bytes;
}

// Megatron-LM's log has times of the setup, two of them, and then of every interval that a run completes.
TEST(MetaRank, LogsIntervalsThatARunCompletes) {
  const double setup = 2 * sizeof(double);
  const double interval = static_cast<double>(named({}, kLevel).size() * sizeof(double));
  ASSERT_GT(interval, 0);
  EXPECT_EQ(logged(9), setup);
  EXPECT_EQ(logged(10), setup + interval);
  EXPECT_EQ(logged(11), setup + interval);
}

}  // namespace
}  // namespace witan
