#include "witan/data/corpus/sources.h"

#include <sys/stat.h>
#include <unistd.h>

#include "data/data_support.h"
#include "data/tables/golden_tables.h"
#include "witan/base/error.h"
#include "witan/data/corpus/corpus.h"

namespace witan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class SourcesTest : public ::testing::Test {
 protected:
  std::vector<std::string> names(const Sources& sources) const {
    std::vector<std::string> all;
    for (const Source& source : sources.files)
      all.push_back(source.path.lexically_relative(fs::canonical(folder_.path())).string() +
                    (source.kind == SourceKind::jsonl ? ":rows" : ""));
    return all;
  }

  TempFolder folder_;
};

TEST_F(SourcesTest, WalksFoldersInOrder) {
  put(folder_ / "b.txt", "b");
  put(folder_ / "sub/deep/a.md", "a");
  put(folder_ / "sub/rows.jsonl", "{}");
  put(folder_ / "sub/rows.json.gz", gzip("{}"));
  put(folder_ / "sub/c.pod.zst", zstd("c"));
  put(folder_ / "Makefile", "all:");
  put(folder_ / ".hidden/d.txt", "d");
  put(folder_ / ".e.txt", "e");
  put(folder_ / "picture.png", std::string("\x89PNG\0\0", 6));
  const Sources sources = find_sources({folder_.path()});
  EXPECT_EQ(names(sources), (std::vector<std::string>{"Makefile", "b.txt", "sub/c.pod.zst", "sub/deep/a.md",
                                                      "sub/rows.json.gz:rows", "sub/rows.jsonl:rows"}));
  EXPECT_EQ(sources.skipped, (std::vector<SkippedFile>{{folder_ / "picture.png", SkippedFile::Why::binary}}));
  EXPECT_EQ(sources.files[1].bytes, 1u);
  EXPECT_GT(sources.files[1].modified_ns, 1'600'000'000'000'000'000);
}

// Tables are recognised by name or by their first bytes, since the hub's caches link to files without extensions.
TEST_F(SourcesTest, RecognisesTables) {
  put(folder_ / "a.parquet", "PAR1");
  put(folder_ / "b.arrow", std::string("\xFF\xFF\xFF\xFF\0", 5));
  put(folder_ / "blobs/1234", std::string("PAR1\0", 5));
  put(folder_ / "blobs/5678", std::string("ARROW1\0\0", 8));
  put(folder_ / ".cache/9", "{}");
  fs::create_symlink(folder_ / ".cache/9", folder_ / "c.jsonl");
  put(folder_ / "d.feather", "");
  put(folder_ / "e.tar", "");
  put(folder_ / "f.tgz", "");
  put(folder_ / "g.tar.zst", "");
  put(folder_ / "h.mds.zstd", "");
  put(folder_ / "I.JSONL", "{}");
  put(folder_ / "J.TAR.GZ", "");
  std::vector<std::pair<std::string, std::string>> kinds;
  for (const Source& source : find_sources({folder_.path()}).files)
    kinds.emplace_back(source.path.filename().string(), name_of(source.kind));
  std::sort(kinds.begin(), kinds.end());
  EXPECT_EQ(kinds, (std::vector<std::pair<std::string, std::string>>{{"1234", "parquet"},
                                                                     {"5678", "arrow"},
                                                                     {"9", "jsonl"},
                                                                     {"I.JSONL", "jsonl"},
                                                                     {"J.TAR.GZ", "webdataset"},
                                                                     {"a.parquet", "parquet"},
                                                                     {"b.arrow", "arrow"},
                                                                     {"d.feather", "arrow"},
                                                                     {"e.tar", "webdataset"},
                                                                     {"f.tgz", "webdataset"},
                                                                     {"g.tar.zst", "webdataset"},
                                                                     {"h.mds.zstd", "mds"}}));
}

