#include "witan/serve/body_budget.h"

#include <gtest/gtest.h>

#include <optional>

#include "support/process_state.h"

namespace witan::serve {
namespace {

TEST(BodyBudget, CanBeUsedCompletelyAndIsReleased) {
  BodyBudget budget(100);
  std::optional<BodyBudget::Share> first(budget), second(budget);
  EXPECT_TRUE(first->grow_to(60));
  EXPECT_TRUE(first->grow_to(50)) << "a share does not shrink";
  EXPECT_EQ(budget.used(), 60);
  EXPECT_FALSE(second->grow_to(41));
  EXPECT_EQ(budget.used(), 60) << "a refused body takes nothing";
  EXPECT_TRUE(second->grow_to(40));
  EXPECT_EQ(budget.used(), 100);
  first.reset();
  EXPECT_EQ(budget.used(), 40);
  EXPECT_TRUE(second->grow_to(100)) << "60 more than are left";
  second.reset();
  EXPECT_EQ(budget.used(), 0);
}

// After many large bodies, memory cached by the C allocator is returned to the system.
TEST(BodyBudget, ReturnsMemoryOfManyBodies) {
  const test::FreedMemory freed;
  if (!freed.is_kept()) GTEST_SKIP() << "the allocator caches nothing";
  BodyBudget budget(int64_t{1} << 30);
  const auto receive = [&](int64_t bytes) {
    BodyBudget::Share share(budget);
    ASSERT_TRUE(share.grow_to(bytes));
  };
  receive(1 << 20);
  EXPECT_TRUE(freed.is_kept()) << "small bodies do not trigger it";
  receive(32 << 20);
  EXPECT_FALSE(freed.is_kept());
}

}  // namespace
}  // namespace witan::serve
