#include "witan/autograd/offload_store.h"

#include <gtest/gtest.h>

#include <numeric>

#include "support/rank.h"
#include "witan/base/error.h"

namespace witan {
namespace {

constexpr int64_t kElements = 256, kBytes = kElements * 4;
const int64_t kRoom = OffloadStore::room_for(kBytes);

class OffloadStoreTest : public ::testing::Test {
 protected:
  OffloadStoreTest() : store_(rank_.stream) { store_.reserve(2 * kRoom); }

  Tensor value(float first) {
    const Tensor made = rank_.stream.empty({kElements}, DType::f32);
    std::iota(made.span<float>().begin(), made.span<float>().end(), first);
    return made;
  }
  int64_t on_device() { return rank_.stream.arena().live(MemoryTag::activations); }
  static void expect_value(const Tensor& found, float first) {
    EXPECT_EQ(found.span<float>().front(), first);
    EXPECT_EQ(found.span<float>().back(), first + kElements - 1);
  }

  testing::Rank rank_{1};
  OffloadStore store_;
};

TEST_F(OffloadStoreTest, ReturnsValuesOneAhead) {
  store_.begin_pass();
  const auto first = store_.keep(value(1), true);
  EXPECT_EQ(on_device(), kBytes) << "it leaves while its segment runs";
  const auto second = store_.keep(value(2), true);
  EXPECT_EQ(on_device(), kBytes) << "the first has left";
  const auto last = store_.keep(value(3), false);
  EXPECT_EQ(on_device(), kBytes) << "the last stays";
  store_.end_pass();
  EXPECT_EQ(store_.high_water(), 2 * kRoom);

  expect_value(last->take(), 3);
  EXPECT_EQ(on_device(), kBytes) << "the second is on its way";
  expect_value(second->take(), 2);
  EXPECT_EQ(on_device(), kBytes) << "the first is";
  expect_value(first->take(), 1);
  EXPECT_EQ(on_device(), 0);
}

TEST_F(OffloadStoreTest, GivesBackTheMemoryOfTheLastValueAtTheEndOfThePass) {
  store_.begin_pass();
  const auto kept = store_.keep(value(1), true);
  store_.end_pass();
  EXPECT_EQ(on_device(), 0);
  expect_value(kept->take(), 1);
}

// As in a pipeline, whose passes overlap: a pass fetches its own values alone.
TEST_F(OffloadStoreTest, KeepsPassesApart) {
  store_.begin_pass();
  const auto one = store_.keep(value(1), true);
  store_.end_pass();
  store_.begin_pass();
  const auto two = store_.keep(value(2), true);
  store_.end_pass();
  expect_value(two->take(), 2);
  EXPECT_EQ(on_device(), 0);
  expect_value(one->take(), 1);
}

TEST_F(OffloadStoreTest, ForgetsValuesThatNoBackwardTakes) {
  for (int pass = 0; pass < 3; ++pass) {  // the host has room for two
    store_.begin_pass();
    auto first = store_.keep(value(1), true);
    const auto second = store_.keep(value(2), true);
    store_.end_pass();
    if (pass == 1) first.reset();
    expect_value(second->take(), 2);
  }
  EXPECT_EQ(on_device(), 0);
}

TEST_F(OffloadStoreTest, NeedsRoomOnTheHost) {
  store_.begin_pass();
  const auto first = store_.keep(value(1), true), second = store_.keep(value(2), true);
  EXPECT_THROW(store_.keep(value(3), true), OutOfMemoryError);
}

}  // namespace
}  // namespace witan