// An archive of programs is not text, but an archive given by name is read.
TEST_F(SourcesTest, SkipsArchivesWithoutSamples) {
  std::string header(512, '\0');
  header.replace(0, 6, "main.c");
  header.replace(124, 2, "0 ");
  header.replace(156, 1, "0");
  const auto with_sum = [](std::string block) {
    block.replace(148, 8, 8, ' ');
    unsigned sum = 0;
    for (const char byte : block) sum += static_cast<unsigned char>(byte);
    const std::string digits = {static_cast<char>('0' + (sum >> 9)), static_cast<char>('0' + (sum >> 6 & 7)),
                                static_cast<char>('0' + (sum >> 3 & 7)), static_cast<char>('0' + (sum & 7))};
    return block.replace(148, 4, digits);
  };
  const fs::path sources = put(folder_ / "a.tar", with_sum(header) + std::string(1024, '\0'));
  header.replace(0, 6, "1.json");
  put(folder_ / "b.tar", with_sum(header) + std::string(1024, '\0'));
  const Sources found = find_sources({folder_.path()});
  EXPECT_EQ(names(found), std::vector<std::string>{"b.tar"});
  EXPECT_EQ(found.skipped, (std::vector<SkippedFile>{{folder_ / "a.tar", SkippedFile::Why::binary}}));
  EXPECT_EQ(names(find_sources({sources})), std::vector<std::string>{"a.tar"});
}

// Bookkeeping files that `datasets` and Parquet writers keep beside tables.
TEST_F(SourcesTest, SkipsBookkeepingFiles) {
  using Why = SkippedFile::Why;
  put(folder_ / "a/data-00000-of-00001.arrow", "");
  put(folder_ / "a/cache-0123.arrow", "");
  put(folder_ / "a/dataset_info.json", "{\n}");
  put(folder_ / "a/state.json", "{\n}");
  put(folder_ / "b/_metadata", "PAR1");
  put(folder_ / "b/state.json", "{}");
  put(folder_ / "c/index.json", "{}");
  put(folder_ / "c/shard.00000.mds", "");
  put(folder_ / "dataset_dict.json", "{}");
  const Sources sources = find_sources({folder_.path()});
  EXPECT_EQ(names(sources),
            (std::vector<std::string>{"a/data-00000-of-00001.arrow", "b/state.json:rows", "c/shard.00000.mds"}));
  const std::vector<SkippedFile> expected = {
      {folder_ / "a/cache-0123.arrow", Why::bookkeeping}, {folder_ / "a/dataset_info.json", Why::bookkeeping},
      {folder_ / "a/state.json", Why::bookkeeping},       {folder_ / "b/_metadata", Why::bookkeeping},
      {folder_ / "c/index.json", Why::bookkeeping},       {folder_ / "dataset_dict.json", Why::bookkeeping}};
  EXPECT_EQ(sources.skipped, expected);
  EXPECT_THAT(describe_skipped(sources.skipped), HasSubstr("6 bookkeeping files ("));
}

// A dataset card is not a document, but the same file in a folder of text is.
TEST_F(SourcesTest, SkipsDocumentsBesideRows) {
  put(folder_ / "hub/README.md", "# A card");
  put(folder_ / "hub/LICENSE", "All rights");
  put(folder_ / "hub/readings.txt", "a text");
  put(folder_ / "hub/licenses.txt", "another");
  put(folder_ / "hub/data/rows.jsonl", "{}");
  put(folder_ / "text/README.md", "# A text");
  const Sources hub = find_sources({folder_ / "hub"});
  EXPECT_EQ(hub.files.size(), 3u);
  ASSERT_EQ(hub.skipped.size(), 2u);
  EXPECT_EQ(hub.skipped[0].path, folder_ / "hub/LICENSE");
  EXPECT_EQ(hub.skipped[1], (SkippedFile{folder_ / "hub/README.md", SkippedFile::Why::bookkeeping}));
  EXPECT_EQ(names(find_sources({folder_ / "text"})), std::vector<std::string>{"text/README.md"});
  EXPECT_EQ(find_sources({folder_ / "hub", folder_ / "hub/README.md"}).files.size(), 4u) << "given by name";
}

TEST_F(SourcesTest, ReadsEachFileOnce) {
  const fs::path file = put(folder_ / "a.txt", "a");
  fs::create_symlink(file, folder_ / "link.txt");
  EXPECT_EQ(names(find_sources({file, folder_.path(), folder_ / "." / "a.txt"})), std::vector<std::string>{"a.txt"});
}

