// witan runs snapshot.

#include "cli/runs/runs_support.h"
#include "witan/train/state/run_folder.h"

namespace witan::test {
namespace {

namespace fs = std::filesystem;

class SnapshotTest : public MadeUpRuns {};

TEST_F(SnapshotTest, AsksARunThatTrains) {
  make("a", 3);
  const Said idle = runs({"snapshot", "a"}, "");
  EXPECT_EQ(idle.code, 2);
  EXPECT_TRUE(contains(idle.err, "the run a is not training, and has no memory to show: ask while it trains"))
      << idle.err;
  EXPECT_FALSE(fs::exists(runs_ / "a/memory"));
  const auto lock = RunLock::take(runs_ / "a");
  const Said asked = runs({"snapshot", "a"}, "");
  EXPECT_EQ(asked.code, 0) << asked.err;
  EXPECT_TRUE(contains(asked.err, "a/memory/step-S-rank-N.json in its next step")) << asked.err;
  const std::string first = read_text(runs_ / "a/memory/request");
  EXPECT_FALSE(first.empty());
  runs({"snapshot", "a"}, "");
  EXPECT_NE(read_text(runs_ / "a/memory/request"), first) << "each is another request";
  EXPECT_EQ(runs({"snapshot", "nowhere"}, "").code, 2);
}

}  // namespace
}  // namespace witan::test
