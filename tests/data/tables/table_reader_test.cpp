#include "witan/data/tables/table_reader.h"

#include "data/data_support.h"
#include "data/tables/golden_tables.h"
#include "witan/base/error.h"
#include "witan/data/corpus/sources.h"

namespace witan::tables {
namespace {

using ::testing::HasSubstr;

// Cells as a file would contain them.
class Cells final : public TableReader {
 public:
  explicit Cells(std::vector<std::pair<int64_t, std::string>> cells) : cells_(std::move(cells)) {}

  bool next(TableCell& cell) override {
    text_.assign(100, '?');  // earlier results are no longer valid
    if (at_ == cells_.size()) return false;
    const auto& [row, text] = cells_[at_++];
    text_ = text;
    cell = {text_, row, text == "null" ? "the text is null" : ""};
    return true;
  }
  uint64_t offset() const override { return at_; }

 private:
  std::vector<std::pair<int64_t, std::string>> cells_;
  size_t at_ = 0;
  std::string text_;
};

std::vector<std::string> aligned(std::vector<std::vector<std::pair<int64_t, std::string>>> columns) {
  std::vector<AlignedColumn> readers;
  for (auto& column : columns)
    readers.push_back({std::string(1, static_cast<char>('a' + readers.size())), std::make_unique<Cells>(column)});
  const auto rows = align_rows("t.parquet", std::move(readers));
  std::vector<std::string> found;
  for (TableCell cell; rows->next(cell);)
    found.push_back(cat(cell.row, " ", cell.reason.empty() ? std::string(cell.text) : "! " + cell.reason));
  return found;
}

TEST(AlignedRows, ARowMissingInOneColumnIsMissingInAll) {
  const std::vector<std::vector<std::pair<int64_t, std::string>>> columns = {
      {{1, "one"}, {2, "two"}, {3, "null"}, {4, ""}}, {{1, "I"}, {2, "null"}, {3, "III"}, {4, "IV"}}};
  EXPECT_EQ(aligned(columns), (std::vector<std::string>{"1 one", "2 ! column b: the text is null",
                                                        "3 ! column a: the text is null", "4 "}));
  EXPECT_EQ(aligned({columns[1], columns[0]}), (std::vector<std::string>{"1 I", "2 ! column a: the text is null",
                                                                         "3 ! column b: the text is null", "4 IV"}));
}

TEST(AlignedRows, ListsMustHaveEqualLengths) {
  EXPECT_EQ(aligned({{{1, "x"}, {1, "y"}, {2, "z"}, {3, "u"}, {3, "v"}}, {{1, "X"}, {1, "Y"}, {2, "Z"}, {3, "U"}}}),
            (std::vector<std::string>{"1 x", "1 y", "2 z", "3 ! the row has 2 texts in the column a and 1 in b"}));
}

TEST(AlignedRows, AShorterColumnIsDamage) {
  EXPECT_THAT(message_of<CorruptionError>([] {
                aligned({{{1, "x"}, {2, "y"}}, {{1, "X"}}});
              }),
              HasSubstr("t.parquet: column b: it has another number of rows than the column a"));
  EXPECT_THAT(message_of<CorruptionError>([] { aligned({{{1, "x"}}, {{1, "X"}, {2, "Y"}}}); }), HasSubstr("column b"));
}

// One table gives the same rows with both texts in every file format.
TEST(AlignedRows, AreTheSameInEveryFormat) {
  std::vector<std::string> expected;
  int64_t number = 0;
  for (const Json& line : expected_rows()) {
    ++number;
    const Json& row = line["row"];
    if (row.contains("text") && row.contains("meta") && row["meta"].contains("title"))
      expected.push_back(cat(number, " ", row["text"].get<std::string>()));
  }
  EXPECT_GT(expected.size(), 10u);
  for (const char* suffix : {".parquet", ".arrow"})
    for (const fs::path& path : golden_tables(suffix)) {
      const SourceKind kind = path.extension() == ".arrow" ? SourceKind::arrow : SourceKind::parquet;
      std::vector<AlignedColumn> columns;
      for (const char* name : {"text", "meta.title"}) {
        TableColumns one;
        one.text = name;
        columns.push_back({name, open_table(path, kind, one)});
      }
      const auto rows = align_rows(path.string(), std::move(columns));
      std::vector<std::string> found;
      for (TableCell cell; rows->next(cell);)
        if (cell.reason.empty()) found.push_back(cat(cell.row, " ", cell.text));
      EXPECT_EQ(found, expected) << path;
    }
}

}  // namespace
}  // namespace witan::tables
