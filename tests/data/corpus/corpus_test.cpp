#include "witan/data/corpus/corpus.h"

#include "data/data_support.h"
#include "witan/base/error.h"
#include "witan/base/text.h"

namespace witan {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Corpus : public ::testing::Test {
 protected:
  // The documents of the folder.
  std::vector<std::string> read() {
    std::vector<std::string> documents;
    statistics_ = read_corpus(find_sources({folder_.path()}).files, options_, [&](const Document& document) {
      documents.emplace_back(document.text);
      EXPECT_EQ(find_invalid_utf8(document.text), std::string_view::npos);
    });
    EXPECT_EQ(statistics_.documents, static_cast<int64_t>(documents.size()));
    return documents;
  }

  TempFolder folder_, elsewhere_;
  CorpusOptions options_;
  CorpusStatistics statistics_;
};

TEST_F(Corpus, ReadsTextAndRowsPlainAndCompressed) {
  put(folder_ / "1.txt", "first\n\nstill first");
  put(folder_ / "2.txt.gz", gzip("second"));
  put(folder_ / "3.jsonl", "{\"text\": \"third\"}\n\n{\"text\": \"fourth\"}\r\n{\"text\": \"\"}");
  put(folder_ / "4.jsonl.zst", zstd("{\"text\": \"fifth\"}\n"));
  EXPECT_THAT(read(), ElementsAre("first\n\nstill first", "second", "third", "fourth", "fifth"));
  EXPECT_EQ(statistics_.rows, 4);
  EXPECT_EQ(statistics_.empty_documents, 1);
  EXPECT_EQ(statistics_.text_bytes, 18u + 6 + 5 + 6 + 5);
}

TEST_F(Corpus, SplitsHugeTextAtBlankLinesNewlinesOrCharacters) {
  options_.document_bytes = 16;
  put(folder_ / "a.txt", "0123456789\n\n12345678\n\nrest");
  EXPECT_THAT(read(), ElementsAre("0123456789\n\n", "12345678\n\nrest"));
  put(folder_ / "a.txt", "0123456789\n12345678\nrest");
  EXPECT_THAT(read(), ElementsAre("0123456789\n", "12345678\nrest"));
  put(folder_ / "a.txt", "0123456789abcdeé0123");
  EXPECT_THAT(read(), ElementsAre("0123456789abcde", "é0123"));
  EXPECT_EQ(statistics_.replaced, 0);
}

TEST_F(Corpus, SplittingLosesNoByte) {
  options_.document_bytes = 1000;
  std::string text;
  for (int i = 0; i < 500'000; ++i) text += i % 97 == 0 ? "\n\n" : i % 13 == 0 ? "\n" : "é";
  put(folder_ / "a.txt", text);
  std::string joined;
  for (const std::string& document : read()) {
    EXPECT_LE(document.size(), 1000u);
    joined += document;
  }
  EXPECT_EQ(joined, text);
}

TEST_F(Corpus, RefusesTextThatIsNotUtf8) {
  put(folder_ / "a.txt", "caf\xe9 au lait");
  EXPECT_THAT(message_of<DataError>([&] { read(); }),
              AllOf(HasSubstr("a.txt: byte 3, \\xE9, is not UTF-8"), HasSubstr("latin1"),
                    HasSubstr("iconv -f latin1 -t utf-8"), HasSubstr("--replace-invalid-utf8")));
  put(folder_ / "a.txt",
      "\xEF\xBB\xBF"
      "caf\xe9");
  EXPECT_THAT(message_of<DataError>([&] { read(); }), HasSubstr("byte 6,")) << "the byte-order mark is counted";
  options_.document_bytes = 16;
  put(folder_ / "a.txt", std::string(100, 'a') + "\n" + std::string(100, 'b') + "\xe9");
  EXPECT_THAT(message_of<DataError>([&] { read(); }), HasSubstr("byte 201,")) << "earlier documents are counted";
}

TEST_F(Corpus, RefusesARowInAnotherEncoding) {
  std::string rows;
  for (int i = 0; i < 99; ++i) rows += "{\"text\": \"plain\"}\n";
  put(folder_ / "a.jsonl", rows + "{\"text\": \"caf\xe9\"}\n");  // within the tolerated share of unusable rows
  EXPECT_THAT(message_of<DataError>([&] { read(); }),
              AllOf(HasSubstr("a.jsonl:100: byte 13 of the line, \\xE9, is not UTF-8"), HasSubstr("latin1")));
  options_.replace_invalid_utf8 = true;
  EXPECT_EQ(read().back(), "caf\xEF\xBF\xBD");
  EXPECT_EQ(statistics_.bad_rows, 0);
  EXPECT_EQ(statistics_.replaced, 1);
}

// A row that is not JSON in any encoding is unusable like any other.
TEST_F(Corpus, QuarantinesRandomBytes) {
  options_.bad_row_share = 0.5;
  put(folder_ / "a.jsonl", "{\"text\": \"one\"}\n{\"te\xff\xfe\x80\n");
  EXPECT_THAT(read(), ElementsAre("one"));
  EXPECT_EQ(statistics_.bad_rows, 1);
}

TEST_F(Corpus, ProbesDetectAnotherEncodingBeforeAnyWork) {
  const auto check = [&] { check_encoding(find_sources({folder_.path()}).files, options_); };
  const std::string mib(1 << 20, 'x');
  put(folder_ / "a.txt", "plain");
  put(folder_ / "b.txt", mib.substr(1) + "\xC3\xA9");  // a character that the end of the first MiB splits
  put(folder_ / "c.txt", mib + "\xe9");                // after the probed part
  EXPECT_NO_THROW(check());
  put(folder_ / "d.txt.gz", gzip("caf\xe9"));
  EXPECT_THAT(message_of<DataError>(check), HasSubstr("d.txt.gz: byte 3,"));
  options_.replace_invalid_utf8 = true;
  EXPECT_NO_THROW(check());
  options_.replace_invalid_utf8 = false;
  fs::remove(folder_ / "d.txt.gz");
  put(folder_ / "e.jsonl", "{\"text\": \"one\"}\nnoise\xff\n{\"text\": \"\xe9\"}\n");
  EXPECT_THAT(message_of<DataError>(check), HasSubstr("e.jsonl:3: byte 10"));
  put(folder_ / "e.jsonl", "");
  put(folder_ / "f.txt", "cut: \xC3");
  EXPECT_THAT(message_of<DataError>(check), HasSubstr("f.txt: byte 5,"));
}

TEST_F(Corpus, ReplacesAndCountsInvalidUtf8IfAllowed) {
  options_.replace_invalid_utf8 = true;
  put(folder_ / "a.txt", "caf\xe9 and \xEF\xBF\xBD and \xff\xfe.");
  EXPECT_THAT(read(), ElementsAre("caf\xEF\xBF\xBD and \xEF\xBF\xBD and \xEF\xBF\xBD\xEF\xBF\xBD."));
  EXPECT_EQ(statistics_.replaced, 3);
}

TEST_F(Corpus, DropsAByteOrderMark) {
  put(folder_ / "a.txt", "\xEF\xBB\xBFtext");
  put(folder_ / "b.jsonl", "\xEF\xBB\xBF{\"text\": \"row\"}");
  EXPECT_THAT(read(), ElementsAre("text", "row"));
}

TEST_F(Corpus, RefusesANulByteInLongText) {
  put(folder_ / "a.txt", std::string(3'000'000, 'x') + std::string(1, '\0'));
  EXPECT_THAT(message_of<DataError>([&] { read(); }), AllOf(HasSubstr("a.txt"), HasSubstr("offset 3000000")));
}

TEST_F(Corpus, QuarantinesUnusableRowsAndContinues) {
  options_.bad_row_share = 0.5;
  options_.quarantine = elsewhere_ / "bad.jsonl";
  options_.row_bytes = 100;
  put(folder_ / "a.jsonl",
      "{\"text\": \"one\"}\n{\"text\": 5}\n{\"text\": \"" + std::string(200, 'x') + "\"}\n{\"text\": \"two\"}\n");
  EXPECT_THAT(read(), ElementsAre("one", "two"));
  EXPECT_EQ(statistics_.rows, 4);
  EXPECT_EQ(statistics_.bad_rows, 2);
  const std::string kept = read_file(options_.quarantine);
  EXPECT_THAT(kept, AllOf(HasSubstr("a.jsonl"), HasSubstr("\"line\":2"), HasSubstr("a number"), HasSubstr("\"line\":3"),
                          HasSubstr("longer than 100 bytes")));
}

// One file among others has only rows without text.
TEST_F(Corpus, QuarantinesRowsOfANullColumnAndContinues) {
  for (const char* table : {"other_nulls.parquet", "other_nulls.arrow"}) {
    options_.quarantine = elsewhere_ / "bad.jsonl";
    options_.bad_row_share = 0.5;
    const TempFolder folder;
    put(folder / table, read_file(golden(cat("tables/", table))));
    put(folder / "z.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n{\"text\": \"c\"}\n");
    std::vector<std::string> documents;
    const auto statistics = read_corpus(find_sources({folder.path()}).files, options_,
                                        [&](const Document& document) { documents.emplace_back(document.text); });
    EXPECT_THAT(documents, ElementsAre("a", "b", "c")) << table;
    EXPECT_EQ(statistics.bad_rows, 3);
    EXPECT_THAT(read_file(options_.quarantine), AllOf(HasSubstr(table), HasSubstr("the text is null")));
  }
}

TEST_F(Corpus, StopsAfterTooManyUnusableRows) {
  options_.quarantine = elsewhere_ / "bad.jsonl";
  put(folder_ / "a.jsonl", "{\"text\": \"one\"}\n{\"txt\": \"two\"}\n");
  EXPECT_THAT(message_of<DataError>([&] { read(); }),
              AllOf(HasSubstr("1 of 2 rows"), HasSubstr("a.jsonl:2"), HasSubstr("bad.jsonl")));
  EXPECT_TRUE(fs::exists(options_.quarantine));
  options_.bad_row_share = 1;
  EXPECT_THAT(read(), ElementsAre("one"));
  put(folder_ / "a.jsonl", "{\"txt\": \"one\"}\n");
  EXPECT_THAT(message_of<DataError>([&] { read(); }), HasSubstr("1 of 1 rows"));
}

TEST_F(Corpus, ReadsAnotherKey) {
  options_.json_key = "content";
  put(folder_ / "a.jsonl", "{\"content\": \"one\"}\n");
  EXPECT_THAT(read(), ElementsAre("one"));
}

TEST_F(Corpus, RefusesACorpusWithoutText) {
  put(folder_ / "a.txt", "");
  put(folder_ / "b.jsonl", "\n\n{\"text\": \"\"}\n");
  EXPECT_THAT(message_of<DataError>([&] { read(); }), AllOf(HasSubstr("no document"), HasSubstr("2 empty")));
}

TEST_F(Corpus, ErrorsNameDamagedArchives) {
  put(folder_ / "a.jsonl.gz", gzip("{\"text\": \"one\"}\n").substr(0, 20));
  EXPECT_THAT(message_of<CorruptionError>([&] { read(); }), HasSubstr("a.jsonl.gz"));
}

}  // namespace
}  // namespace witan
