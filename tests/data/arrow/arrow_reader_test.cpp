#include "witan/data/arrow/arrow_reader.h"

#include <cstring>

#include "data/tables/golden_tables.h"
#include "witan/base/error.h"

namespace witan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::unique_ptr<TableReader> arrow_of(const std::string& bytes, const TableColumns& columns) {
  return read_arrow("a.arrow", tables::open_memory(bytes), columns);
}

// Covers streams and files, uncompressed, zstd and LZ4; texts in dictionaries, with wide offsets, and as views.
TEST(ArrowReader, ReadsTextsOfEveryGoldenFile) {
  const Json expected = expected_column("text");
  ASSERT_EQ(golden_tables(".arrow").size(), 9u);
  for (const fs::path& path : golden_tables(".arrow"))
    EXPECT_EQ(texts_of(*open_arrow(path, {.text = "text"})), expected) << path;
}

TEST(ArrowReader, ReadsTextsInsideStructsAndLists) {
  const Json expected = expected_column("pages");
  for (const fs::path& path : golden_tables(".arrow"))
    EXPECT_EQ(lists_of(*open_arrow(path, {.text = "meta.pages.text"})), expected) << path;
}

TEST(ArrowReader, WritesRowsOfNestedColumns) {
  const Json expected = expected_column("row");
  for (const fs::path& path : golden_tables(".arrow"))
    EXPECT_EQ(rows_of(*open_arrow(path, all_columns())), expected) << path;
}

// A writer that sees no value gives the column the type null.
TEST(ArrowReader, ColumnsOfTheNullTypeHoldNulls) {
  const fs::path path = golden_table("other_nulls.arrow");
  const Json nulls(3, Json());
  EXPECT_EQ(texts_of(*open_arrow(path, {})), nulls);
  EXPECT_EQ(texts_of(*open_arrow(path, {.text = "meta.a"})), nulls);
  EXPECT_EQ(texts_of(*open_arrow(path, {.text = "text.inner"})), nulls) << "its values would be structs";
  EXPECT_EQ(lists_of(*open_arrow(path, {.text = "tags"})), Json::parse(R"([[""], [""], ["", ""]])"));
  const auto whole = open_arrow(path, {.text = "", .whole = true});
  EXPECT_TRUE(whole->left_out().empty());
  EXPECT_EQ(rows_of(*whole), rows_in("other_nulls.jsonl"));
  EXPECT_EQ(rows_of(*open_arrow(path, {.json = {"text", "tags"}})),
            Json::parse(R"([{"tags": []}, {}, {"tags": [null, null]}])"));
}

TEST(ArrowReader, RefusesColumnsByName) {
  const fs::path path = golden_table("stream_zstd.arrow");
  const auto refusal = [&](const TableColumns& columns) {
    return message_of<DataError>([&] { open_arrow(path, columns); });
  };
  EXPECT_THAT(refusal({.text = "txt"}), HasSubstr("stream_zstd.arrow: there is no column txt (did you mean text?)"));
  EXPECT_THAT(refusal({.text = "u64"}), HasSubstr("the column u64 holds integers, not text"));
  EXPECT_THAT(refusal({.json = {"day"}}), HasSubstr("there is no column day"));
}

TEST(ArrowReader, LongTextsAndRowsAreUnusable) {
  const auto reader = open_arrow(golden_table("view.arrow"), {.text = "text", .row_bytes = 16});
  int64_t too_long = 0;
  for (TableCell cell; reader->next(cell);) too_long += cell.reason == "the text is longer than 16 bytes";
  EXPECT_GT(too_long, 5);
  TableColumns columns = all_columns();
  columns.row_bytes = 300;
  const auto rows = open_arrow(golden_table("file_none.arrow"), columns);
  too_long = 0;
  for (TableCell cell; rows->next(cell);) too_long += cell.reason == "the row is longer than 300 bytes";
  EXPECT_GT(too_long, 3);
}

TEST(ArrowReader, ErrorsNameThePlaceOfDamage) {
  const std::string file = read_file(golden_table("file_none.arrow"));
  EXPECT_THAT(message_of<CorruptionError>([&] { arrow_of(file.substr(0, file.size() - 1), {}); }),
              AllOf(HasSubstr("a.arrow: schema: it does not end with a footer and ARROW1"),
                    HasSubstr("copy or download the file again")));
  const std::string stream = read_file(golden_table("stream_none.arrow"));
  EXPECT_THAT(message_of<CorruptionError>([&] { texts_of(*arrow_of(stream.substr(0, stream.size() * 3 / 4), {})); }),
              AllOf(HasSubstr("a.arrow: record batch "), HasSubstr("column text: a message is said to have")));
  EXPECT_THAT(message_of<CorruptionError>([&] { arrow_of("some text, and more", {}); }), HasSubstr("no Arrow file"));
  EXPECT_THAT(message_of<DataError>([&] { arrow_of("FEA1....", {}); }), HasSubstr("Feather of version 1"));
}

// Readable parts of damaged bytes are read, and the rest throws one of our errors; nothing else happens.
void read_damaged_arrow(const std::string& bytes) {
  for (const TableColumns& columns : {TableColumns{.text = "text", .row_bytes = 1 << 12},
                                      TableColumns{.json = {"messages", "meta", "u64"}, .row_bytes = 1 << 12}}) {
    try {
      const auto reader = arrow_of(bytes, columns);
      int64_t rows = 0;
      for (TableCell cell; rows < 1000 && reader->next(cell);) ++rows;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("a.arrow: "));
    }
  }
}

TEST(ArrowReader, SurvivesEveryTruncationAndFlippedBit) {
  const std::vector<fs::path> seeds = seed_tables(".arrow");
  ASSERT_EQ(seeds.size(), 12u);
  for (const fs::path& path : seeds) for_damaged(read_file(path), 1, read_damaged_arrow);
}

TEST(ArrowReader, SurvivesDamageAmongManyBatches) {
  for (const char* name : {"stream_none.arrow", "file_lz4.arrow", "view.arrow", "dictionary.arrow"})
    for_damaged(read_file(golden_table(name)), 13, read_damaged_arrow);
}

}  // namespace
}  // namespace witan
