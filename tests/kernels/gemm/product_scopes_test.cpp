#include <gtest/gtest.h>

#include <thread>

#include "witan/kernels/gemm/product_scopes.h"

namespace witan {
namespace {

using kernels::RowProducts;

TEST(RowProducts, AreOnWithinTheirScopeAndThread) {
  EXPECT_FALSE(RowProducts::on());
  {
    const RowProducts off(false);
    EXPECT_FALSE(RowProducts::on());
    const RowProducts on;
    EXPECT_TRUE(RowProducts::on());
    const RowProducts within(false);
    EXPECT_TRUE(RowProducts::on()) << "what surrounds it asked for them";
    std::thread([] { EXPECT_FALSE(RowProducts::on()); }).join();
  }
  EXPECT_FALSE(RowProducts::on());
}

}  // namespace
}  // namespace witan
