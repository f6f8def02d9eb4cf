#include <gtest/gtest.h>

#include <thread>

#include "witan/kernels/gemm/product_scopes.h"

namespace witan {
namespace {

using kernels::FewRows;

TEST(FewRows, AreOnWithinTheirScopeAndThreadButNotWhereBitsAreTrainings) {
  EXPECT_FALSE(FewRows::on());
  {
    const FewRows off(false);
    EXPECT_FALSE(FewRows::on());
    const FewRows on;
    EXPECT_TRUE(FewRows::on());
    {
      const kernels::RowProducts as_training;
      EXPECT_FALSE(FewRows::on());
    }
    const FewRows within(false);
    EXPECT_TRUE(FewRows::on()) << "what surrounds it asked for them";
    std::thread([] { EXPECT_FALSE(FewRows::on()); }).join();
  }
  EXPECT_FALSE(FewRows::on());
}

}  // namespace
}  // namespace witan