TEST_F(SourcesTest, DoesNotFollowLinksToFolders) {
  put(folder_ / "a.txt", "a");
  fs::create_directory_symlink(folder_.path(), folder_ / "loop");
  EXPECT_EQ(names(find_sources({folder_.path()})), std::vector<std::string>{"a.txt"});
}

TEST_F(SourcesTest, ReportsSkippedFilesOfAFolder) {
  using Why = SkippedFile::Why;
  put(folder_ / "a.txt", "a");
  put(folder_ / "b.bin", std::string("\0\1", 2));
  fs::create_symlink(folder_ / "gone.txt", folder_ / "c.txt");
  fs::create_symlink(folder_ / "rows.jsonl", folder_ / "d.jsonl");
  fs::create_directory_symlink(folder_.path(), folder_ / "e");
  ASSERT_EQ(::mkfifo((folder_ / "f").c_str(), 0600), 0);
  put(folder_ / ".hidden.bin", std::string("\0\1", 2));
  const std::vector<SkippedFile> expected = {{folder_ / "b.bin", Why::binary},
                                             {folder_ / "c.txt", Why::broken_link},
                                             {folder_ / "d.jsonl", Why::broken_link},
                                             {folder_ / "e", Why::folder_link},
                                             {folder_ / "f", Why::special}};
  EXPECT_EQ(find_sources({folder_.path()}).skipped, expected);
}

// Each of these alone is an error; beside others it would go unnoticed.
TEST_F(SourcesTest, ReportsNamedFilesWithoutText) {
  using Why = SkippedFile::Why;
  const fs::path text = put(folder_ / "a.txt", "a"), empty = put(folder_ / "b.txt", "");
  put(folder_ / "c/picture.png", std::string("\0\1", 2));
  put(folder_ / "d/a.txt", "a");
  put(folder_ / "d/empty.txt", "");  // in a folder with text, not given by name
  const Sources found = find_sources({text, empty, folder_ / "c", folder_ / "d"});
  const std::vector<SkippedFile> expected = {
      {empty, Why::empty}, {folder_ / "c", Why::folder_without_text}, {folder_ / "c/picture.png", Why::binary}};
  EXPECT_EQ(found.skipped, expected);
  EXPECT_EQ(describe_skipped({expected[0], expected[1], {"e", Why::folder_without_text}}),
            cat("1 empty file (", empty.string(), "), 2 folders without text (", (folder_ / "c").string(), ", e)"));
  EXPECT_TRUE(find_sources({empty}).skipped.empty()) << "reported by an error if nothing else is there";
}

// Unlike a picture, this file was meant to be read.
TEST_F(SourcesTest, UnreadableFilesOfAFolderAreErrors) {
  using Why = SkippedFile::Why;
  require_readable({{"a.png", Why::binary}, {"b.txt", Why::broken_link}});
  EXPECT_THAT(
      [] {
        require_readable({{"a.png", Why::binary}, {"c/b.txt", Why::unreadable}});
      },
      ThrowsMessage<DataError>(AllOf(HasSubstr("no permission to read"), HasSubstr("1 unreadable file (c/b.txt)"),
                                     HasSubstr("begins with a dot"), Not(HasSubstr("a.png")))));
  put(folder_ / "a.txt", "a");
  const fs::path secret = put(folder_ / "g.txt", "g");
  fs::permissions(secret, fs::perms::none);
  if (::access(secret.c_str(), R_OK) == 0) return;  // root can read everything
  EXPECT_THROW(find_sources({folder_.path()}), DataError);
  fs::rename(secret, folder_ / ".g.txt");  // the suggested fix
  EXPECT_EQ(find_sources({folder_.path()}).files.size(), 1U);
}

TEST(DescribeSkipped, CountsEachKindAndNamesTheFirst) {
  using Why = SkippedFile::Why;
  EXPECT_EQ(describe_skipped({}), "");
  EXPECT_EQ(describe_skipped({{"a", Why::broken_link}, {"b", Why::binary}, {"c", Why::unreadable}}),
            "1 binary file (b), 1 broken link (a), 1 unreadable file (c)");
  std::vector<SkippedFile> many;
  for (int i = 0; i < 5; ++i) many.push_back({std::to_string(i) + ".png", Why::binary});
  EXPECT_EQ(describe_skipped(many), "5 binary files (0.png, 1.png, 2.png ...)");
}

