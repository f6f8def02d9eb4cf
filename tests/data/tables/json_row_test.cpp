#include "witan/data/tables/json_row.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "data/data_support.h"
#include "witan/base/json.h"

namespace witan::tables {
namespace {

TEST(JsonRow, WritesValuesWithCommas) {
  JsonRow row(1000);
  row.begin_object();
  row.key("a");
  row.begin_list();
  row.integer(-1);
  row.natural(std::numeric_limits<uint64_t>::max());
  row.null();
  row.begin_object();
  row.end_object();
  row.end_list();
  row.key("b");
  row.boolean(true);
  row.key("c");
  row.real(2);
  row.key("d");
  row.real(0.1);
  row.key("e");
  row.real(std::numeric_limits<double>::infinity());
  row.end_object();
  EXPECT_EQ(row.line(), R"({"a":[-1,18446744073709551615,null,{}],"b":true,"c":2.0,"d":0.1,"e":null})");
  row.clear();
  row.text("again");
  EXPECT_EQ(row.line(), "\"again\"");
}

TEST(JsonRow, EscapesSpecialBytes) {
  std::string all;
  for (int byte = 0; byte < 128; ++byte) all += static_cast<char>(byte);
  all += "é🙂";
  JsonRow row(1000);
  row.text(all);
  EXPECT_EQ(parse_json(row.line(), "row").get<std::string>(), all);
}

TEST(JsonRow, StopsAtTheSizeLimit) {
  JsonRow row(100);
  row.begin_list();
  for (int i = 0; i < 1'000'000; ++i) row.text("ten bytes.");
  row.end_list();
  EXPECT_TRUE(row.too_long());
  EXPECT_LT(row.line().size(), 130u);
  row.clear();
  EXPECT_FALSE(row.too_long());
  row.text(std::string(101, 'a'));
  EXPECT_TRUE(row.too_long());
}

}  // namespace
}  // namespace witan::tables
