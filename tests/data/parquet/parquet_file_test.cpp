#include "witan/data/parquet/parquet_file.h"

#include <cstring>

#include "data/tables/golden_tables.h"
#include "witan/base/error.h"

namespace witan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::unique_ptr<TableReader> parquet_of(const std::string& bytes, const TableColumns& columns) {
  return read_parquet("a.parquet", tables::open_memory(bytes), columns);
}

// Covers every codec, encoding and page version of pyarrow, and DuckDB's file of the same table.
TEST(ParquetReader, ReadsTextsOfEveryGoldenFile) {
  const Json expected = expected_column("text");
  ASSERT_EQ(expected.size(), 40u);
  size_t files = 0;
  for (const fs::path& path : golden_tables(".parquet")) {
    EXPECT_EQ(texts_of(*open_parquet(path, {.text = "text"})), expected) << path;
    ++files;
  }
  EXPECT_GE(files, 5u * 2 * 4 + 5) << "codecs, versions and encodings";
}

TEST(ParquetReader, ReadsTextsInsideStructsAndLists) {
  const Json expected = expected_column("pages");
  for (const fs::path& path : golden_tables(".parquet"))
    EXPECT_EQ(lists_of(*open_parquet(path, {.text = "meta.pages.text"})), expected) << path;
}

TEST(ParquetReader, AssemblesRowsOfNestedColumns) {
  const Json expected = expected_column("row");
  for (const fs::path& path : golden_tables(".parquet"))
    EXPECT_EQ(rows_of(*open_parquet(path, all_columns())), expected) << path;
}

TEST(ParquetReader, ReadsAnEmptyTable) {
  TableCell cell;
  EXPECT_FALSE(open_parquet(golden_table("empty.parquet"), {})->next(cell));
  EXPECT_FALSE(open_parquet(golden_table("empty.parquet"), all_columns())->next(cell));
}

TEST(ParquetReader, ReportsProgress) {
  const fs::path path = golden_table("encodings/zstd_plain_v1.parquet");
  const auto reader = open_parquet(path, {});
  TableCell cell;
  uint64_t last = 0;
  while (reader->next(cell)) {
    EXPECT_GE(reader->offset(), last);
    last = reader->offset();
  }
  EXPECT_GT(last, fs::file_size(path) / 4);
  EXPECT_EQ(reader->offset(), fs::file_size(path));
}

// Written by fastparquet; the expected values come from pyarrow.
TEST(ParquetReader, ReadsFilesOfFastparquet) {
  const fs::path path = golden_table("other_fastparquet.parquet");
  const Json expected = rows_in("other_fastparquet.jsonl");
  EXPECT_EQ(rows_of(*open_parquet(path, {.text = "", .whole = true})), expected);
  Json texts = Json::array();
  for (const Json& row : expected) texts.push_back(row["text"]);
  EXPECT_EQ(texts_of(*open_parquet(path, {})), texts);
}

// A writer that sees no value gives the column the type null.
TEST(ParquetReader, ColumnsOfTheNullTypeHoldNulls) {
  const fs::path path = golden_table("other_nulls.parquet");
  const Json nulls(3, Json());
  EXPECT_EQ(texts_of(*open_parquet(path, {})), nulls);
  EXPECT_EQ(texts_of(*open_parquet(path, {.text = "meta.a"})), nulls);
  EXPECT_EQ(texts_of(*open_parquet(path, {.text = "text.inner"})), nulls) << "its values would be structs";
  EXPECT_EQ(lists_of(*open_parquet(path, {.text = "tags"})), Json::parse(R"([[""], [""], ["", ""]])"));
  const auto whole = open_parquet(path, {.text = "", .whole = true});
  EXPECT_TRUE(whole->left_out().empty());
  EXPECT_EQ(rows_of(*whole), rows_in("other_nulls.jsonl"));
  EXPECT_EQ(rows_of(*open_parquet(path, {.json = {"text", "tags"}})),
            Json::parse(R"([{"tags": []}, {}, {"tags": [null, null]}])"));
}

TEST(ParquetReader, RefusesColumnsByName) {
  const fs::path path = golden_table("encodings/zstd_plain_v1.parquet");
  const auto refusal = [&](const TableColumns& columns) {
    return message_of<DataError>([&] { open_parquet(path, columns); });
  };
  EXPECT_THAT(refusal({.text = "txt"}), AllOf(HasSubstr("zstd_plain_v1.parquet: there is no column txt (did you mean "
                                                        "text?); it has id, text, meta, messages"),
                                              HasSubstr("--json-key")));
  EXPECT_THAT(refusal({.text = "i64"}), HasSubstr("the column i64 holds integers, not text"));
  EXPECT_THAT(refusal({.text = "messages"}), HasSubstr("name a field of them, COLUMN.FIELD"));
  EXPECT_THAT(refusal({.text = "meta.pages.txt"}), HasSubstr("there is no column meta.pages.txt"));
  EXPECT_THAT(refusal({.text = ""}), HasSubstr("there is no column"));
  EXPECT_THAT(refusal({.json = {"chat", "tools"}}), HasSubstr("there is no column chat"));
  EXPECT_THAT(refusal({.json = {"day"}}), HasSubstr("there is no column day")) << "JSON has no dates";
}

