#include "witan/tensor/shape.h"

#include <gtest/gtest.h>

#include "support/message_of.h"

namespace witan {
namespace {

using test::message_of;

TEST(Shape, KnowsItsDims) {
  const Shape shape{2, 3, 4};
  EXPECT_EQ(shape.dims(), 3);
  EXPECT_EQ(shape[1], 3);
  EXPECT_EQ(shape.last(), 4);
  EXPECT_EQ(shape.elements(), 24);
  EXPECT_EQ(cat(shape, Shape{}), "[2, 3, 4][]");
  EXPECT_EQ(Shape{}.elements(), 1);
  EXPECT_EQ(Shape{}.last(), 1);
}

TEST(Shape, AsRowsKeepsTheLastDim) {
  EXPECT_EQ((Shape{2, 3, 4}.as_rows()), (std::pair<int64_t, int64_t>{6, 4}));
  EXPECT_EQ((Shape{5}.as_rows()), (std::pair<int64_t, int64_t>{1, 5}));
  EXPECT_EQ((Shape{}.as_rows()), (std::pair<int64_t, int64_t>{1, 1}));
  EXPECT_EQ((Shape{0, 4}.as_rows()), (std::pair<int64_t, int64_t>{0, 4}));
  EXPECT_EQ((Shape{2, 3, 0}.as_rows()), (std::pair<int64_t, int64_t>{6, 0})) << "empty rows count";
}

TEST(Shape, ComparesDimByDim) {
  EXPECT_EQ((Shape{2, 3}), (Shape{2, 3}));
  EXPECT_NE((Shape{2, 3}), (Shape{3, 2}));
  EXPECT_NE((Shape{2}), (Shape{2, 1}));
  EXPECT_EQ((Shape{2, 3}.with(0, 7)), (Shape{7, 3}));
}

TEST(Shape, HasLimits) {
  EXPECT_EQ(message_of<ShapeError>([] { Shape{1, 1, 1, 1, 1, 1}; }), "a tensor has at most 5 dims, got 6");
  EXPECT_EQ(message_of<ShapeError>([] { Shape{2, -1}; }), "a dim cannot be negative: -1");
  EXPECT_EQ(message_of<ShapeError>([] { Shape{1, 1, 1, 1, 1}.append(1); }), "a tensor has at most 5 dims");
}

}  // namespace
}  // namespace witan
