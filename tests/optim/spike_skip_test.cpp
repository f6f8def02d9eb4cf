#include "witan/optim/spike_skip.h"

#include <cmath>
#include <fstream>
#include <limits>

#include "support/rank.h"

namespace witan {
namespace {

using testing::Rank;

struct Seen {
  double loss, norm;
  bool skipped;
};

// tests/golden/optim/make_golden.py recorded the decisions of OLMo-core's SkipStepOptimizer for 8 steps and 2
// deviations.
std::vector<Seen> golden() {
  std::ifstream file(std::string(WITAN_SOURCE_DIR) + "/tests/golden/optim/skip_step.tsv");
  std::string header;
  std::getline(file, header);
  std::vector<Seen> steps;
  int step = 0;
  for (Seen seen{}; file >> step >> seen.loss >> seen.norm >> seen.skipped;) steps.push_back(seen);
  return steps;
}

// The loss is split into two parts, with unrelated values between them.
bool skips(Rank& rank, SpikeSkip& spikes, double loss, double norm) {
  StepState step(rank.stream);
  step.set({0.1}, 1, 1);
  spikes.decide(step, rank.tensor<double>({2}, {norm * norm, 0}),
                rank.tensor<double>({3}, {loss / 4, 1e9, 0.75 * loss}), rank.tensor<int64_t>({2}, {0, 2}));
  return step.skipped();
}

TEST(SpikeSkip, DecidesLikeOlmoCore) {
  Rank rank;
  SpikeSkip spikes(rank.stream, 2, 8);
  const std::vector<Seen> steps = golden();
  ASSERT_EQ(steps.size(), 60u);
  for (size_t i = 0; i < steps.size(); ++i)
    EXPECT_EQ(skips(rank, spikes, steps[i].loss, steps[i].norm), steps[i].skipped) << i + 1;
}

TEST(SpikeSkip, ContinuesFromARestoredHistory) {
  Rank rank;
  const std::vector<Seen> steps = golden();
  for (const size_t saved : {0u, 3u, 8u, 10u, 40u}) {
    SpikeSkip first(rank.stream, 2, 8), second(rank.stream, 2, 8);
    for (size_t i = 0; i < saved; ++i) skips(rank, first, steps[i].loss, steps[i].norm);
    second.restore(first.read());
    for (size_t i = saved; i < steps.size(); ++i) {
      skips(rank, first, steps[i].loss, steps[i].norm);
      EXPECT_EQ(skips(rank, second, steps[i].loss, steps[i].norm), steps[i].skipped) << saved << " " << i + 1;
    }
    EXPECT_EQ(second.read().losses, first.read().losses);
    EXPECT_EQ(second.read().norms, first.read().norms);
    EXPECT_EQ(second.read().steps, 60);
  }
}

TEST(SpikeSkip, ANewWindowKeepsTheLastSteps) {
  Rank rank;
  SpikeSkip wide(rank.stream, 2, 8), narrow(rank.stream, 2, 4);
  for (int i = 1; i <= 10; ++i) skips(rank, wide, i, 10 * i);
  narrow.restore(wide.read());
  EXPECT_EQ(narrow.read().losses, (std::vector<double>{7, 8, 9, 10}));
  EXPECT_EQ(narrow.read().steps, 10);
  SpikeSkip again(rank.stream, 2, 8);
  again.restore(narrow.read());
  EXPECT_EQ(again.read().norms, (std::vector<double>{70, 80, 90, 100}));
  EXPECT_EQ(again.read().steps, 4);
}

// A non-finite value in the window would make its mean non-finite.
TEST(SpikeSkip, SkipsAndForgetsNonFiniteLosses) {
  Rank rank;
  SpikeSkip spikes(rank.stream, 2, 8);
  EXPECT_TRUE(skips(rank, spikes, std::nan(""), 1));
  EXPECT_TRUE(skips(rank, spikes, 1, std::numeric_limits<double>::infinity()));
  EXPECT_EQ(spikes.read().steps, 0);
  for (int i = 0; i < 8; ++i) EXPECT_FALSE(skips(rank, spikes, 1 + 0.1 * (i % 2), 1));
}

TEST(SpikeSkip, KeepsAnEarlierSkip) {
  Rank rank;
  SpikeSkip spikes(rank.stream, 2, 8);
  StepState step(rank.stream);
  step.set({0.1}, 1, 1);
  step.tensor().data<double>()[kernels::step_value::skip] = 1;
  spikes.decide(step, rank.tensor<double>({2}, {1, 0}), rank.tensor<double>({1}, {1}), rank.tensor<int64_t>({1}, {0}));
  EXPECT_TRUE(step.skipped());
}

// Such a step has an incomplete loss.
TEST(SpikeSkip, IgnoresStepsThatWillBeRerun) {
  Rank rank;
  SpikeSkip spikes(rank.stream, 2, 8);
  StepState step(rank.stream);
  step.set({0.1}, 1, 1);
  step.tensor().data<double>()[kernels::step_value::skip] = 1.5;
  spikes.decide(step, rank.tensor<double>({2}, {1, 0}), rank.tensor<double>({1}, {1}), rank.tensor<int64_t>({1}, {0}));
  EXPECT_EQ(spikes.read().steps, 0);
  EXPECT_EQ(step.tensor().data<double>()[kernels::step_value::skip], 1.5);
}

}  // namespace
}  // namespace witan
