#include "witan/data/rows/row_job.h"

#include "data/rows/row_support.h"
#include "witan/data/text/quarantine.h"

namespace witan {
namespace {

using ::testing::HasSubstr;

TEST(UnusableRows, AreListedByPlaceWhoeverFoundThemFirst) {
  const TempFolder folder;
  const std::vector<Source> sources = {{folder / "a.jsonl"}, {folder / "b.jsonl"}};
  const int64_t most = QuarantineLimits{}.rows;
  UnusableRows later, earlier, all;
  for (int64_t line = 1; line <= most; ++line) {
    later.add(1, {line, "bad", "later"});
    earlier.add(0, {line, "bad", "earlier"});
  }
  all.restore(later.take());
  all.restore(earlier.take());
  EXPECT_EQ(all.count(), 2 * most);
  RowOptions options;
  options.bad_row_share = 0.5;
  EXPECT_EQ(all.judge(folder / "list.jsonl", sources, 4 * most, options), folder / "list.jsonl");
  const std::vector<std::string> lines = lines_in(folder / "list.jsonl");
  ASSERT_EQ(static_cast<int64_t>(lines.size()), most) << "the first ones";
  EXPECT_THAT(lines.front(), HasSubstr("earlier"));
  EXPECT_THAT(lines.back(), HasSubstr("earlier"));
}

TEST(UnusableRows, AreCountedOnceInAJournal) {
  UnusableRows rows;
  rows.add(0, {1, "bad", "x"});
  EXPECT_EQ(rows.take().at("count"), 1);
  rows.add(0, {2, "bad", "y"});
  EXPECT_EQ(rows.take().at("count"), 1);
}

TEST(UnusableRows, AreNotAllThatThereIs) {
  const TempFolder folder;
  UnusableRows rows;
  rows.add(0, {1, "bad", "x"});
  RowOptions options;
  options.bad_row_share = 1;
  EXPECT_THAT(message_of<DataError>([&] { rows.judge(folder / "list", {{folder / "a.jsonl"}}, 1, options); }),
              HasSubstr("1 of 1 rows are unusable"));
}

}  // namespace
}  // namespace witan
