#include "witan/data/text/quarantine.h"

#include <nlohmann/json.hpp>

#include "data/data_support.h"
#include "witan/base/json.h"

namespace witan {
namespace {

TEST(Quarantine, KeepsRowsWithTheirPlaceAndReason) {
  const TempFolder folder;
  Quarantine quarantine(folder / "new/q.jsonl");
  quarantine.add("a.jsonl", 7, "no key", "row \xff");
  EXPECT_FALSE(fs::exists(quarantine.path()));  // it appears only when complete
  quarantine.close();
  EXPECT_EQ(quarantine.first(), "a.jsonl:7: no key");
  const Json entry = parse_json(read_file(quarantine.path()), "q");
  EXPECT_EQ(entry["source"], "a.jsonl");
  EXPECT_EQ(entry["line"], 7);
  EXPECT_EQ(entry["reason"], "no key");
  EXPECT_EQ(entry["row"], "row \xEF\xBF\xBD");
}

TEST(Quarantine, LimitsRowsBytesAndRowLength) {
  const TempFolder folder;
  Quarantine rows(folder / "rows", {.rows = 3, .bytes = 1 << 20, .row_bytes = 10});
  Quarantine bytes(folder / "bytes", {.rows = 1000, .bytes = 1000, .row_bytes = 100});
  for (int i = 0; i < 100; ++i) {
    rows.add("s", i, "r", std::string(1000, 'x'));
    bytes.add("s", i, "r", std::string(1000, 'x'));
  }
  rows.close();
  bytes.close();
  EXPECT_EQ(rows.count(), 100);
  EXPECT_EQ(rows.kept(), 3);
  EXPECT_LT(fs::file_size(folder / "rows"), 300u);
  EXPECT_EQ(bytes.count(), 100);
  EXPECT_LE(fs::file_size(folder / "bytes"), 1000u);
}

TEST(Quarantine, RemovesAnOldFileIfThereAreNoRows) {
  const TempFolder folder;
  Quarantine quarantine(put(folder / "q.jsonl", "old"));
  quarantine.close();
  EXPECT_FALSE(fs::exists(quarantine.path()));
}

}  // namespace
}  // namespace witan
