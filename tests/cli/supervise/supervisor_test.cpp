#include "witan/cli/supervise/supervisor.h"

#include <gtest/gtest.h>

namespace witan::cli {
namespace {

TEST(VisibleDevices, AreThoseOfTheRanksThatAreLeft) {
  EXPECT_EQ(visible_devices({0, 2, 3}, nullptr), "0,2,3");
  EXPECT_EQ(visible_devices({0, 2}, "4,GPU-8932f937,7"), "4,7");
  EXPECT_EQ(visible_devices({1}, "4,GPU-8932f937,7"), "GPU-8932f937");
}

TEST(SuperviseOptions, AreTheWordsThatSetThem) {
  EXPECT_EQ(SuperviseOptions().words(), "run --");
  EXPECT_EQ((SuperviseOptions{4, 2, 5, 0, 0.5}.words()),
            "run --ranks 4 --min-ranks 2 --max-restarts 5 --restart-window 0 --regrow 0.5 --");
}

}  // namespace
}  // namespace witan::cli
