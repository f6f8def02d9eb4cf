#include "witan/comm/placement.h"

#include <gtest/gtest.h>

#include "witan/base/error.h"

namespace witan {
namespace {

TEST(Placement, Prints) {
  EXPECT_EQ(cat(Placement::replicate(), ", ", Placement::replicate(Placement::Uses::own), ", ", Placement::shard(2),
                ", ", Placement::partial()),
            "Replicate, Replicate(own uses), Shard(2), Partial");
}

TEST(Placement, GradientsArePlacedByTheirUses) {
  EXPECT_EQ(Placement::shard(1).of_gradient(), Placement::shard(1));
  EXPECT_EQ(Placement::partial().of_gradient(), Placement::replicate());
  EXPECT_EQ(Placement::replicate().of_gradient(), Placement::replicate());
  EXPECT_EQ(Placement::replicate(Placement::Uses::own).of_gradient(), Placement::partial());
}

}  // namespace
}  // namespace witan
