#include "witan/data/rows/row_reader.h"

#include "data/data_support.h"
#include "data/rows/row_support.h"
#include "data/tables/golden_tables.h"
#include "witan/base/error.h"

namespace witan {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RowReaderTest : public ::testing::Test {
 protected:
  // Reads the only source.
  void read(int64_t after = 0) {
    rows_.clear();
    positions_.clear();
    bad_.clear();
    RowReader reader(options_);
    reader.read(
        find_sources({folder_ / "in"}).files.at(0), after,
        [&](const Row& row) {
          rows_.emplace_back(row.text);
          positions_.push_back(row.position);
        },
        [&](const UnusableRow& row) { bad_.push_back(cat(row.position, ": ", row.reason)); });
  }
  void write(const std::string& name, const std::string& text) { put(folder_ / "in" / name, text); }

  TempFolder folder_;
  RowOptions options_;
  std::vector<std::string> rows_, bad_;
  std::vector<int64_t> positions_;
};

TEST_F(RowReaderTest, KeepsRowsUnchanged) {
  write("a.jsonl", "\xEF\xBB\xBF{ \"b\" : 1e2 ,\"messages\":[]}\r\n\n  \n{}\n{\"n\": 123456789012345678901234567890}");
  read();
  EXPECT_THAT(rows_, ElementsAre("{ \"b\" : 1e2 ,\"messages\":[]}", "{}", "{\"n\": 123456789012345678901234567890}"));
  EXPECT_THAT(positions_, ElementsAre(1, 4, 5));
  EXPECT_TRUE(bad_.empty());
}

TEST_F(RowReaderTest, RefusesRowsIndividually) {
  options_.row_bytes = 30;
  write("a.jsonl", "[1]\n{\"a\": }\n{\"text\": 3}\n{\"a\": \"012345678901234567890123456789\"}\n");
  read();
  EXPECT_THAT(rows_, ElementsAre("{\"text\": 3}"));
  EXPECT_THAT(bad_, ElementsAre("1: the row is an array, not an object", HasSubstr("2: not valid JSON"),
                                "4: the row is longer than 30 bytes"));
  options_.text_key = "text";
  read();
  EXPECT_TRUE(rows_.empty());
  EXPECT_THAT(bad_[2], HasSubstr("\"text\" is a number, not a string"));
}

TEST_F(RowReaderTest, ConvertsTextToRows) {
  options_.document_bytes = 16;
  write("a.txt", "say \"hi\"\nto\t\\ caf\xC3\xA9\n");
  read();
  EXPECT_THAT(rows_, ElementsAre("{\"text\": \"say \\\"hi\\\"\\n\"}", "{\"text\": \"to\\t\\\\ caf\xC3\xA9\\n\"}"));
  options_.text_key = "body";
  read(1);
  EXPECT_THAT(rows_, ElementsAre("{\"body\": \"to\\t\\\\ caf\xC3\xA9\\n\"}"));
  EXPECT_THAT(positions_, ElementsAre(2));
  EXPECT_FALSE(fs::exists(folder_ / "scratch"));
}

TEST_F(RowReaderTest, ContinuesAfterAPosition) {
  write("a.jsonl.gz", gzip(numbered_rows(0, 9)));
  read(6);
  EXPECT_THAT(positions_, ElementsAre(7, 8, 9));
  EXPECT_EQ(number_in(rows_[0]), 6);
}

TEST_F(RowReaderTest, ErrorsNameTextThatIsNotUtf8) {
  write("a.jsonl", "{\"a\": 1}\n{\"a\": \"caf\xE9\"}\n");
  const std::string message = message_of<DataError>([&] { read(); });
  EXPECT_THAT(message, HasSubstr("a.jsonl:2: byte 10 of the line"));
  EXPECT_THAT(message, HasSubstr("--replace-invalid-utf8"));
  options_.replace_invalid_utf8 = true;
  read();
  EXPECT_THAT(rows_, ElementsAre("{\"a\": 1}", "{\"a\": \"caf\xEF\xBF\xBD\"}"));
}

TEST_F(RowReaderTest, EstimatesSizesOfArchives) {
  const std::string text = numbered_rows(0, 2000);
  write("a.jsonl.gz", gzip(text));
  write("b.jsonl", text);
  EXPECT_EQ(expanded_bytes(find_sources({folder_ / "in"}).files), 2 * text.size());
}

TEST_F(RowReaderTest, RowsOfTablesHaveAllColumns) {
  write("a.parquet", read_file(golden_table("encodings/snappy_delta_v2.parquet")));
  read();
  Json rows = Json::array();
  for (const std::string& row : rows_) rows.push_back(parse_json(row, "row"));
  EXPECT_EQ(rows, expected_whole()) << "including rows without text";
  EXPECT_EQ(rows.size(), 40u);
  EXPECT_EQ(positions_.back(), 40);
  read(38);
  EXPECT_THAT(positions_, ElementsAre(39, 40));
  options_.text_key = "text";
  read();
  const auto nulls = std::ranges::count_if(expected_whole(), [](const Json& row) { return row["text"].is_null(); });
  EXPECT_EQ(bad_.size(), static_cast<size_t>(nulls)) << "with a key, every row is written or unusable";
  EXPECT_EQ(rows_.size() + bad_.size(), 40u);
  options_.text_key = "meta.title";
  read();
  EXPECT_EQ(rows_.size() + bad_.size(), 40u);
  EXPECT_GT(rows_.size(), 10u);
}

TEST_F(RowReaderTest, SamplesOfArchivesAreSingleLineRows) {
  write("a.mds", read_file(golden_table("chat.mds")));
  read();
  EXPECT_GT(rows_.size(), 1u);
  for (const std::string& row : rows_) {
    EXPECT_TRUE(parse_json(row, "row").is_object());
    EXPECT_EQ(row.find('\n'), std::string::npos);
  }
}

TEST_F(RowReaderTest, ErrorsNameTheColumnThatIsNotUtf8) {
  write("a.parquet", read_file(golden_table("other_latin1.parquet")));
  const std::string message = message_of<DataError>([&] { read(); });
  EXPECT_THAT(message, HasSubstr("a.parquet: row 2: the column text is not UTF-8 text (\\xE9)"));
  EXPECT_THAT(message, HasSubstr("--replace-invalid-utf8"));
  options_.replace_invalid_utf8 = true;
  read();
  EXPECT_THAT(rows_[1], HasSubstr("\xEF\xBF\xBD"));
}

TEST_F(RowReaderTest, AKeyWithDotsMakesNestedObjects) {
  EXPECT_EQ(row_with_text("text", "a\"b"), R"({"text": "a\"b"})");
  EXPECT_EQ(row_with_text("meta.page.title", "x"), R"({"meta": {"page": {"title": "x"}}})");
}

TEST_F(RowReaderTest, ReportsColumnsThatAreLeftOut) {
  write("a.parquet", read_file(golden_table("encodings/snappy_delta_v2.parquet")));
  write("b.arrow", read_file(golden_table("stream_none.arrow")));
  write("c.jsonl", "{}\n");
  EXPECT_THAT(
      check_row_sources(find_sources({folder_ / "in"}).files, {}),
      ElementsAre(AllOf(HasSubstr("written without them: day, price, seen ("), HasSubstr("a.parquet and 1 more"))));
  write("d.txt", "caf\xE9");
  EXPECT_THROW(check_row_sources(find_sources({folder_ / "in"}).files, {}), DataError);
  fs::remove(folder_ / "in/d.txt");
  write("e.parquet", "PAR1");
  EXPECT_THROW(check_row_sources(find_sources({folder_ / "in"}).files, {}), CorruptionError);
}

}  // namespace
}  // namespace witan
