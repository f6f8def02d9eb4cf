#include "witan/kernels/gemm/product_scopes.h"

#include <gtest/gtest.h>

#include <thread>

namespace witan {
namespace {

using kernels::FewRows;
using kernels::RowProducts;

TEST(RowProducts, AreOnOnlyInTheirScopeAndThread) {
  EXPECT_FALSE(RowProducts::on());
  {
    const RowProducts off(false);
    EXPECT_FALSE(RowProducts::on());
    const RowProducts on;
    EXPECT_TRUE(RowProducts::on());
    const RowProducts within(false);
    EXPECT_TRUE(RowProducts::on()) << "the outer scope is still active";
    std::thread([] { EXPECT_FALSE(RowProducts::on()); }).join();
  }
  EXPECT_FALSE(RowProducts::on());
}

TEST(FewRows, AreOnOnlyInTheirScopeAndThread) {
  EXPECT_FALSE(FewRows::on());
  {
    const FewRows off(false);
    EXPECT_FALSE(FewRows::on());
    const FewRows on;
    EXPECT_TRUE(FewRows::on());
    const FewRows within(false);
    EXPECT_TRUE(FewRows::on()) << "the outer scope is still active";
    std::thread([] { EXPECT_FALSE(FewRows::on()); }).join();
  }
  EXPECT_FALSE(FewRows::on());
}

}  // namespace

}  // namespace witan