TEST(ParquetReader, RefusesUnsupportedCodecsBeforeAnyRow) {
  EXPECT_THAT(message_of<DataError>([] { open_parquet(golden_table("refused_brotli.parquet"), {}); }),
              AllOf(HasSubstr("row group 0, column text: pages compressed with brotli (codec 4) are not read"),
                    HasSubstr("write the file again with zstd")));
}

TEST(ParquetReader, LongTextsAndRowsAreUnusable) {
  const fs::path path = golden_table("encodings/none_delta_v2.parquet");
  const Json expected = expected_column("text");
  const auto reader = open_parquet(path, {.text = "text", .row_bytes = 16});
  int64_t too_long = 0;
  for (TableCell cell; reader->next(cell);) {
    const Json& text = expected[static_cast<size_t>(cell.row - 1)];
    const bool is_long = text.is_string() && text.get<std::string>().size() > 16;
    EXPECT_EQ(cell.reason, is_long ? "the text is longer than 16 bytes" : text.is_null() ? "the text is null" : "");
    too_long += is_long;
  }
  EXPECT_GT(too_long, 5);
  TableColumns columns = all_columns();
  columns.row_bytes = 300;
  const auto rows = open_parquet(path, columns);
  int64_t short_rows = 0, long_rows = 0;
  for (TableCell cell; rows->next(cell);) {
    ++(cell.reason.empty() ? short_rows : long_rows);
    if (cell.reason.empty()) {
      EXPECT_EQ(parse_json(cell.text, "row"), expected_rows()[static_cast<size_t>(cell.row - 1)]["row"]);
    } else {
      EXPECT_EQ(cell.reason, "the row is longer than 300 bytes");
    }
  }
  EXPECT_GT(short_rows, 3);
  EXPECT_GT(long_rows, 3);
}

TEST(ParquetReader, ErrorsNameThePlaceOfDamage) {
  std::string bytes = read_file(golden_table("encodings/none_plain_v1.parquet"));
  const size_t at = bytes.find("router");
  ASSERT_NE(at, std::string::npos);
  bytes[at] ^= 1;
  EXPECT_THAT(message_of<CorruptionError>([&] { texts_of(*parquet_of(bytes, {.text = "text"})); }),
              AllOf(HasSubstr("a.parquet: row group 0, column text, page 0: its checksum is not that of its bytes"),
                    HasSubstr("copy or download the file again")));
  EXPECT_THAT(message_of<CorruptionError>([&] { parquet_of(bytes.substr(0, bytes.size() - 1), {}); }),
              HasSubstr("a.parquet: footer: it does not end with PAR1"));
  EXPECT_THAT(message_of<CorruptionError>([&] { parquet_of("PAR1", {}); }), HasSubstr("too few for a Parquet file"));
}

TEST(ParquetReader, RefusesEncryptedFiles) {
  const std::string bytes = "PARE" + std::string(8, '\0') + "PARE";
  EXPECT_THAT(message_of<DataError>([&] { parquet_of(bytes, {}); }), HasSubstr("the file is encrypted"));
}

// Readable parts of damaged bytes are read, and the rest throws one of our errors; nothing else happens.
void read_damaged_parquet(const std::string& bytes) {
  for (const TableColumns& columns : {TableColumns{.text = "text", .row_bytes = 1 << 12},
                                      TableColumns{.json = {"messages", "meta", "u64", "n"}, .row_bytes = 1 << 12}}) {
    try {
      const auto reader = parquet_of(bytes, columns);
      int64_t rows = 0;
      for (TableCell cell; rows < 1000 && reader->next(cell);) ++rows;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("a.parquet: "));
    }
  }
}

// The file truncated at `at` with its footer appended, so that the missing bytes are in the columns.
void read_without_the_end_of_columns(const std::string& whole, size_t step) {
  uint32_t footer = 0;
  std::memcpy(&footer, whole.data() + whole.size() - 8, sizeof footer);
  const std::string tail = whole.substr(whole.size() - 8 - footer);
  for (size_t at = 4; at + tail.size() < whole.size(); at += step) read_damaged_parquet(whole.substr(0, at) + tail);
}

TEST(ParquetReader, SurvivesEveryTruncationAndFlippedBit) {
  const std::vector<fs::path> seeds = seed_tables(".parquet");
  ASSERT_EQ(seeds.size(), 18u);
  for (const fs::path& path : seeds) {
    const std::string whole = read_file(path);
    for_damaged(whole, 1, read_damaged_parquet);
    read_without_the_end_of_columns(whole, 1);
  }
}

TEST(ParquetReader, SurvivesDamageAmongManyPages) {
  for (const char* name : {"encodings/none_delta_v2.parquet", "encodings/snappy_dictionary_v1.parquet",
                           "encodings/zstd_delta_length_v2.parquet"}) {
    const std::string whole = read_file(golden_table(name));
    for_damaged(whole, 13, read_damaged_parquet);
    read_without_the_end_of_columns(whole, 97);
  }
}

}  // namespace
}  // namespace witan