TEST_F(SourcesTest, ListsAreSeparatedByCommasOrSpaces) {
  using Paths = std::vector<fs::path>;
  EXPECT_EQ(paths_of({"a.txt", "b.txt"}), (Paths{"a.txt", "b.txt"}));
  EXPECT_EQ(paths_of({"a.txt,b.txt", "c"}), (Paths{"a.txt", "b.txt", "c"}));
  EXPECT_EQ(paths_of({",a.txt,,"}), Paths{"a.txt"});
  EXPECT_EQ(paths_of({}), Paths{});
  const fs::path file = put(folder_ / "one, two.txt", "a");
  EXPECT_EQ(paths_of({file.string()}), Paths{file}) << "a file with exactly that name";
}

TEST_F(SourcesTest, ErrorsNameUnusableSources) {
  EXPECT_THAT(message_of<DataError>([&] { find_sources({folder_ / "absent"}); }), HasSubstr("absent"));
  EXPECT_THAT(message_of<DataError>([&] { find_sources({folder_.path()}); }),
              AllOf(HasSubstr("no text found"), HasSubstr(".jsonl")));
  EXPECT_THROW(find_sources({}), DataError);
  const fs::path binary = put(folder_ / "a.out", std::string("\x7f"
                                                             "ELF\0",
                                                             5));
  EXPECT_THAT(message_of<DataError>([&] { find_sources({binary}); }), AllOf(HasSubstr("a.out"), HasSubstr("binary")));
  EXPECT_THROW(find_sources({"/dev/null"}), DataError);
}

// They are refused before any row is read, since each line would be an unusable row.
TEST_F(SourcesTest, RefusalsOfUtf16RowsNameTheConversion) {
  const std::string rows("{\0\"\0t\0\"\0:\0\x31\0}\0\n\0", 16);
  for (const std::string& bytes : {rows, "\xFF\xFE" + rows}) {
    const fs::path file = put(folder_ / "in/a.jsonl", bytes);
    for (const fs::path& named : {file, folder_ / "in"})
      EXPECT_THAT(message_of<DataError>([&] { find_sources({named}); }),
                  AllOf(HasSubstr("a.jsonl: this is UTF-16 (little-endian): "), HasSubstr("`iconv -f utf-16"),
                        HasSubstr("> a.utf8.jsonl`")));
  }
  const fs::path packed = put(folder_ / "a.jsonl.gz", gzip(rows));
  EXPECT_THAT(message_of<DataError>([&] { find_sources({packed}); }),
              AllOf(HasSubstr("`zcat "), HasSubstr(" | iconv -f utf-16le -t utf-8 > a.utf8.jsonl`")));
  const fs::path text = put(folder_ / "a.txt", std::string("h\0i\0\n\0", 6));
  EXPECT_THAT(message_of<DataError>([&] { find_sources({text}); }),
              AllOf(HasSubstr("a.txt: this is UTF-16"), HasSubstr("iconv -f utf-16le -t utf-8 ")));
}

TEST_F(SourcesTest, RefusalsOfJsonArraysNameTheConversion) {
  for (const char* text :
       {"[\n  {\n    \"text\": \"a\"\n  }\n]", "\xEF\xBB\xBF [{\"text\": \"a\"}, {\"text\": \"b\"}]"}) {
    const fs::path file = put(folder_ / "in/a.json", text);
    for (const fs::path& named : {file, folder_ / "in"})
      EXPECT_THAT(message_of<DataError>([&] { find_sources({named}); }),
                  AllOf(HasSubstr("a.json: this is one JSON array, but rows are objects, one on each line: "),
                        HasSubstr("`jq -c '.[]' "), HasSubstr("> a.rows.jsonl`")));
  }
  // Single unusable rows are left to the quarantine.
  put(folder_ / "in/a.json", "[1, 2]\n{\"text\": \"a\"}");
  EXPECT_EQ(names(find_sources({folder_ / "in"})), std::vector<std::string>{"in/a.json:rows"});
}

