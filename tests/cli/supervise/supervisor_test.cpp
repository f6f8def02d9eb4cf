#include "witan/cli/supervise/supervisor.h"

#include <gtest/gtest.h>

namespace witan::cli {
namespace {

TEST(VisibleDevices, AreThoseOfTheRanksThatAreLeft) {
  EXPECT_EQ(visible_devices({0, 2, 3}, nullptr), "0,2,3");
  EXPECT_EQ(visible_devices({0, 2}, "4,GPU-8932f937,7"), "4,7");
  EXPECT_EQ(visible_devices({1}, "4,GPU-8932f937,7"), "GPU-8932f937");
}

}  // namespace
}  // namespace witan::cli
