// Tables as sources of a corpus, beside text and JSON Lines.
#include "witan/data/corpus/open_table.h"

#include "data/tables/golden_tables.h"
#include "witan/base/error.h"
#include "witan/data/corpus/corpus.h"

namespace witan {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CorpusOfTables : public ::testing::Test {
 protected:
  std::vector<std::string> read() {
    std::vector<std::string> documents;
    const auto sources = find_sources({folder_.path()}).files;
    check_encoding(sources, options_);
    uint64_t last = 0;
    statistics_ = read_corpus(sources, options_, [&](const Document& document) {
      documents.emplace_back(document.text);
      EXPECT_GE(document.source_bytes, last);
      last = document.source_bytes;
    });
    uint64_t total = 0;
    for (const Source& source : sources) total += source.bytes;
    EXPECT_LE(last, total);
    return documents;
  }
  void take(const std::string& name, const std::string& as = "") {
    fs::copy_file(golden_table(name), folder_ / (as.empty() ? name : as));
  }

  TempFolder folder_, elsewhere_;
  CorpusOptions options_;
  CorpusStatistics statistics_;
};

// Nulls are unusable rows, as they are in JSON Lines.
TEST_F(CorpusOfTables, ReadsTextsAndCountsNulls) {
  take("zstd_dictionary_v2.parquet", "b.parquet");
  take("stream_lz4.arrow", "c.arrow");
  put(folder_ / "a.jsonl", "{\"text\": \"a row\"}\n");
  options_.bad_row_share = 0.5;
  options_.quarantine = elsewhere_ / "bad.jsonl";
  std::vector<std::string> expected = {"a row"};
  int64_t nulls = 0, empty = 0;
  for (int file = 0; file < 2; ++file)
    for (const Json& text : expected_column("text")) {
      nulls += text.is_null();
      empty += text == "";
      if (text.is_string() && text != "") expected.push_back(text);
    }
  EXPECT_EQ(read(), expected);
  EXPECT_EQ(statistics_.rows, 1 + 2 * 40);
  EXPECT_EQ(statistics_.bad_rows, nulls);
  EXPECT_EQ(statistics_.empty_documents, empty);
  EXPECT_GT(nulls, 0);
  EXPECT_THAT(read_file(options_.quarantine), AllOf(HasSubstr("b.parquet"), HasSubstr("the text is null")));
  options_.bad_row_share = 0.01;
  EXPECT_THAT(message_of<DataError>([&] { read(); }), AllOf(HasSubstr("b.parquet:"), HasSubstr("the text is null")));
}

TEST_F(CorpusOfTables, EveryTextOfAListIsADocument) {
  take("pages.parquet");
  options_.json_key = "meta.pages.text";
  std::vector<std::string> expected;
  for (const Json& row : expected_column("pages"))
    for (const Json& text : row)
      if (text != "") expected.push_back(text);
  EXPECT_EQ(read(), expected);
  EXPECT_EQ(statistics_.rows, 40);
}

TEST_F(CorpusOfTables, RefusesATextOfAnotherEncodingUnlessItIsReplaced) {
  take("other_latin1.parquet");
  EXPECT_THAT(message_of<DataError>([&] { read(); }),
              AllOf(HasSubstr("other_latin1.parquet: row 2: byte 3 of the text, \\xE9, is not UTF-8"),
                    HasSubstr("--replace-invalid-utf8")));
  options_.replace_invalid_utf8 = true;
  EXPECT_THAT(read(), ElementsAre("plain", "caf\xEF\xBF\xBD", "end"));
  EXPECT_EQ(statistics_.replaced, 1);
}

TEST_F(CorpusOfTables, ChecksColumnsAndCodecsBeforeAnyWork) {
  take("refused_brotli.parquet", "z.parquet");
  put(folder_ / "a.txt", "text");
  const auto check = [&] { check_encoding(find_sources({folder_.path()}).files, options_); };
  EXPECT_THAT(message_of<DataError>(check), HasSubstr("compressed with brotli"));
  options_.json_key = "content";
  EXPECT_THAT(message_of<DataError>(check), HasSubstr("there is no column content"));
  options_.messages_key = "chat";
  EXPECT_THAT(message_of<DataError>(check), HasSubstr("there is no column chat"));
}

// All columns and nulls, in every format that has them.
TEST_F(CorpusOfTables, WholeRowsAreThoseOfPyarrow) {
  const std::pair<const char*, SourceKind> files[] = {{"zstd_dictionary_v2.parquet", SourceKind::parquet},
                                                      {"none_plain_v1.parquet", SourceKind::parquet},
                                                      {"pages.parquet", SourceKind::parquet},
                                                      {"older.parquet", SourceKind::parquet},
                                                      {"duckdb_zstd_V2.parquet", SourceKind::parquet},
                                                      {"stream_lz4.arrow", SourceKind::arrow},
                                                      {"dictionary.arrow", SourceKind::arrow},
                                                      {"view.arrow", SourceKind::arrow}};
  for (const auto& [name, kind] : files) {
    const auto table = open_table(golden_table(name), kind, {.whole = true});
    EXPECT_EQ(rows_of(*table), expected_whole()) << name;
    EXPECT_THAT(table->left_out(), ElementsAre("day", "price", "seen")) << name;
  }
}

}  // namespace
}  // namespace witan
