#include "witan/cli/runs/table.h"

#include <gtest/gtest.h>

namespace witan::cli {
namespace {

TEST(TextTable, ColumnsAreAsWideAsTheirWidestCell) {
  EXPECT_EQ(text_table({{"run", "steps"}, {"first-light", "7"}}, {Align::left, Align::right}),
            "run          steps\n"
            "first-light      7\n");
  EXPECT_EQ(text_table({{"ü", "x"}, {"ab", "\x1b[31my\x1b[0m"}, {"c"}}, {}), "ü   x\nab  \x1b[31my\x1b[0m\nc\n")
      << "letters and colours";
  EXPECT_EQ(text_table({}, {}), "");
}

}  // namespace
}  // namespace witan::cli
