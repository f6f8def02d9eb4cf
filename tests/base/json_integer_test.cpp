#include "witan/base/json_integer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace witan {
namespace {

TEST(JsonInteger, IsWholeAndInRange) {
  EXPECT_EQ(json_integer(Json(7)), 7);
  EXPECT_EQ(json_integer(Json(-7), -7, 0), -7);
  EXPECT_EQ(json_integer(parse_json("9223372036854775807", "a"), 0, INT64_MAX), INT64_MAX);
  for (const char* wrong : {"-1", "8", "9223372036854775808", "1.0", "1e300", "\"7\"", "null", "[7]", "true"})
    EXPECT_THROW(json_integer(parse_json(wrong, "a"), 0, 7), Json::out_of_range) << wrong;
}

}  // namespace
}  // namespace witan
