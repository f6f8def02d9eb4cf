#include "witan/data/parquet/values.h"

#include "data/data_support.h"

namespace witan::parquet {
namespace {

// DELTA_BINARY_PACKED: writers compute differences in the column's width, so their sums also wrap at that width.
TEST(Values, DeltasWrapAtTheWidthOfTheColumn) {
  constexpr int32_t kDelta = 5;
  // Blocks of 128 in 4 parts, 2 values, the first 2^31 - 1; then the minimum difference 1 and widths of 0 bits.
  const std::string page("\x80\x01\x04\x02\xFE\xFF\xFF\xFF\x0F\x02\x00\x00\x00\x00", 14);
  const auto narrow = read_values(kDelta, Physical::int32, page, {});
  EXPECT_EQ(narrow->next().integer, INT32_MAX);
  EXPECT_EQ(narrow->next().integer, INT32_MIN);
  const auto wide = read_values(kDelta, Physical::int64, page, {});
  EXPECT_EQ(wide->next().integer, INT32_MAX);
  EXPECT_EQ(wide->next().integer, int64_t{INT32_MAX} + 1);
}

}  // namespace
}  // namespace witan::parquet