TEST_F(SourcesTest, ErrorsNameUnsupportedCompressions) {
  const std::pair<std::string, const char*> heads[] = {
      {{"\xFD\x37zXZ\0", 6}, "this is xz-compressed, which is not read: "},
      {"BZh91AY&SYabc", "this is bzip2-compressed"},
      {"PK\x03\x04", "this is a zip archive, which is not read: unpack it"},
      {"7z\xBC\xAF\x27\x1C", "this is a 7z archive"},
      {"%PDF-1.7", "this is a PDF"},
      {"\xFF\xFEh", "this is UTF-16"}};
  for (const auto& [head, why] : heads) {
    const fs::path file = put(folder_ / "a.dat", head);
    EXPECT_THAT(message_of<DataError>([&] { find_sources({file}); }), HasSubstr(why));
  }
  const fs::path xz = put(folder_ / "a.dat", heads[0].first);
  EXPECT_THAT(message_of<DataError>([&] { find_sources({xz}); }), HasSubstr("recompress it with zstd or gzip"));
  put(folder_ / "b.txt", "BZh is text");
  EXPECT_EQ(names(find_sources({folder_.path()})), std::vector<std::string>{"b.txt"}) << "in a folder it is skipped";
}

// Patterns in quotes or in a file are not expanded by a shell.
TEST_F(SourcesTest, ExpandsPatterns) {
  put(folder_ / "a.txt", "a");
  put(folder_ / "b.txt", "b");
  put(folder_ / "c.md", "c");
  put(folder_ / "[d].txt", "d");
  EXPECT_EQ(names(find_sources({folder_ / "?.txt"})), (std::vector<std::string>{"a.txt", "b.txt"}));
  EXPECT_EQ(names(find_sources({folder_ / "[d].txt"})), std::vector<std::string>{"[d].txt"})
      << "a file with exactly that name";
  EXPECT_THAT(message_of<DataError>([&] { find_sources({folder_ / "*.rst"}); }),
              HasSubstr("no file or folder matches " + (folder_ / "*.rst").string()));
}

