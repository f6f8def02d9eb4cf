#include "witan/train/state/run_lock.h"

#include <gtest/gtest.h>

#include <fstream>

#include "support/temp_folder.h"

namespace witan {
namespace {

TEST(RunLock, IsHeldByOneAndSeenByOthers) {
  const test::TempFolder folder;
  const fs::path run = folder / "run";
  fs::create_directories(run);
  EXPECT_FALSE(is_training(run));
  EXPECT_FALSE(fs::exists(run / ".lock")) << "looking creates nothing";
  std::optional<RunLock> lock = RunLock::take(run);
  ASSERT_TRUE(lock);
  EXPECT_TRUE(is_training(run));
  EXPECT_FALSE(RunLock::take(run));
  RunLock moved = std::move(*lock);
  lock.reset();
  EXPECT_TRUE(is_training(run)) << "the one that it was moved to holds it";
  { const RunLock last = std::move(moved); }
  EXPECT_FALSE(is_training(run));
  EXPECT_TRUE(RunLock::take(run)) << "the file stays, and can be locked again";
}

TEST(RunLock, OfWhatIsNoRunThereIsNone) {
  const test::TempFolder folder;
  EXPECT_FALSE(is_training(folder / "nowhere"));
  fs::create_directories(folder / "run/.lock");
  EXPECT_FALSE(is_training(folder / "run"));
}

}  // namespace
}  // namespace witan
