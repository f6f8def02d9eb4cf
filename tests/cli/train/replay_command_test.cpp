// witan replay computes a failed step again from the files of the run.
#include <gmock/gmock.h>

#include "cli/small_runs.h"

namespace witan::test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

class Replay : public SmallRuns {};

// A learning rate makes training on two ranks diverge; one rank reads the folder.
TEST_F(Replay, FindsTheFirstNonFiniteValue) {
  const Said said = run({"train",
                         "--run",
                         "off",
                         "--data",
                         folder_ / "text.txt",
                         "--device",
                         "cpu",
                         "--seq-length",
                         "16",
                         "--micro-batch-size",
                         "1",
                         "--global-batch-size",
                         "4",
                         "--train-iters",
                         "8",
                         "--sample-tokens",
                         "0",
                         "--held-out-fraction",
                         "0.2",
                         "--tokenizer-vocab-size",
                         "300",
                         "--num-layers",
                         "2",
                         "--hidden-size",
                         "32",
                         "--ffn-hidden-size",
                         "32",
                         "--num-experts",
                         "4",
                         "--lr",
                         "1e30",
                         "--min-lr",
                         "1e30",
                         "--lr-warmup-iters",
                         "0",
                         "--on-nan",
                         "stop",
                         "--mesh",
                         "replicate=2"});
  EXPECT_EQ(said.code, 6) << said.err;
  EXPECT_THAT(said.err, HasSubstr("on_nan = stop ended the run before its update"));
  fs::path anomaly;
  for (const auto& entry : fs::directory_iterator(folder_ / "runs/off/anomalies")) anomaly = entry.path();
  EXPECT_THAT(said.err, HasSubstr("`witan replay " + anomaly.string() + "`"));

  const Said again = run({"replay", anomaly.string()}, false);
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("(nan), 4 micro-batches\n"));
  EXPECT_THAT(again.out, ContainsRegex("\nfirst        (forward|backward) of micro-batch 0: the (output|gradient) "));
  EXPECT_THAT(again.out, HasSubstr("\nagain        loss "));
}

TEST_F(Replay, RefusesOtherFolders) {
  train_small("fine", {});
  const Said said = run({"replay", folder_ / "runs/fine/checkpoints/step-2"}, false);
  EXPECT_EQ(said.code, 5);
  EXPECT_THAT(said.err, HasSubstr("is a checkpoint, and not the folder of an anomaly"));
  const Said nothing = run({"replay", folder_ / "nothing"}, false);
  EXPECT_EQ(nothing.code, 5);
  EXPECT_THAT(nothing.err, HasSubstr("nothing does not exist: give the folder of a step that went wrong"));
}

}  // namespace
}  // namespace witan::test