TEST_F(SourcesTest, PatternsSelectFilesOfFolders) {
  put(folder_ / "a.txt", "a");
  put(folder_ / "b.md", "b");
  put(folder_ / "sub/c.txt", "c");
  put(folder_ / "sub/drafts/d.txt", "d");
  put(folder_ / "drafts/e.txt", "e");
  const auto chosen = [&](const SourceSelection& selection) {
    return names(find_sources({folder_.path()}, selection));
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(chosen({{"*.md"}, {}}), Names{"b.md"});
  EXPECT_EQ(chosen({{"sub/*"}, {}}), (Names{"sub/c.txt", "sub/drafts/d.txt"})) << "* also matches /";
  EXPECT_EQ(chosen({{"*.md", "a.*"}, {}}), (Names{"a.txt", "b.md"}));
  EXPECT_EQ(chosen({{}, {"drafts/"}}), (Names{"a.txt", "b.md", "sub/c.txt", "sub/drafts/d.txt"}))
      << "relative to the folder";
  EXPECT_EQ(chosen({{"*.txt"}, {"*drafts/*", "a.*"}}), Names{"sub/c.txt"}) << "excludes take precedence";
  EXPECT_EQ(names(find_sources({folder_ / "sub/", folder_ / "b.md"}, {{"c.*"}, {}})), (Names{"b.md", "sub/c.txt"}))
      << "patterns apply below folders; a file given by name is read";
}

// Excluded files are not even opened.
TEST_F(SourcesTest, ExcludedFilesAreNotReportedAsSkipped) {
  put(folder_ / "a.txt", "a");
  put(folder_ / "picture.png", std::string("\x89PNG\0\0", 6));
  EXPECT_EQ(find_sources({folder_.path()}, {{}, {"*.png"}}).skipped, std::vector<SkippedFile>());
}

TEST_F(SourcesTest, PatternsWithoutMatchesAreErrors) {
  put(folder_ / "text/a.txt", "a");
  put(folder_ / "text/sub/b.txt", "b");
  const auto why = [&](const std::vector<fs::path>& paths, const SourceSelection& selection) {
    return message_of<DataError>([&] { find_sources(paths, selection); });
  };
  const std::string text = (folder_ / "text").string();
  EXPECT_THAT(why({text}, {{"*.txt", "*.md"}, {}}),
              AllOf(HasSubstr("--include *.md matches no file in " + text),
                    HasSubstr("paths below the folder, such as "), HasSubstr("sub/b.txt")));
  EXPECT_THAT(why({text}, {{}, {"text/*"}}), HasSubstr("--exclude text/* matches no file in " + text));
  EXPECT_THAT(why({folder_ / "text/a.txt"}, {{"*.txt"}, {}}), HasSubstr("a file that is named itself is read"));
  EXPECT_THAT(why({text}, {{"sub"}, {}}),
              HasSubstr("--include sub matches no file in " + text + ": did you mean sub/,"));
  EXPECT_THAT(why({text}, {{"a.txt"}, {"*.txt"}}),
              HasSubstr("--include and --exclude leave out 2 files of " + text + ", which is all of them, such as "));
  fs::create_symlink("nowhere", folder_ / "text/0.txt");
  EXPECT_THAT(why({text}, {{"*.md"}, {}}), Not(HasSubstr("0.txt"))) << "a dangling link";
}

TEST_F(SourcesTest, SuggestsNamesForMissingPaths) {
  const auto why = [](const std::string& path) { return message_of<DataError>([&] { find_sources({path}); }); };
  EXPECT_THAT(why("allenai/c4"),
              HasSubstr("there is no file or folder allenai/c4; if it is a dataset of the Hugging Face "
                        "hub, get it with `witan data fetch allenai/c4`"));
  EXPECT_THAT(why("https://x.org/a.txt"), AllOf(HasSubstr("a URL"), HasSubstr("`witan data fetch OWNER/NAME`")));
  EXPECT_THAT(why("s3://bucket/key"), HasSubstr("a URL"));
  EXPECT_THAT(why("~/x"), HasSubstr("the shell expands ~ only where it is not quoted"));
  EXPECT_THAT(why("texts/a.txt"), Not(HasSubstr("Hugging Face")));
  fs::create_symlink("nowhere", folder_ / "*.txt");
  EXPECT_THAT(why((folder_ / "*.txt").string()), HasSubstr("*.txt is a link to nowhere, which does not exist"));
  fs::create_symlink("nowhere", folder_ / "link");
  EXPECT_THAT(why(folder_ / "link"), HasSubstr("link is a link to nowhere, which does not exist"));
}

TEST_F(SourcesTest, DefaultCorpusFindsPodFilesOnce) {
  for (int i = 0; i < 150; ++i) put(folder_ / ("5.36.0/pod/" + std::to_string(i) + ".pod"), "=head1");
  fs::create_directory_symlink(folder_ / "5.36.0", folder_ / "5.36");
  put(folder_ / "5.36.0/pod/README", "no");
  EXPECT_EQ(default_corpus(folder_.path()).size(), 150u);
}

TEST_F(SourcesTest, DefaultCorpusErrorsNameTheFixes) {
  put(folder_ / "5.36.0/pod/perl.pod", "=head1");
  const auto find = [&](const fs::path& root) { return message_of<DataError>([&] { default_corpus(root); }); };
  EXPECT_THAT(find(folder_.path()), AllOf(HasSubstr("1 .pod"), HasSubstr("--data"), HasSubstr("perl-doc")));
  EXPECT_THAT(find(folder_ / "absent"), HasSubstr("perl-doc"));
}

}  // namespace

// Tables as sources of a corpus, besides text and JSON Lines.

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

// Nulls are unusable rows, as in JSON Lines.
TEST_F(CorpusOfTables, ReadsTextsAndCountsNulls) {
  take("encodings/zstd_dictionary_v2.parquet", "b.parquet");
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

TEST_F(CorpusOfTables, RefusesInvalidUtf8UnlessReplacing) {
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
TEST_F(CorpusOfTables, WholeRowsMatchPyarrow) {
  const std::pair<const char*, SourceKind> files[] = {{"encodings/zstd_dictionary_v2.parquet", SourceKind::parquet},
                                                      {"encodings/none_plain_v1.parquet", SourceKind::parquet},
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
